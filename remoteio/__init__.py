"""Inside ``with remote_io():`` the standard library's own file functions accept URLs.

    with remote_io():
        for shard in glob.glob("s3://bucket/train/*.jsonl"):
            with open(shard) as f: ...

Outside of it nothing is different.
"""

from __future__ import annotations

import importlib

# Not imported from `typing`, which alone takes most of the time that importing this package may take.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from remoteio import cache
    from remoteio._scope import (
        NativeIO,
        RemoteIO,
        bind,
        is_remote,
        native_io,
        remote_io,
        status,
        url_to_fs,
    )
    from remoteio._staging import StagedLocal, resume_upload, staged_local
    from remoteio._status import Status
    from remoteio.errors import (
        LocalShadowWarning,
        MissingPackageError,
        NoDescriptorError,
        ObjectChangedError,
        RemoteIOError,
        ScopeError,
        StagingError,
    )

__version__ = "0.1.0"

__all__ = [
    "LocalShadowWarning",
    "MissingPackageError",
    "NativeIO",
    "NoDescriptorError",
    "ObjectChangedError",
    "RemoteIO",
    "RemoteIOError",
    "ScopeError",
    "StagedLocal",
    "StagingError",
    "Status",
    "bind",
    "cache",
    "is_remote",
    "native_io",
    "remote_io",
    "resume_upload",
    "staged_local",
    "status",
    "url_to_fs",
]

# Where each public name is defined. Importing the package alone imports none of them.
_HOMES = {
    **dict.fromkeys(
        ("NativeIO", "RemoteIO", "bind", "is_remote", "native_io", "remote_io", "status", "url_to_fs"), "_scope"
    ),
    **dict.fromkeys(("StagedLocal", "resume_upload", "staged_local"), "_staging"),
    "Status": "_status",
    **dict.fromkeys(
        (
            "LocalShadowWarning",
            "MissingPackageError",
            "NoDescriptorError",
            "ObjectChangedError",
            "RemoteIOError",
            "ScopeError",
            "StagingError",
        ),
        "errors",
    ),
}


if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name):
        home = _HOMES.get(name)
        if name == "cache":
            return importlib.import_module(f"{__name__}.cache")
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
