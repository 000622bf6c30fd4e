"""The table of ``remote_io(also="paths")``: the rest of the standard library's file functions that programs use."""

from __future__ import annotations

from remoteio._patches import Parameter, Patch

__all__ = ["MODULES", "PATCHES"]

# Imported when a scope asks for this table.
MODULES = ("os.path", "genericpath")


def _patch(
    name: str,
    places: tuple[str, ...],
    urls: tuple[str | tuple[str, int | None], ...],
    answer: str,
    *,
    sources: tuple[str, ...] = (),
    takes_local: bool = False,
    wants_original: bool = False,
    label: str = "",
) -> Patch:
    """A row of this table. A parameter without a position has that of its place among the names."""
    parameters = tuple(
        Parameter(*url) if isinstance(url, tuple) else Parameter(url, position) for position, url in enumerate(urls)
    )
    return Patch(
        name,
        places,
        parameters,
        f"remoteio.{answer}",
        sources,
        table="paths",
        takes_local=takes_local,
        wants_original=wants_original,
        label=label,
    )


def _os(name: str, answer: str, *urls: str, takes_local: bool = False, wants_original: bool = False) -> Patch:
    """A function of ``os`` written in C. In Python 3.10 ``pathlib`` has it as a class attribute too."""
    places = (f"os:{name}", f"pathlib:_NormalAccessor.{name}")
    return _patch(
        name,
        places,
        urls or ("path",),
        answer,
        sources=(f"posix:{name}", f"nt:{name}"),
        takes_local=takes_local,
        wants_original=wants_original,
    )


def _path(name: str, parameter: str, answer: str, *, takes_local: bool = False) -> Patch:
    """A function of ``os.path``, of which versions of ``pathlib`` and ``glob`` have some as class attributes."""
    places = (
        f"os.path:{name}",
        f"genericpath:{name}",
        f"pathlib:_NormalAccessor.{name}",
        f"glob:_StringGlobber.{name}",
    )
    return _patch(name, places, (parameter,), answer, takes_local=takes_local)


def _shutil(name: str, answer: str, *, takes_local: bool = False, wants_original: bool = False) -> Patch:
    """A function of ``shutil`` from one path to another."""
    return _patch(
        name, (f"shutil:{name}",), ("src", "dst"), answer, takes_local=takes_local, wants_original=wants_original
    )


def _method(name: str, answer: str, owner: str = "Path", *, wants_original: bool = True) -> Patch:
    """A method of ``pathlib`` whose own code cannot do with the patched functions alone."""
    return _patch(
        name,
        (f"pathlib:{owner}.{name}",),
        ("self",),
        answer,
        takes_local=True,
        wants_original=wants_original,
        label=f"Path.{name}",
    )


def _temporary(name: str, position: int) -> Patch:
    return _patch(name, (f"tempfile:{name}",), (("dir", position),), "_refused:temporary")


PATCHES: tuple[Patch, ...] = (
    # os
    _patch("stat", ("os:stat", "pathlib:_NormalAccessor.stat"), ("path",), "_stat:stat",
           sources=("posix:stat", "nt:stat")),
    _patch("lstat", ("os:lstat", "glob:_StringGlobber.lstat"), ("path",), "_stat:lstat",
           sources=("posix:lstat", "nt:lstat")),
    _os("mkdir", "_folders:mkdir"),
    _os("rmdir", "_folders:rmdir"),
    _os("unlink", "_folders:unlink"),
    _os("rename", "_rename:rename", "src", "dst"),
    _os("replace", "_rename:rename", "src", "dst"),
    _patch("scandir", ("os:scandir", "pathlib:_NormalAccessor.scandir", "glob:_StringGlobber.scandir"), ("path",),
           "_scan:scandir", sources=("posix:scandir", "nt:scandir"), takes_local=True, wants_original=True),
    _patch("walk", ("os:walk",), ("top",), "_walk:walk", takes_local=True, wants_original=True),
    _patch("fwalk", ("os:fwalk",), ("top",), "_refused:fwalk"),
    _os("access", "_stat:access"),
    _os("utime", "_stat:utime"),
    _os("chmod", "_stat:chmod"),
    _os("readlink", "_stat:readlink"),
    _os("symlink", "_refused:symlink", "src", "dst"),
    _os("link", "_refused:link", "src", "dst"),
    _patch("os_open", ("os:open",), ("path",), "_folders:os_open", sources=("posix:open", "nt:open"),
           label="os.open"),
    # os.path
    _path("isfile", "path", "_stat:isfile"),
    _path("lexists", "path", "_stat:lexists"),
    _path("islink", "path", "_stat:islink"),
    _path("ismount", "path", "_stat:ismount"),
    _path("getmtime", "filename", "_stat:getmtime"),
    _path("getatime", "filename", "_stat:getatime"),
    _path("getctime", "filename", "_stat:getctime"),
    _patch("samefile", ("os.path:samefile", "genericpath:samefile"), ("f1", "f2"), "_stat:samefile"),
    _path("isabs", "s", "_path_text:isabs", takes_local=True),
    _path("abspath", "path", "_path_text:itself", takes_local=True),
    _path("normpath", "path", "_path_text:itself", takes_local=True),
    _path("expanduser", "path", "_path_text:itself", takes_local=True),
    _path("realpath", "filename", "_path_text:realpath", takes_local=True),
    # shutil
    _shutil("copyfile", "_copy:copyfile"),
    _shutil("copy2", "_tree_copy:copy2"),
    _shutil("copystat", "_tree_copy:copystat"),
    _shutil("copymode", "_tree_copy:copymode"),
    _shutil("copytree", "_tree_copy:copytree", takes_local=True, wants_original=True),
    _shutil("move", "_tree_copy:move", takes_local=True),
    _patch("disk_usage", ("shutil:disk_usage",), ("path",), "_stat:disk_usage"),
    _patch("make_archive", ("shutil:make_archive",), (("base_name", 0), ("root_dir", 2), ("base_dir", 3)),
           "_archive:make_archive", takes_local=True, wants_original=True),
    # glob
    _patch("iglob", ("glob:iglob",), (("pathname", 0), ("root_dir", None)), "_walk:iglob"),
    # pathlib
    _method("touch", "_folders:touch", wants_original=False),
    _method("absolute", "_path_text:absolute", wants_original=False),
    _method("is_absolute", "_path_text:isabs", "PurePath", wants_original=False),
    _method("glob", "_walk:find_paths"),
    _method("rglob", "_walk:find_paths"),
    _method("walk", "_walk:walk_paths"),
    # tempfile
    _temporary("mkstemp", 2),
    _temporary("mkdtemp", 2),
    _temporary("NamedTemporaryFile", 6),
    _temporary("TemporaryFile", 6),
    _patch("__init__", ("tempfile:SpooledTemporaryFile.__init__",), (("dir", 8),), "_refused:spooled",
           label="SpooledTemporaryFile"),
)  # fmt: skip
