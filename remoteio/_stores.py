"""The one door to fsspec: which schemes exist, which store a URL means, with which options."""

from __future__ import annotations

import errno
import importlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from remoteio import _store_errors, _urls, _vendors
from remoteio._settings import DEFAULT, Settings
from remoteio._store import Store
from remoteio._urls import Url
from remoteio.errors import MissingPackageError

__all__ = ["Location", "known", "parse", "resolve", "url_to_fs"]

EXTRAS = {"s3": "s3", "gs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
BUCKET_PROTOCOLS = frozenset({"s3", "gs"})
_ENVIRONMENT = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "FSSPEC_", "GCSFS_")
SECRET_LENGTH = 6  # a shorter word may stand in a message by chance, and would hide what it says
_SECRET_WORDS = ("secret", "token", "password", "passwd", "key", "credential", "sas", "account_key")

# One store per scheme and options, the ones used last: options may hold a token that is another one every hour, and
# a store holds its connections and some 15 MB of the client's. Plain dictionary operations are atomic, so no lock can
# be held over a fork; two threads that race make two stores, of which one is used.
_CACHE: dict[Any, Store] = {}
STORES_KEPT = 32
_uses = itertools.count(1)
_KNOWN: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """A URL with its store and its key there.

    Attributes:
        url: As the caller gave it.
        store: Where it is kept.
        key: Its key in the store.
        wants_directory: Whether the spelling says "directory" (a trailing slash).
    """

    url: Url
    store: Store
    key: str
    wants_directory: bool

    @property
    def is_root(self) -> bool:
        """Whether it is the root of a store, or a bucket."""
        return not self.key.strip("/") or (self.store.has_buckets and "/" not in self.key)

    def error(self, number: int, detail: str = "") -> OSError:
        """The built-in OSError of an errno, about this URL."""
        return _store_errors.os_error(number, self.url.text, detail)

    def child(self, name: str) -> Location:
        """An entry of this directory."""
        rest = f"{self.url.rest.rstrip('/')}/{name}"
        url = Url(self.url.prefix + rest, self.url.prefix, self.url.scheme, rest, self.url.as_bytes, self.url.chain)
        return Location(url, self.store, f"{self.key}/{name}" if self.key else name, False)


def known(scheme: str) -> bool:
    """Whether fsspec knows a scheme, the installed vendors' included."""
    found = _KNOWN.get(scheme)
    if found:
        return True
    from fsspec.registry import known_implementations, registry

    if not _KNOWN:
        _vendors.register()
    found = scheme in registry or scheme in known_implementations
    _KNOWN[scheme] = found
    return found


def parse(path: Any, settings: Settings = DEFAULT) -> Url | None:
    """The URL that a path is, or None where it is local.

    Raises:
        TypeError: ``__fspath__`` of a path-like object does not return str or bytes.
    """
    url = _urls.find(path, known)
    if url is None or settings.schemes is None:
        return url
    allowed = {_urls.ALIASES.get(scheme, scheme) for scheme in settings.schemes}
    return url if _urls.ALIASES.get(url.scheme, url.scheme) in allowed else None


def resolve(url: Url, settings: Settings = DEFAULT) -> Location:
    """The store of a URL and the key in it.

    Raises:
        ValueError: The URL holds a null byte.
        OSError: The key is not text that UTF-8 can hold, or the store's options are wrong.
        MissingPackageError: The package of the scheme is not installed.
    """
    if "\0" in url.rest:
        raise ValueError("embedded null byte")
    try:
        url.rest.encode()
    except UnicodeEncodeError:
        raise _store_errors.os_error(
            errno.EILSEQ, url.text.encode(errors="replace").decode(), "keys are UTF-8"
        ) from None
    protocol = _urls.ALIASES.get(url.scheme, url.scheme)
    options = options_for(url, settings)
    if url.chain:
        return _resolve_chain(url, options)
    if protocol == "file":
        path = url.local_path
        return Location(
            url, _cached("file", {}, lambda: _local_store()), path.rstrip("/") or "/", url.asks_for_directory
        )
    store, key = _open_store(protocol, url, options)
    return Location(url, store, key, url.asks_for_directory)


def options_for(url: Url, settings: Settings) -> dict[str, Any]:
    """The options of a URL's store: of the innermost scope that names it, by its longest matching prefix."""
    text = url.text
    scheme = _urls.ALIASES.get(url.scheme, url.scheme)
    for table in settings.storage_options:
        best: tuple[int, Mapping[str, Any]] | None = None
        for name, options in table.items():
            length = _match(name, text, scheme)
            if length is not None and (best is None or length > best[0]):
                best = (length, options)
        if best is not None:
            return dict(best[1])
    return {}


def _match(name: str, text: str, scheme: str) -> int | None:
    """How much of a URL a name of the options table covers: a scheme, or a prefix up to a slash."""
    given, mark, rest = name.partition("://")
    if _urls.ALIASES.get(given.lower(), given.lower()) != scheme:
        return None
    if not mark or not rest:
        return 0
    own = text.partition("://")[2]
    stem = rest.rstrip("/")
    return len(stem) if own == stem or own.startswith(f"{stem}/") else None


def _local_store() -> Store:
    from remoteio._store_local import LocalStore

    return LocalStore()


def _open_store(protocol: str, url: Url, options: dict[str, Any]) -> tuple[Store, str]:
    if protocol == "memory":
        from remoteio._store_memory import MemoryStore

        key = _urls.normal_key(url.rest.lstrip("/"))
        return _cached(protocol, options, lambda: MemoryStore(protocol, _opener(protocol, options), ())), key
    if protocol in BUCKET_PROTOCOLS:
        cls = _filesystem_class(protocol)
        kind = _bucket_store_class(protocol)
        secrets = _secrets(options)
        store = _cached(
            protocol, options, lambda: kind(protocol, lambda: _open_bucket_fs(protocol, cls, options), secrets)
        )
        return store, _urls.normal_bucket_key(url.rest)
    return _open_generic(protocol, url, options)


def _bucket_store_class(protocol: str) -> Any:
    if protocol == "s3":
        from remoteio._store_s3 import S3Store

        return S3Store
    from remoteio._store_gcs import GCSStore

    return GCSStore


def _open_generic(protocol: str, url: Url, options: dict[str, Any]) -> tuple[Store, str]:
    from remoteio._store_generic import GenericStore

    cls = _filesystem_class(protocol)
    from_url = cls._get_kwargs_from_urls(url.text)
    from_url.pop("path", None)
    options = {**from_url, **options}  # the host is part of a store: two hosts never share one
    secrets = _secrets(options)
    store = _cached(protocol, options, lambda: GenericStore(protocol, _opener(protocol, options), secrets))
    head, mark, rest = url.text.partition("://")
    host, slash, path = rest.partition("/")
    key = str(cls._strip_protocol(f"{head}{mark}{host}{slash}{_urls.normal_key(path)}"))
    return store, key.rstrip("/") if key.strip("/") else key


def _resolve_chain(url: Url, options: dict[str, Any]) -> Location:
    import fsspec.core

    from remoteio._store_generic import GenericStore

    try:
        _, key = fsspec.core.url_to_fs(url.rest, **options)
    except ImportError as error:
        raise _missing(url.scheme, error) from error
    except Exception as error:  # the parts of a chain raise their own classes
        raise _store_errors.translate(error, url.text, _secrets(options)) from error
    text = url.rest
    make: Callable[[], Any] = lambda: fsspec.core.url_to_fs(text, **options)[0]  # noqa: E731
    # A new one each time: a chain may go through an archive, whose directory is read when it is opened.
    store = GenericStore(url.scheme, make, _secrets(options), shown=text)
    return Location(url, store, str(key).rstrip("/"), url.asks_for_directory)


def _cached(name: str, options: Mapping[str, Any], make: Callable[[], Store]) -> Store:
    environment: tuple[tuple[str, str], ...] = ()
    if name in BUCKET_PROTOCOLS:
        # Where no option says otherwise the environment decides, so another environment is another store.
        environment = tuple((key, value) for key, value in os.environ.items() if key.startswith(_ENVIRONMENT))
    token = (name, _frozen(options), environment, _frozen(_configured(name)))
    store = _CACHE.get(token)
    if store is None:
        store = _CACHE.setdefault(token, make())
    store.last_use = next(_uses)
    while len(_CACHE) > STORES_KEPT:
        _CACHE.pop(min(list(_CACHE), key=_last_use), None)
    return store


def _last_use(token: Any) -> int:
    store = _CACHE.get(token)
    return store.last_use if store is not None else 0


def _configured(protocol: str) -> Mapping[str, Any]:
    from fsspec.config import conf

    found = conf.get(protocol, {})
    return found if isinstance(found, Mapping) else {}


def _frozen(value: Any) -> Any:
    """A value as a dictionary key: equal options give equal keys."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple, set)):
        return tuple(_frozen(inner) for inner in value)
    return value if isinstance(value, (str, int, float, bool, bytes, type(None))) else (type(value).__name__, id(value))


def _secrets(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The values among options that must never be shown."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += _secrets(value)
        elif isinstance(value, str) and len(value) >= SECRET_LENGTH and any(w in name.lower() for w in _SECRET_WORDS):
            found.append(value)
    return tuple(sorted(found, key=len, reverse=True))


def _filesystem_class(protocol: str) -> Any:
    import fsspec

    if protocol == "gs" and (os.environ.get("STORAGE_EMULATOR_HOST") or os.environ.get("FSSPEC_GCS_ENDPOINT_URL")):
        return _plain_gcs_class()
    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise _missing(protocol, error) from error


def _plain_gcs_class() -> Any:
    """gcsfs's plain class: its experimental one asks the storage layout over gRPC, which no emulator answers."""
    try:
        return importlib.import_module("gcsfs.core").GCSFileSystem
    except ImportError as error:
        raise _missing("gs", error) from error


def _missing(protocol: str, error: ImportError) -> MissingPackageError:
    extra = EXTRAS.get(_urls.ALIASES.get(protocol, protocol))
    advice = f"install it with: pip install 'remoteio[{extra}]'" if extra else str(error)
    return MissingPackageError(f"the package for {protocol}:// is not installed; {advice}", name=error.name)


def _opener(protocol: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: _open_fs(_filesystem_class(protocol), options)


def _open_fs(cls: Any, options: Mapping[str, Any]) -> Any:
    """A filesystem of our own: not shared through fsspec's cache, without a cache of listings."""
    try:
        return cls(**{"use_listings_cache": False, "skip_instance_cache": True, **options})
    except ImportError as error:  # some classes import their package only now
        raise _missing(_protocol_of(cls), error) from error


def _protocol_of(cls: Any) -> str:
    protocol = cls.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])


def _open_bucket_fs(protocol: str, cls: Any, options: Mapping[str, Any]) -> Any:
    """The same for s3fs and gcsfs, whose own retries are turned off: they are this package's (``_store_loop``)."""
    fs = _open_fs(cls, options)
    if protocol == "s3":
        fs.retries = 1
        fs.config_kwargs = {"retries": {"total_max_attempts": 1}, **(fs.config_kwargs or {})}
    else:
        once = cls._request.__wrapped__
        fs._request = lambda *args, **kwargs: once(fs, *args, **kwargs)
    return fs


def url_to_fs(path: Any, settings: Settings = DEFAULT) -> tuple[Any, Any]:
    """The fsspec filesystem of a URL and the path in it; ``(None, path)`` for a local path.

    Raises:
        ImportError: The package of the scheme is not installed.
    """
    url = parse(path, settings)
    if url is None:
        return None, path
    location = resolve(url, settings)
    if isinstance(location.key, str) and location.store.protocol == "memory":
        return location.store.fs, f"/{location.key}"
    return location.store.fs, location.key
