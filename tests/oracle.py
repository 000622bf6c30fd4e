"""The local disk as the oracle: the same program on a directory and on a store, and what each said."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.conftest import Place

# Files of every kind of name that a program may meet.
TREE = {
    "a.txt": b"a",
    "ab.txt": b"ab",
    "b.TXT": b"B",
    ".hid": b"h",
    "empty": b"",
    "d/x.txt": b"x",
    "d/y.csv": b"yy",
    "d/.h.txt": b"h",
    "d/e/z.txt": b"zzz",
    "d/e/f/w.txt": b"w",
    "dd/x.txt": b"x2",
    ".hd/x.txt": b"hx",
    ".hd/.h/y.txt": b"hy",
    "br[1]/q.txt": b"q",
    "q?/st*r.txt": b"*",
    "sp ace/s s.txt": b"s",
    "p%20c/100%.txt": b"%",
    "h#sh+plus/x&y=z.txt": b"#",
    "ünï/日本.txt": b"u",
    "..dots/..x": b".",
    "1/2/3/4/5.txt": b"5",
}


def plant(place: Place, tree: Mapping[str, bytes] = TREE) -> None:
    """Write files past remoteio, all at once."""
    place.fs().pipe({place.url(name): data for name, data in tree.items()})


def harvest(place: Place) -> dict[str, bytes]:
    """Every file that is there: its relative name and its bytes."""
    fs = place.fs()
    start = len(fs._strip_protocol(place.base)) + 1
    paths = [path for path in fs.find(place.base) if not path.endswith("/")]
    # Not by fs.cat, which takes names for patterns.
    with ThreadPoolExecutor(8) as pool:
        return dict(zip((path[start:] for path in paths), pool.map(fs.cat_file, paths), strict=True))


def plant_locally(base: Path, tree: Mapping[str, bytes] = TREE) -> None:
    """The same on the local disk."""
    for name, data in tree.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def told(program: Callable[[str], Any], base: str) -> tuple[Any, ...]:
    """What a program returned or raised, with the base taken out of every path."""
    try:
        return ("returned", without(base, program(base)))
    except Exception as error:
        # shutil's own "Directory does not exist" has neither number nor name.
        if isinstance(error, OSError) and "irectory does not exist" not in str(error):
            # The name may be told as text where the path was bytes.
            name = error.filename and os.fsdecode(error.filename)
            return ("raised", _public_class(error), error.errno, without(base, name))
        return ("raised", _public_class(error))


def without(base: str, value: Any) -> Any:
    """A value with every mention of the base replaced."""
    if isinstance(value, str):
        return value.replace(base, "<base>")
    if isinstance(value, bytes):
        return value.replace(os.fsencode(base), b"<base>")
    if isinstance(value, dict):
        return {without(base, name): without(base, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(without(base, item) for item in value)
    return value


def _public_class(error: Exception) -> str:
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ in ("builtins", "shutil", "io"))


class Oracle:
    """Runs programs on a place and on a local directory with the same files."""

    def __init__(self, place: Place, local: Path, tree: Mapping[str, bytes] = TREE) -> None:
        plant(place, tree)
        plant_locally(local, tree)
        self.place = place
        self.local = local

    def agrees(self, program: Callable[[str], Any], **scope: Any) -> None:
        """Assert that the program says the same on both, and leaves the same files behind."""
        expected = told(program, str(self.local))
        with self.place.scope(**scope):
            got = told(program, self.place.base)
        assert got == expected, difference(got, expected)
        files, local_files = harvest(self.place), harvest(Place(str(self.local), "local"))
        assert files == local_files, difference(files, local_files)


def difference(got: Any, expected: Any) -> str:
    """Where two answers differ, told shortly."""
    if isinstance(got, tuple) and isinstance(expected, tuple) and len(got) == len(expected):
        parts = [(one, other) for one, other in zip(got, expected, strict=True) if one != other]
        return "\n".join(difference(one, other) for one, other in parts)
    if isinstance(got, dict) and isinstance(expected, dict):
        names = [name for name in {**expected, **got} if got.get(name) != expected.get(name)]
        return "\n".join(f"{name!r}: {got.get(name, '-')!r}, on a disk {expected.get(name, '-')!r}" for name in names)
    return f"{got!r}, on a disk {expected!r}"
