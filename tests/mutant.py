"""A pytest plugin that takes one row out of the table of patches: that function then answers natively for URLs.

python -m pytest -p tests.mutant tests/test_ten.py     # REMOTEIO_MUTANT names the row
"""

from __future__ import annotations

import os
import sys

from remoteio import _patches

_NAME = os.environ["REMOTEIO_MUTANT"]
assert "remoteio._scope" not in sys.modules, "too late: the table was read already"
if _NAME != "none":
    _before = _patches.TEN
    _patches.TEN = tuple(patch for patch in _before if patch.name != _NAME)
    assert len(_patches.TEN) == len(_before) - 1
