"""The exceptions of this package, each also a built-in class.

What a store says about a file (missing, denied, unreachable) is raised as the plain
built-in class, with ``errno`` and the URL in ``filename``, so that code written for a
local disk catches what it always caught. The classes here name what only this package
can say.
"""

from __future__ import annotations

import io

__all__ = [
    "LocalShadowWarning",
    "MissingPackageError",
    "NoDescriptorError",
    "ObjectChangedError",
    "RemoteIOError",
    "ScopeError",
    "StagingError",
]


class RemoteIOError(Exception):
    """Base of every exception that is this package's own."""


class ScopeError(RemoteIOError, RuntimeError):
    """A scope was left by a thread that had not entered it, or left twice."""


class MissingPackageError(RemoteIOError, ImportError):
    """A URL needs a package that is not installed; the message names the extra."""


class NoDescriptorError(RemoteIOError, io.UnsupportedOperation):
    """A remote file opened for reading has no file descriptor; use ``staged_local``."""


class ObjectChangedError(RemoteIOError, OSError):
    """The object was replaced by somebody else while it was being read."""


class StagingError(RemoteIOError, OSError):
    """A staged copy could not be fetched or sent back; the message says what is kept where.

    Attributes:
        kept_path: Where the local copy is kept, for ``resume_upload``; None where nothing is kept.
    """

    kept_path: str | None = None


class LocalShadowWarning(UserWarning):
    """While a scope was open something took a URL for a local path and made a folder such as ``s3:`` of it."""
