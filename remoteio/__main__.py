"""``python -m remoteio``."""

from __future__ import annotations

from remoteio.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
