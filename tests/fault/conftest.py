"""Fixtures for tests with failing or damaged files, and for tests that fork brokers."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.derived_files import End, Filled
from tests.fault.harness.brokers import PreparedParent
from tests.fault.harness.mounts import NotHere
from tests.fault.harness.strace import check_strace
from tests.store_tools import Sent, open_store, plain, put

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


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Return ``filled(end)``: a stopped store with five queues, each of several files, and four index files."""
    made: dict[End, tuple[Path, list[Sent]]] = {}

    def make(end: End) -> tuple[Path, list[Sent]]:
        if end not in made:
            path = tmp_path_factory.mktemp("filled") / "store"
            store = open_store(path)
            source = random.Random(9)
            sent = []
            for number in range(0, 560, 4):
                topic, queue = source.choice([("orders", 0), ("orders", 1), ("orders", 3), ("bills", 0), ("%a|b", 2)])
                sent += put(store, topic, queue, plain(4, first=number, tags=source.choice(["", "eu"])))
            end(store)
            made[end] = path, sent
        return made[end]

    return make
