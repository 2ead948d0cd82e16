"""Types of the values that kernels return to their callers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import numpy as np
from flintmq.broker.kernels import dispatch, sequences
from flintmq.protocol.storage.arrays import crc32
from flintmq.protocol.storage.record import Record

log = np.frombuffer(bytearray(Record(b"orders", b"body").encode()), np.uint8)
parts, state = np.zeros(dispatch.PARTS, np.int64), np.zeros(dispatch.STATE, np.int64)
status, at = dispatch.scan(log, 0, len(log), 0, parts, state)
found = [status, at, dispatch.locate(log, 0, len(log), 0, parts), crc32.crc32(log, 0, len(log))]
assert found[:3] == [dispatch.DONE, len(log), dispatch.DONE], found
assert [type(each) for each in found] == [int] * 4, [type(each) for each in found]
"""


def test_kernels_give_plain_integers_compiled_and_interpreted() -> None:
    """NumPy integers would end up in snapshots and responses, and neither JSON nor msgpack accepts them."""
    for interpreted in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": interpreted}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
