"""Fixtures for tests with failing files, and for tests that fork brokers."""

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
    """Return a folder in memory if the machine has one: hundreds of small stores are created and removed in it, and the
    test's file layer, not the disk, decides which bytes are lost."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="flintmq-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedParent]:
    """Fork brokers: one parent for all tests of the harness, because it takes seconds to load."""
    with PreparedParent(tmp_path_factory.mktemp("brokers")) as parent:
        yield parent


@pytest.fixture(scope="session")
def may_trace(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the test, with the reason, if strace may not make calls fail here."""
    try:
        check_strace(tmp_path_factory.mktemp("strace"))
    except NotHere as refusal:
        pytest.skip(str(refusal))
