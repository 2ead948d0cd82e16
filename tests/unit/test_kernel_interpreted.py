"""The kernels' tests again with interpreted kernels, where every access is checked against the bounds of its array.

Compiled kernels check no bounds. The same source as plain Python raises when it leaves an array, and warns when an
integer overflows; here the warning is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.protocol.storage.arrays.jit import INTERPRETED

TESTS = Path(__file__).parents[1]


@pytest.mark.long(seconds=30)
@pytest.mark.timeout(300)
@pytest.mark.skipif(INTERPRETED, reason="this is that run")
def test_no_kernel_leaves_its_arrays_and_all_do_the_same_interpreted() -> None:
    files = sorted(path for ring in ("unit", "property") for path in (TESTS / ring).glob("test_kernel_*.py"))
    assert len(files) >= 12
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, files)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 300
