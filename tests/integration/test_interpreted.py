"""A broker whose kernels run as plain Python (``NUMBA_DISABLE_JIT=1``), as on machines where Numba cannot compile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.protocol.storage.arrays.jit import INTERPRETED

HERE = Path(__file__).parent
FILES = ("test_kill9.py", "test_delay_kill9.py")
"""They produce and pull, beside snapshots, orderly stops and recoveries, and messages that wait."""


@pytest.mark.long(seconds=60)
@pytest.mark.timeout(300)
@pytest.mark.skipif(INTERPRETED, reason="this is that run")
def test_a_broker_with_interpreted_kernels_keeps_acknowledged_messages() -> None:
    files = [str(HERE / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 3
