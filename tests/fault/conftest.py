"""What tests with failing files share, and what forks brokers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.mounts import NotHere
from tests.fault.harness.strace import check_strace

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


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedParent]:
    """What forks brokers: one for all tests of the harness, because it takes seconds to load."""
    with PreparedParent(tmp_path_factory.mktemp("brokers")) as parent:
        yield parent


@pytest.fixture(scope="session")
def may_trace(tmp_path_factory: pytest.TempPathFactory) -> None:
    """strace may make calls fail; who needs it is skipped where it may not, with the reason."""
    try:
        check_strace(tmp_path_factory.mktemp("strace"))
    except NotHere as refusal:
        pytest.skip(str(refusal))
