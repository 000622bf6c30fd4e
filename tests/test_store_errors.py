"""What the stores' libraries raise, as the built-in errors that a local disk would raise."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from remoteio import _store_errors
from remoteio.errors import ObjectChangedError

aiohttp = pytest.importorskip("aiohttp")  # comes with s3fs; the libraries' own exceptions are the subject
botocore = pytest.importorskip("botocore.exceptions")
gcs_retry = pytest.importorskip("gcsfs.retry")


def client_error(code: str, status: int, message: str = "said so") -> Exception:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = botocore.ClientError(response, "GetObject")
    return error


def translated(error: BaseException) -> OSError:
    return _store_errors.translate(error, "s3://b/k")


CASES = [
    (client_error("404", 404), FileNotFoundError),
    (client_error("NoSuchBucket", 404), FileNotFoundError),
    (client_error("403", 403), PermissionError),
    (client_error("ExpiredToken", 400), PermissionError),
    (client_error("InvalidAccessKeyId", 403), PermissionError),
    (client_error("PreconditionFailed", 412), FileExistsError),
    (client_error("RequestTimeout", 400), TimeoutError),
    (botocore.NoCredentialsError(), PermissionError),
    (botocore.EndpointConnectionError(endpoint_url="http://h"), ConnectionError),
    (botocore.ReadTimeoutError(endpoint_url="http://h"), TimeoutError),
    (botocore.ConnectionClosedError(endpoint_url="http://h"), ConnectionError),
    (botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2), ConnectionError),
    (aiohttp.ServerDisconnectedError(), ConnectionError),
    (aiohttp.ClientPayloadError(), ConnectionError),
    (gcs_retry.HttpError({"code": 401, "message": "Invalid Credentials"}), PermissionError),
    (OSError("Forbidden: b/o\nno access"), PermissionError),
    (FileNotFoundError("b/k"), FileNotFoundError),
    (TimeoutError(), TimeoutError),
]


@pytest.mark.parametrize(
    ("error", "expected"), CASES, ids=lambda value: getattr(value, "__name__", None) or repr(value)[:40]
)
def test_it_is_the_built_in_error_with_errno_and_the_url(error: Exception, expected: type[OSError]) -> None:
    raised = translated(error)
    assert isinstance(raised, expected)
    assert raised.errno is not None and raised.filename == "s3://b/k"


@pytest.mark.parametrize(
    ("code", "status", "number"),
    [
        ("SlowDown", 503, errno.EBUSY),
        ("InternalError", 500, errno.EBUSY),
        ("KeyTooLongError", 400, errno.ENAMETOOLONG),
        ("EntityTooLarge", 400, errno.EFBIG),
        ("NotImplemented", 501, errno.ENOTSUP),
        ("Whatever", 400, errno.EINVAL),
        ("Strange", 0, errno.EIO),
    ],
)
def test_every_code_has_an_errno(code: str, status: int, number: int) -> None:
    assert translated(client_error(code, status)).errno == number


def test_only_what_may_pass_is_tried_again() -> None:
    again = [client_error("SlowDown", 503), client_error("500", 500), aiohttp.ServerDisconnectedError(), TimeoutError()]
    never = [client_error("404", 404), client_error("AccessDenied", 403), ValueError("x"), KeyError("x")]
    assert all(_store_errors.judge(error).retry for error in again)
    assert not any(_store_errors.judge(error).retry for error in never)


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("InvalidArgument", 400, "aws-chunked encoding is not supported with the specified x-amz-content-sha256 value"),
        ("NotImplemented", 501, "A header you provided implies functionality: x-amz-trailer"),
        ("MissingContentLength", 411, "chunked transfer is not supported"),
    ],
)
def test_a_store_without_chunked_checksums_is_told_which_variables_help(code: str, status: int, message: str) -> None:
    said = str(translated(client_error(code, status, message)))
    assert "AWS_REQUEST_CHECKSUM_CALCULATION=when_required" in said
    assert "AWS_RESPONSE_CHECKSUM_VALIDATION=when_required" in said


def test_the_cause_decides_where_a_library_wrapped_it() -> None:
    outer = OSError(errno.EINVAL, "wrapped")
    outer.__cause__ = client_error("AccessDenied", 403)
    assert isinstance(translated(outer), PermissionError)


def test_not_found_of_what_could_not_be_asked_for_is_a_connection_error() -> None:
    error = FileNotFoundError("http://h/x")
    error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    raised = translated(error)
    assert isinstance(raised, ConnectionRefusedError)


def test_what_the_program_was_handling_by_chance_does_not_decide() -> None:
    error = FileNotFoundError("k")
    error.__context__ = TimeoutError()
    assert isinstance(translated(error), FileNotFoundError)


def test_an_error_that_has_its_url_already_stays_itself() -> None:
    error = OSError(errno.EIO, "short", "s3://b/other")
    assert translated(error) is error


def test_no_secret_stands_in_a_message() -> None:
    raised = _store_errors.translate(ValueError("bad sesame in http://u:p@h"), "s3://u:p@b/k", ("sesame",))
    assert "sesame" not in str(raised) and "u:p" not in str(raised)


def test_a_replaced_object_has_its_own_class() -> None:
    assert isinstance(_store_errors.os_error(errno.ESTALE, "s3://b/k"), ObjectChangedError)
