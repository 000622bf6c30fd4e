"""A filesystem of a vendor's kind: fsspec's interface over a folder of this machine, under a scheme of its own.

What remoteio knows of it is that interface alone, as of sftp, hdfs and the vendors' own.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

__all__ = ["SCHEME", "DiskFileSystem"]

SCHEME = "testdisk"


class DiskFileSystem(DirFileSystem):  # type: ignore[misc]
    """Files below one folder."""

    protocol = SCHEME

    def __init__(self, folder: str | None = None, auto_mkdir: bool = False, **options: Any) -> None:
        """Serve a folder; the one for temporary files where none is named."""
        super().__init__(folder or tempfile.gettempdir(), LocalFileSystem(auto_mkdir=auto_mkdir), **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return os.fspath(path).removeprefix(f"{SCHEME}://").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"{SCHEME}://{self._strip_protocol(name)}"


fsspec.register_implementation(SCHEME, DiskFileSystem, clobber=True)
