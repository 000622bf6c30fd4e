"""What is a URL, what its parts are, and what of it may be shown."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from remoteio import _urls

SCHEMES = {"s3", "s3a", "gs", "gcs", "file", "local", "memory", "zip", "simplecache", "http"}


def find(path: Any) -> _urls.Url | None:
    return _urls.find(path, SCHEMES.__contains__)


class PathLike:
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "/a/b",
        "./s3:/b",
        "c:/x",
        "nosuch://b/k",
        "s3:b",
        "s3",
        "://b",
        "a/s3://b",
        "x::s3://b/k",
        "simplecache::x",
        3,
        None,
        b"",
        b"/a:/b",
        PurePosixPath("/a"),
    ],
)
def test_local_paths_are_local(path: Any) -> None:
    assert find(path) is None


@pytest.mark.parametrize(
    ("path", "prefix", "scheme", "rest", "text"),
    [
        ("s3://b/k", "s3://", "s3", "b/k", "s3://b/k"),
        ("S3://b/K", "S3://", "s3", "b/K", "S3://b/K"),
        ("s3:/b/k", "s3:/", "s3", "b/k", "s3://b/k"),
        ("gcs://b", "gcs://", "gcs", "b", "gcs://b"),
        ("file:///a/b", "file://", "file", "/a/b", "file:///a/b"),
        ("file:/a/b", "file:", "file", "/a/b", "file:///a/b"),
        ("memory:///a", "memory://", "memory", "/a", "memory:///a"),
        ("s3://b/run::1/x", "s3://", "s3", "b/run::1/x", "s3://b/run::1/x"),
        ("s3://b/a?b*[c]#d%20+", "s3://", "s3", "b/a?b*[c]#d%20+", "s3://b/a?b*[c]#d%20+"),
        ("s3://b/a//c/", "s3://", "s3", "b/a//c/", "s3://b/a//c/"),
    ],
)
def test_urls_are_taken_apart(path: str, prefix: str, scheme: str, rest: str, text: str) -> None:
    url = find(path)
    assert url is not None
    assert (url.prefix, url.scheme, url.rest, url.text) == (prefix, scheme, rest, text)
    assert url.prefix + url.rest == path


def test_pathlib_and_abspath_leave_a_url_a_url() -> None:
    for path in [
        Path("s3://b/k"),
        os.path.abspath("s3://b/k"),
        os.path.normpath("s3://b/k"),
        Path("s3://b/k").absolute(),
    ]:
        url = find(path)
        assert url is not None, path
        assert url.text == "s3://b/k"


def test_a_removed_working_directory_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find("/a:/b") is None


def test_bytes_and_path_like_objects_are_urls() -> None:
    given = PathLike(b"s3://b/k\xff")
    url = find(given)
    assert url is not None
    assert url.given is given and url.as_bytes
    assert url.answer("k\udcff") == b"k\xff"


def test_a_path_like_that_is_none_of_it_raises_as_the_standard_library_does() -> None:
    with pytest.raises(TypeError):
        find(PathLike(3))


@pytest.mark.parametrize(
    "path",
    [
        "simplecache::s3://b/k",
        "zip://in.txt::s3://b/a.zip",
        "simplecache::zip://x::memory://a.zip",
        "zip://x::file:///a",
    ],
)
def test_chains_of_known_schemes_are_chains(path: str) -> None:
    url = find(path)
    assert url is not None and url.chain
    assert url.text == path


def test_spelling_is_the_callers() -> None:
    for path in ["s3:/b/k", "S3://b/k", "file:/a/k"]:
        url = find(path)
        assert url is not None
        assert url.spell(url.rest + "/x") == path + "/x"


@pytest.mark.parametrize(
    ("rest", "key"),
    [
        ("b", "b"),
        ("b/", "b"),
        ("b//", "b"),
        ("b/a/./c/", "b/a/c"),
        ("b/a/../c", "b/c"),
        ("b/../../../c", "b/c"),
        ("b/a/..", "b"),
        ("b/a//c", "b/a//c"),
        ("b/...", "b/..."),
        ("b/.a/..b", "b/.a/..b"),
        ("/b/k", "b/k"),
        ("", ""),
    ],
)
def test_keys_are_resolved_lexically_inside_the_bucket(rest: str, key: str) -> None:
    assert _urls.normal_bucket_key(rest) == key


@pytest.mark.parametrize("rest", ["b/a/", "b/a/.", "b/a/..", "b/a//"])
def test_a_spelling_can_ask_for_a_directory(rest: str) -> None:
    url = find(f"s3://{rest}")
    assert url is not None and url.asks_for_directory


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ftp://user:pass@host/x", "ftp://***@host/x"),
        ("http://h/x?X-Amz-Signature=abc&n=1", "http://h/x?X-Amz-Signature=***&n=1"),
        ("http://h/x?a=1&sig=abc%2F", "http://h/x?a=1&sig=***"),
        ("s3://b/at@x:y.txt", "s3://b/at@x:y.txt"),
        ("s3://b/k=1", "s3://b/k=1"),
    ],
)
def test_credentials_are_not_shown(text: str, shown: str) -> None:
    assert _urls.redact(text) == shown
