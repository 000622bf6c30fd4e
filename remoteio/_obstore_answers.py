"""What obstore's exceptions say, which tell it in words only."""

from __future__ import annotations

import errno
import re

# The store wants to be asked in another way, as its own client finds out by itself.
ELSEWHERE = (301, 302, 307, 308, 400, 405, 501)
# Its answers to ranges that came with another status or header than obstore wants to see.
_RANGE = re.compile(r"\b(NotPartial|NoContentRange|ParseContentRange|InvalidContentRange|UnexpectedRange)\b")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


class Answer(Exception):
    """An answer of the store that is not a success, told as botocore tells it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


def as_answer(error: Exception) -> Exception:
    """obstore tells what happened in words only: they are read here."""
    text = str(error)
    status = _STATUS.search(text)
    if status is not None:
        code, message = _CODE.search(text), _MESSAGE.search(text)
        number = status.group(1)
        return Answer(int(number), code.group(1) if code else number, message.group(1) if message else "")
    first = text.partition("\n")[0]
    if "BareRedirect" in text:
        return Answer(301, "PermanentRedirect", first)
    if "Connection refused" in text:
        return ConnectionRefusedError(errno.ECONNREFUSED, first)
    if "kind: Timeout" in text:
        return TimeoutError(errno.ETIMEDOUT, first)
    if "kind: Connect" in text:
        return Unreachable(first)
    if _RANGE.search(text):
        return Misread(first)
    if "HttpError" in text:
        return ConnectionResetError(errno.ECONNRESET, first)
    return error


class Misread(Exception):
    """The store answered something that obstore does not take for an answer."""


class Unreachable(ConnectionError):
    """The server could not be reached, or its certificate is not trusted."""
