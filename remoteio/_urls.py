"""URLs as strings: what is one, its parts, its spelling, and what of it may be shown.

Nothing here imports fsspec or touches a store. Which schemes exist is asked through a
function that the caller hands in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOCAL_SCHEMES = frozenset({"file", "local"})

# The schemes that name the same store under another word.
ALIASES = {"s3a": "s3", "gcs": "gs", "local": "file", "abfss": "abfs"}

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)(:/+|::)")
_SECRET_QUERY = re.compile(
    r"(?i)([?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)"
    r"|awsaccesskeyid|googleaccessid|signature|sig|token|access_token|key|api_key|password|secret)=)[^&\s'\"]+"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"]*:[^/\s@'\"]*(?=@)")


@dataclass(frozen=True, slots=True)
class Url:
    """One URL as a caller gave it.

    Attributes:
        given: The very object that was given, for the functions that return it.
        prefix: The caller's spelling of what stands before ``rest``: ``"s3://"``, or the
            collapsed ``"s3:/"`` that pathlib makes of it.
        scheme: The scheme in lower case.
        rest: Everything after the prefix, literally: bucket and key, or a path.
        as_bytes: Whether the caller gave bytes, and so gets bytes.
        chain: Whether it is a chain such as ``simplecache::s3://bucket/key``; then
            ``prefix`` is empty and ``rest`` the whole text.
    """

    given: Any
    prefix: str
    scheme: str
    rest: str
    as_bytes: bool = False
    chain: bool = False

    @property
    def text(self) -> str:
        """The URL in full, with ``://`` also where the caller's was collapsed."""
        if self.chain:
            return self.rest
        written = _HEAD.search(self.prefix)
        scheme = written.group(1) if written else self.scheme
        return f"{scheme}://{self.rest}"

    @property
    def shown(self) -> str:
        """The URL as it may stand in a message: without credentials."""
        return redact(self.text)

    @property
    def is_local(self) -> bool:
        """Whether it names the local file system (``file://``)."""
        return not self.chain and self.scheme in LOCAL_SCHEMES

    @property
    def local_path(self) -> str:
        """The path of a ``file://`` URL."""
        return self.rest

    @property
    def asks_for_directory(self) -> bool:
        """Whether the spelling says "directory": a trailing slash, or a last ``.`` or ``..``."""
        return self.rest.endswith("/") or self.rest.rpartition("/")[2] in (".", "..")

    def spell(self, rest: str) -> str:
        """Another place of the same store, spelled as the caller spelled this one."""
        return self.prefix + rest

    def answer(self, text: str) -> str | bytes:
        """A name or URL for the caller: bytes if bytes were given."""
        return os.fsencode(text) if self.as_bytes else text


def is_virtual(path: Any) -> bool:
    """Whether it is a path of universal_pathlib's kind: no ``os.PathLike``, its text is the URL."""
    return hasattr(type(path), "__vfspath__") and hasattr(path, "protocol")


def find(path: Any, known: Callable[[str], bool]) -> Url | None:
    """Tell whether a path is a URL, and take it apart if so.

    Args:
        path: Anything; only ``str``, ``bytes``, ``os.PathLike`` and a ``UPath`` can be a URL.
        known: Tells of a scheme in lower case whether it is one.

    Returns:
        The URL, or None where the path is local. The forms that ``pathlib`` and
        ``os.path.abspath`` leave of a URL (``s3:/b/k``, ``<cwd>/s3:/b/k``) are URLs.
    """
    if isinstance(path, (str, bytes)):
        raw = path
    elif isinstance(path, os.PathLike):
        raw = os.fspath(path)
    elif is_virtual(path):
        raw = path = str(path)
    else:
        return None
    text = os.fsdecode(raw)
    if ":/" not in text:
        return None
    start = 0
    head = _HEAD.match(text)
    if head is None or not known(head.group(1).lower()):
        start = _behind_working_directory(text)
        head = _HEAD.match(text, start)
        if not start or head is None or not known(head.group(1).lower()):
            return None
    scheme = head.group(1).lower()
    as_bytes = isinstance(raw, bytes)
    if _is_chain(text[start:], known):
        return Url(path, "", scheme, _repair_chain(text[start:]), as_bytes, chain=True)
    if head.group(2) == "::":
        return None
    # Two slashes belong to the scheme; of a collapsed URL one is left. A path of file:// keeps its own.
    prefix_end = head.end(1) + min(len(head.group(2)), 3)
    if head.group(2) == ":/" and ALIASES.get(scheme, scheme) == "file":
        prefix_end -= 1
    return Url(path, text[:prefix_end], scheme, text[prefix_end:], as_bytes)


def _behind_working_directory(text: str) -> int:
    """Where ``os.path.abspath`` of a URL has the URL: behind the working directory."""
    if not text.startswith("/"):
        return 0
    try:
        here = os.getcwd().rstrip("/") + "/"
    except FileNotFoundError:  # the working directory was removed: no path can lie below it
        return 0
    return len(here) if text.startswith(here) else 0


def _is_chain(text: str, known: Callable[[str], bool]) -> bool:
    first, *others = text.split("::")
    if not others:
        return False
    parts = [first, *others]
    named = [part.partition(":/")[0].lower() for part in parts]
    if not all(known(name) for name in named):
        return False
    # "a::b" of two bare words is no URL: somewhere a place must be named.
    return any(":/" in part for part in parts)


def _repair_chain(text: str) -> str:
    return "::".join(re.sub(r"^([A-Za-z][A-Za-z0-9+._-]*):/(?!/)", r"\1://", part) for part in text.split("::"))


def normal_key(rest: str) -> str:
    """Resolve ``.`` and ``..`` lexically and drop trailing slashes.

    An inner ``//`` is part of a key and stays. ``..`` never climbs above the root.

    Args:
        rest: Everything after ``scheme://``.
    """
    stripped = rest.rstrip("/")
    if "/." not in f"/{stripped}":
        return stripped
    kept: list[str] = []
    for part in stripped.split("/"):
        if part == ".":
            continue
        if part == "..":
            if kept:
                kept.pop()
            continue
        kept.append(part)
    return "/".join(kept).rstrip("/")


def normal_bucket_key(rest: str) -> str:
    """The same for ``bucket/key``: ``..`` stops at the bucket."""
    bucket, slash, key = rest.lstrip("/").partition("/")
    inner = normal_key(key)
    return f"{bucket}/{inner}" if slash and inner else bucket


def basename(text: str) -> str:
    """The last segment, trailing slashes aside."""
    return text.rstrip("/").rpartition("/")[2]


def redact(text: str) -> str:
    """Take credentials out of a text: the user part of a URL, signatures and tokens of a query."""
    if "://" not in text and "=" not in text:
        return text
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("***", text))
