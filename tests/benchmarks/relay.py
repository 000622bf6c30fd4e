"""A TCP relay that caps each connection, cheap enough not to be what is measured.

    python -m tests.benchmarks.relay HOST PORT BYTES_PER_S

Prints its own port, and ends when its standard input does. Bytes go from one socket to the
other within the kernel (``splice``), so that hardly any of the processor is taken from those
who are measured.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time

BLOCK = 2**18  # at once; the cap holds over this many bytes


def pour(source: socket.socket, target: socket.socket, bytes_per_s: float) -> None:
    """Send on what comes, until it ends; what was saved up in a pause is not spent after it."""
    into, out_of = -1, -1
    try:
        out_of, into = os.pipe()
        due = time.monotonic()
        while count := os.splice(source.fileno(), into, BLOCK):
            due = max(due, time.monotonic() - BLOCK / bytes_per_s) + count / bytes_per_s
            while count:
                count -= os.splice(out_of, target.fileno(), count)
            time.sleep(max(0.0, due - time.monotonic()))
    except OSError:
        pass  # one of the two has gone: so does the other
    finally:
        for descriptor in (into, out_of):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def serve(listener: socket.socket, upstream: tuple[str, int], bytes_per_s: float) -> None:
    """Relay every connection, each way in a thread of its own."""
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(upstream)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pour, args=(*pair, bytes_per_s), daemon=True).start()


def main() -> None:
    host, port, bytes_per_s = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=serve, args=(listener, (host, int(port)), float(bytes_per_s)), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
