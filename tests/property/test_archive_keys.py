"""A key is found in a sorted run of any size, also where hashes are not where an even spread would have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.storage.archive.keys import BLOCK_ENTRIES, encode_run, key_hash, sorted_entries
from flintmq.protocol.storage.archive.manifest import ArchiveManifest, KeyRun
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.reader import ArchiveReader


class _OneRun(Objects):
    """Objects with one run of keys, in memory, which count the requests."""

    def __init__(self, blob: bytes) -> None:
        self.url = "memory"
        self.requests_made = 0
        self._blob = blob

    def range(self, name: str, begin: int, end: int) -> bytes:
        self.requests_made += 1
        return self._blob[begin:end]


def reader_of(hashes: np.ndarray) -> tuple[ArchiveReader, _OneRun]:
    """Return a reader of an archive whose only run has these hashes, at positions that count them."""
    entries = sorted_entries(hashes, np.arange(len(hashes), dtype=np.int64))
    objects = _OneRun(encode_run(entries))
    reader = ArchiveReader(objects)
    run = KeyRun("keys/1/a.run", 1, 0, len(entries), len(entries), 0, 1)
    reader.use(ArchiveManifest(1, "", 0, "", 0, 0, runs=[run], groups=[], entries=[]))
    return reader, objects


WANTED = key_hash("orders", "k")


@given(
    st.integers(0, 5 * BLOCK_ENTRIES),
    st.integers(0, 3 * BLOCK_ENTRIES),
    st.sampled_from(["even", "low", "high", "around"]),
    st.integers(0, 1000),
)
def test_all_positions_of_a_key_are_found(others: int, copies: int, spread: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    bounds = {
        "even": (0, 1 << 64),
        "low": (0, WANTED // 2),
        "high": (WANTED + (1 << 60), 1 << 64),
        "around": (WANTED - (1 << 40), WANTED + (1 << 40)),
    }[spread]
    hashes = random.integers(*bounds, others, np.uint64)
    hashes = np.concatenate((hashes[hashes != WANTED], np.full(copies, WANTED, np.uint64)))
    random.shuffle(hashes)
    if not len(hashes):
        return
    with reader_of(hashes)[0] as reader:
        found = reader.positions_of_key("orders", "k", None, None)
    assert found == set(np.flatnonzero(hashes == np.uint64(WANTED)).tolist())


@pytest.mark.parametrize("count", [1, 1000, 65_000, 2_000_000])
def test_a_key_in_a_large_run_takes_about_one_request(count: int) -> None:
    random = np.random.default_rng(11)
    hashes = random.integers(0, 1 << 64, count, np.uint64)
    keys = [f"k{number}" for number in range(100)]
    for number, key in enumerate(keys[: count // 2]):
        hashes[number] = key_hash("orders", key)
    reader, objects = reader_of(hashes)
    with reader:
        for number, key in enumerate(keys):
            found = reader.positions_of_key("orders", key, None, None)
            assert found == ({number} if number < count // 2 else set())
    assert objects.requests_made <= 1.1 * len(keys)
