"""What a store's library raised, said as the built-in OSError that a local disk would raise.

Exceptions are told apart by the names of their classes and by their codes, so that no
store's library need be imported to understand another's.

Source: Amazon S3 API reference, "Error responses"; Cloud Storage JSON API, "HTTP status
and error codes"; botocore's and aiohttp's exception hierarchies.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from remoteio import _urls
from remoteio.errors import ObjectChangedError

CHECKSUM_ADVICE = (
    "the store does not support chunked checksums: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required "
    "and AWS_RESPONSE_CHECKSUM_VALIDATION=when_required"
)
CREDENTIALS_ADVICE = (
    "no credentials were found: set them in the environment, in fsspec's configuration or as storage_options"
)

_DENIED = frozenset(
    "AccessDenied AccountProblem AllAccessDisabled AllAccessDenied ExpiredToken InvalidAccessKeyId InvalidToken "
    "InvalidPayer InvalidSecurity NotSignedUp RequestTimeTooSkewed SignatureDoesNotMatch TokenRefreshRequired "
    "Forbidden Unauthorized AuthorizationHeaderMalformed InvalidObjectState 401 403".split()
)
_MISSING = frozenset("NoSuchBucket NoSuchKey NoSuchUpload NoSuchVersion InvalidBucketName NotFound 404".split())
_BUSY = frozenset(
    "SlowDown ServiceUnavailable InternalError RequestTimeout Throttling ThrottlingException TooManyRequests".split()
)
_CONFLICT = frozenset("PreconditionFailed ConditionalRequestConflict BlobAlreadyExists 412".split())
_SPOILT = frozenset({"BadDigest", "XAmzContentChecksumMismatch"})  # the body changed on its way
_BUSY_STATUS = frozenset({408, 429, 500, 502, 503, 504})

_NO_CREDENTIALS = frozenset(
    "NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError SSOTokenLoadError "
    "UnauthorizedSSOTokenError DefaultCredentialsError RefreshError ProfileNotFound NoAuthTokenError".split()
)
_TIMEOUT = frozenset(
    "ReadTimeoutError ConnectTimeoutError FSTimeoutError TimeoutError ServerTimeoutError Timeout".split()
)
_BROKEN = frozenset(
    "ConnectionClosedError ServerDisconnectedError ClientPayloadError IncompleteReadError IncompleteRead "
    "ResponseStreamingError ChunkedEncodingError ContentLengthError ResponseParserError ClientOSError "
    "ConnectionResetError BrokenPipeError ProxyError ProxyConnectionError".split()
)
_NEVER_THERE = frozenset({"EndpointConnectionError", "ClientConnectorError"})
_UNREACHABLE = frozenset(
    "ClientConnectionError HTTPClientError ConnectionError SSLError NoRegionError gaierror TransportError".split()
)


class Verdict(NamedTuple):
    """What an exception means: an errno, whether to try again, and what the store said."""

    number: int
    retry: bool
    detail: str


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what caused it, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def judge(error: BaseException) -> Verdict:
    """Say what an exception of a store's library means."""
    if _is_said(error):
        assert isinstance(error, OSError) and error.errno is not None
        return Verdict(error.errno, False, str(error.strerror))
    links = list(chain(error))
    for link in links:
        verdict = _by_response(link)
        if verdict is not None:
            return verdict
    for link in _causes(error):
        # A library may say "not found" of what it could not even ask for (fsspec's http does).
        verdict = _of_connection(link, links)
        if verdict is not None:
            return verdict
    for link in links:
        verdict = _by_class(link, links)
        if verdict is not None:
            return verdict
    return Verdict(errno.EIO, False, f"{type(error).__name__}: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an exception was raised from, by the library's own word: not what the program was handling by chance."""
    link = error.__cause__
    while link is not None and link is not link.__cause__:
        yield link
        link = link.__cause__


def _is_said(error: BaseException) -> bool:
    """Whether it is an OSError that has its errno and its file already, as no store's library gives it."""
    return isinstance(error, OSError) and isinstance(error.errno, int) and error.filename is not None


def _by_response(error: BaseException) -> Verdict | None:
    """Read an answer: botocore's ClientError, gcsfs's HttpError, aiohttp's ClientResponseError, azure's own."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and isinstance(response.get("Error"), dict):
        code = str(response["Error"].get("Code", ""))
        said = str(response["Error"].get("Message", ""))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
        return _by_code(code, status, said)
    if _names(error) & {"HttpError", "ClientResponseError"}:
        given = str(getattr(error, "code", None) or getattr(error, "status", None))
        if given.isdigit():
            return _by_code(given, int(given), str(getattr(error, "message", error)))
    answered = getattr(error, "status_code", None) if "HttpResponseError" in _names(error) else None
    if answered:
        return _by_code(str(getattr(error, "error_code", None) or answered), int(answered), _first_line(error))
    return None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _by_code(code: str, status: int, said: str) -> Verdict:
    detail = f"{code}: {said}" if said else code
    if _is_about_checksums(code, status, said):
        return Verdict(errno.EINVAL, False, f"{CHECKSUM_ADVICE} ({detail})")
    if code in _CONFLICT or status == 412:
        return Verdict(errno.EEXIST, False, detail)
    if code in _MISSING or (status == 404 and code not in _DENIED):
        return Verdict(errno.ENOENT, False, "" if code in ("404", "NoSuchKey", "NotFound") else detail)
    if code in _DENIED or status in (401, 403):
        return Verdict(errno.EACCES, False, detail)
    if code in _BUSY or status in _BUSY_STATUS:
        number = errno.ETIMEDOUT if code == "RequestTimeout" or status in (408, 504) else errno.EBUSY
        return Verdict(number, True, detail)
    if code in _SPOILT:
        return Verdict(errno.EIO, True, detail)
    if code == "KeyTooLongError":
        return Verdict(errno.ENAMETOOLONG, False, detail)
    if code in ("EntityTooLarge", "MaxMessageLengthExceeded"):
        return Verdict(errno.EFBIG, False, detail)
    if code in ("MethodNotAllowed", "NotImplemented") or status in (405, 501):
        return Verdict(errno.ENOTSUP, False, detail)
    if code in ("InvalidRange", "416"):
        return Verdict(errno.ERANGE, False, detail)
    if code == "QuotaExceeded" or status == 507:
        return Verdict(errno.ENOSPC, False, detail)
    return Verdict(errno.EINVAL if 400 <= status < 500 else errno.EIO, False, detail)


def _is_about_checksums(code: str, status: int, said: str) -> bool:
    text = f"{code} {said}".lower()
    about = ("aws-chunked", "streaming-", "x-amz-trailer", "x-amz-sdk-checksum", "chunked", "contentsha256mismatch")
    return status in (0, 400, 403, 411, 501) and any(word in text for word in about)


def _names(error: BaseException) -> frozenset[str]:
    return frozenset(cls.__name__ for cls in type(error).__mro__)


def _of_connection(error: BaseException, links: list[BaseException]) -> Verdict | None:
    """The store was not reached, or not to the end, or by nobody: then it said nothing of the file."""
    names = _names(error)
    text = str(error) or type(error).__name__
    if names & _NO_CREDENTIALS:
        return Verdict(errno.EACCES, False, f"{CREDENTIALS_ADVICE} ({text})")
    if names & _TIMEOUT:
        return Verdict(errno.ETIMEDOUT, True, text)
    if names & _NEVER_THERE:
        return Verdict(_refused_or_unreachable(links), True, text)
    if names & _BROKEN:
        return Verdict(errno.ECONNRESET, True, text)
    if names & _UNREACHABLE:
        return Verdict(_refused_or_unreachable(links), True, text)
    return None


def _refused_or_unreachable(links: list[BaseException]) -> int:
    refused = any(isinstance(link, OSError) and link.errno == errno.ECONNREFUSED for link in links)
    return errno.ECONNREFUSED if refused else errno.EHOSTUNREACH


def _by_class(error: BaseException, links: list[BaseException]) -> Verdict | None:
    names = _names(error)
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and text.startswith("Forbidden"):  # gcsfs says 403 so
        return Verdict(errno.EACCES, False, text.replace("\n", " "))
    if names & {"FileNotFoundError", "FileExistsError", "PermissionError", "IsADirectoryError", "NotADirectoryError"}:
        assert isinstance(error, OSError)
        return Verdict(error.errno or _number_of(error), False, "" if error.errno else text)
    verdict = _of_connection(error, links)
    if verdict is not None:
        return verdict
    if "ParamValidationError" in names:
        missing = "bucket name" in text.lower()
        return Verdict(errno.ENOENT if missing else errno.EINVAL, False, text.replace("\n", " "))
    if isinstance(error, OSError) and error.errno and type(error.errno) is int:
        return Verdict(error.errno, False, "" if error.strerror == os.strerror(error.errno) else str(error.strerror))
    if isinstance(error, TypeError):  # an option that the library does not know
        return Verdict(errno.EINVAL, False, f"are the store's options right? {text}")
    if isinstance(error, (ValueError, NotImplementedError)):
        number = errno.ENOTSUP if isinstance(error, NotImplementedError) else errno.EINVAL
        return Verdict(number, False, text)
    return None


def _number_of(error: OSError) -> int:
    numbers = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        PermissionError: errno.EACCES,
        IsADirectoryError: errno.EISDIR,
        NotADirectoryError: errno.ENOTDIR,
    }
    return next((number for cls, number in numbers.items() if isinstance(error, cls)), errno.EIO)


def os_error(number: int, url: str, detail: str = "", secrets: Iterable[str] = ()) -> OSError:
    """The built-in OSError of a number, with the URL as its filename and no secret in its words."""
    said = os.strerror(number)
    if detail:
        said = f"{said} ({scrub(detail, secrets)})"
    shown = _urls.redact(url)
    if number == errno.ESTALE:
        return ObjectChangedError(number, said, shown)
    if number in (errno.EHOSTUNREACH, errno.EPROTO):
        # OSError picks ConnectionError for the errnos of a broken connection only.
        return ConnectionError(number, said, shown)
    return OSError(number, said, shown)


def translate(error: BaseException, url: str, secrets: Iterable[str] = ()) -> OSError:
    """The built-in OSError for whatever a store's library raised."""
    if _is_said(error):
        assert isinstance(error, OSError)
        return error
    verdict = judge(error)
    return os_error(verdict.number, url, verdict.detail, secrets)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Take credentials out of a text: those of URLs, and the given ones wherever they stand."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _urls.redact(text)
