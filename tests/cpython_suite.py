"""Run one module of CPython's own tests, inside a scope or outside, and write down what passed.

python -m tests.cpython_suite test_glob OUTPUT.json [--inside [TABLE]]
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import unittest
from typing import Any


class Record(unittest.TextTestResult):
    """Remembers the outcome of every test by its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test.id())


def run(name: str) -> dict[str, Any]:
    """Import the module, run its tests and return what came of them."""
    from test import support

    support.use_resources = []  # as regrtest without -u: nothing large, no network
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
    with open(os.devnull, "w") as nowhere:
        result = unittest.TextTestRunner(stream=nowhere, resultclass=Record).run(suite)
    assert isinstance(result, Record)
    return {
        "ran": result.testsRun,
        "passed": sorted(set(result.passed)),
        "failed": {test.id(): text[-1500:] for test, text in [*result.failures, *result.errors]},
    }


def main() -> None:
    """Read the command line, run, write."""
    name, output, *options = sys.argv[1:]
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if options[:1] == ["--inside"]:
        import remoteio

        scope = remoteio.remote_io(also=options[1:])
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with scope:
            found = run(name)
        os.chdir(here)
    with open(output, "w") as handle:
        json.dump(found, handle)


if __name__ == "__main__":
    main()
