"""What tests with failing files share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of small stores are made and removed in it, and what a disk would
    lose is decided by the file layer of the test."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="flintmq-") as folder:
        yield Path(folder)
