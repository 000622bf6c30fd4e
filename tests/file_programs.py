"""Random programs over one open file, run on a local file and on a URL: both must say the same."""

# ruff: noqa: SIM115 - how and when a file is closed is what these programs are about

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from typing import Any

TEXTS = ["", "a", "one\ntwo\n", "čau\r\nx\r", "\n", "\r\n\r\r\n", "日本語😀", "x" * 50, "tab\tq\x85\u2028z"]
ENCODINGS = "utf-8 ascii latin-1 utf-16 utf-8-sig cp1250 utf-32-le utf-7 shift_jis locale no-such-codec rot13".split()
HANDLERS = [None, "strict", "ignore", "replace", "backslashreplace", "surrogateescape", "no-such-handler"]
NEWLINES = [None, "", "\n", "\r", "\r\n", "x"]
BAD_MODES: list[Any] = ["", "rw", "rbt", "q", "rr", "b", "+", "r++", "w a", "\u0161", "wb\0", 5, None, b"r"]
BAD_SEEKS: list[tuple[Any, ...]] = [(-1,), (0, 7), (1.5,), (2**70,), (None,), (5, 1), (5, 2), ("a",), (0, -1)]
BAD_SIZES: list[Any] = [-1, "x", 1.5]

STEPS: dict[str, Callable[[Any, int, Any], Any]] = {
    "read": lambda f, n, data: f.read(),
    "read some": lambda f, n, data: f.read(n),
    "read none": lambda f, n, data: f.read(None),
    "readline": lambda f, n, data: f.readline(),
    "readline some": lambda f, n, data: f.readline(n),
    "readlines": lambda f, n, data: f.readlines(n),
    "next": lambda f, n, data: next(f, None),
    "iterate": lambda f, n, data: [line for line, _ in zip(f, range(2), strict=False)],
    "readinto": lambda f, n, data: _readinto(f, n),
    "read1": lambda f, n, data: f.read1(n) if isinstance(f, io.BufferedReader) and not n else None,
    "readall": lambda f, n, data: f.readall(),
    "peek": lambda f, n, data: f.peek(1) is not None,
    "write": lambda f, n, data: f.write(data),
    "write lines": lambda f, n, data: f.writelines([data, data]),
    "write the other kind": lambda f, n, data: f.write(data.encode() if isinstance(data, str) else data.decode()),
    "write a surrogate": lambda f, n, data: f.write("\ud800" if isinstance(data, str) else b""),
    "write a view": lambda f, n, data: f.write(memoryview(data)),
    "seek": lambda f, n, data: f.seek(n if isinstance(data, bytes) else 0),
    "seek on": lambda f, n, data: f.seek(n - 20 if isinstance(data, bytes) else 0, os.SEEK_CUR),
    "seek from end": lambda f, n, data: f.seek(-n if isinstance(data, bytes) else 0, os.SEEK_END),
    "seek badly": lambda f, n, data: f.seek(*BAD_SEEKS[n % len(BAD_SEEKS)]),
    "tell": lambda f, n, data: f.tell(),
    "tell and return": lambda f, n, data: f.seek(f.tell()),
    "truncate": lambda f, n, data: f.truncate(),
    "truncate to": lambda f, n, data: f.truncate(n),
    "truncate badly": lambda f, n, data: f.truncate(BAD_SIZES[n % len(BAD_SIZES)]),
    "flush": lambda f, n, data: f.flush(),
    "attributes": lambda f, n, data: [
        getattr(f, name, None) for name in ("encoding", "errors", "newlines", "line_buffering", "mode", "closed")
    ],
    "abilities": lambda f, n, data: (f.readable(), f.writable(), f.isatty()),
    "size by descriptor": lambda f, n, data: (f.flush(), os.fstat(f.fileno()).st_size) if f.writable() and n < 8 else 0,
    "enter": lambda f, n, data: f.__enter__() is f,
    "close": lambda f, n, data: f.close() if n < 6 else None,
}


def _readinto(file: Any, size: int) -> tuple[int, bytes]:
    buffer = bytearray(size)
    return file.readinto(buffer), bytes(buffer)


def draw(seed: int) -> tuple[Any, dict[str, Any], bytes | None, list[tuple[str, int, str]]]:
    """A mode, keywords of ``open``, what is there before (None for nothing), and steps."""
    choose = random.Random(seed)
    letters = [*choose.choice(["r", "w", "a", "x", "r+", "w+", "a+", "x+"]), *choose.choice(["b", "", "t"])]
    choose.shuffle(letters)
    mode = choose.choice(BAD_MODES) if choose.random() < 0.05 else "".join(letters)
    binary = isinstance(mode, str) and "b" in mode
    keywords: dict[str, Any] = {}
    if choose.random() < 0.4:
        keywords["buffering"] = choose.choice([-1, 0, 2, 7, 64, 8192, -7] if binary else [-1, 1, 2, 7, 64, 0])
    if not binary or choose.random() < 0.05:
        for name, values in ("encoding", ENCODINGS), ("errors", HANDLERS), ("newline", NEWLINES):
            if choose.random() < 0.5:
                keywords[name] = choose.choice(values)
    before = None
    if choose.random() < 0.75:
        before = choose.choice(TEXTS).encode() * choose.randrange(6)
    names = list(STEPS)
    steps = [(choose.choice(names), choose.randrange(40), choose.choice(TEXTS)) for _ in range(choose.randrange(14))]
    return mode, keywords, before, steps


def run(path: str, base: str, mode: Any, keywords: dict[str, Any], steps: list[tuple[str, int, str]]) -> list[Any]:
    """What every step returned or raised, with the base taken out of every name."""
    said: list[Any] = []

    def note(action: Callable[[], Any]) -> Any:
        try:
            result = action()
            said.append(result if isinstance(result, (int, str, bytes, tuple, list)) else type(result) is type(None))
            return result
        except Exception as error:
            said.append(_judged(error, base))
            return None

    try:
        file = open(path, mode, **keywords)
    except Exception as error:
        return [("open", _judged(error, base))]
    said.append((file.name.replace(base, "<base>"), file.mode))
    kinds = (io.RawIOBase, io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
    said.append([isinstance(file, kind) for kind in kinds])
    for name, number, text in steps:
        data: Any = text.encode() if "b" in mode else text
        note(lambda: STEPS[name](file, number, data))  # noqa: B023 - called at once
    note(file.close)
    note(lambda: file.closed)
    note(file.tell)
    note(file.close)
    return said


def _judged(error: Exception, base: str) -> tuple[Any, ...]:
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ in ("builtins", "io", "_io"))
    if isinstance(error, io.UnsupportedOperation | UnicodeError) or not isinstance(error, OSError):
        if isinstance(error, (AttributeError, UnicodeDecodeError)):
            return (kind,)  # names of classes; how far a decoder had got
        return (kind, str(error).replace(base, "<base>"))
    return (kind, error.errno)
