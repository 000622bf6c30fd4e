"""The command ``remoteio``: the node cache, and the copies it keeps of uploads that failed."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence

from remoteio import cache

_ACTIONS = (
    ("list", "what is in it"),
    ("size", "its bytes"),
    ("kept", "the copies that are kept because their uploads failed"),
    ("clear", "remove entries"),
    ("limit", "remove old ones"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="remoteio", description="File functions on URLs, and their node cache.")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser("cache", help="the node cache of staged_local")
    actions = command.add_subparsers(required=True, metavar="action")
    for name, said in _ACTIONS:
        action = actions.add_parser(name, help=said)
        action.set_defaults(run=globals()[f"_{name}"])
        action.add_argument("--cache-dir", help="the cache (default: $LOCAL_CACHE_DIR)")
        if name == "clear":
            action.add_argument("url", nargs="?", help="only this URL and what is below it")
            action.add_argument("--kept", action="store_true", help="the kept copies of failed uploads, and no entry")
        if name == "limit":
            action.add_argument("size", type=_bytes, help="what may remain, such as 500M or 20G")
    options = parser.parse_args(arguments)
    about_kept = options.run is _kept or getattr(options, "kept", False)
    if not about_kept and not options.cache_dir and not os.environ.get("LOCAL_CACHE_DIR"):
        parser.error("no cache is named: give --cache-dir, or set LOCAL_CACHE_DIR")
    try:
        options.run(options)
    except OSError as error:
        print(f"remoteio: {error}", file=sys.stderr)
        return 1
    return 0


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _list(options: argparse.Namespace) -> None:
    for entry in cache.list(options.cache_dir):
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{entry.size:>16,}  {used}  {'in use' if entry.in_use else '      '}  {entry.url}")

    _hint(options)


def _size(options: argparse.Namespace) -> None:
    print(f"{cache.size(options.cache_dir):,}")
    _hint(options)


def _hint(options: argparse.Namespace) -> None:
    """Tell of kept copies beside the output, which stays as it is for those who read it by program."""
    found = cache.kept(options.cache_dir)
    if found:
        size = sum(one.size for one in found)
        print(f"and {size:,} bytes of uploads that failed: see `remoteio cache kept`", file=sys.stderr)


def _kept(options: argparse.Namespace) -> None:
    for one in cache.kept(options.cache_dir):
        age = _age(time.time() - one.since)
        print(f"{one.size:>16,}  {age:>8}  {'in use' if one.in_use else '      '}  {one.url}  {one.path}")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _clear(options: argparse.Namespace) -> None:
    print(f"{cache.clear(options.url, options.cache_dir, kept=options.kept):,} bytes freed")


def _limit(options: argparse.Namespace) -> None:
    print(f"{cache.limit(options.size, options.cache_dir):,} bytes freed")
