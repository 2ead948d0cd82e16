"""Merging of the key index: sixteen sorted runs become one, so that a search reads few.

Each fragment has a run of its own, in its index. Sixteen full fragments get one of level 1 together, sixteen of level 1
one of level 2, and so on. A long run is written in parts, each with its share of the hashes: no more than a part and
what is read for it is in memory, however long the runs are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...protocol.storage.archive.keys import (
    HASH_MAX,
    Entries,
    block_of,
    block_range,
    blocks_in,
    decode_blocks,
    encode_run,
    run_bytes,
    sorted_entries,
)
from ...protocol.storage.archive.manifest import KEY_RUNS, ArchiveManifest, Entry, KeyRun
from ...protocol.storage.archive.objects import Objects
from .lineage import random_hex
from .merge import MERGED, size_of

PART_KEYS = 2 * 1024 * 1024
"""Keys of a part, about: 32 MiB."""
SETTLED = 64
"""Entries after a small fragment from which on it is not expected to be merged any more."""


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys of a range of the log: a fragment's, or those of a merged run in all its parts. ``level`` 0: a fragment."""

    level: int
    start: int
    end: int
    first_ms: int
    last_ms: int
    entry: Entry | None
    runs: tuple[KeyRun, ...]

    @property
    def keys(self) -> int:
        """Number of its keys."""
        return self.entry.keys if self.entry is not None else sum(run.keys for run in self.runs)


def spans_of(manifest: ArchiveManifest) -> list[KeySpan]:
    """Return the merged runs in the log's order, and after them the newest fragments that may be merged."""
    spans = []
    ordered = sorted(manifest.runs, key=lambda run: (run.start, run.first_hash))
    for _, group in itertools.groupby(ordered, key=lambda run: run.start):
        runs = tuple(group)
        first = runs[0]
        spans.append(KeySpan(first.level, first.start, first.end, first.first_ms, first.last_ms, None, runs))
    covered = spans[-1].end if spans else manifest.start
    for number, entry in enumerate(manifest.entries, 1):
        if entry.start < covered:
            continue
        if size_of(entry) and number + SETTLED > len(manifest.entries):
            break
        spans.append(KeySpan(0, entry.start, entry.end, entry.first_ms, entry.last_ms, entry, ()))
    return spans


def next_index(manifest: ArchiveManifest) -> list[KeySpan]:
    """Return adjacent spans of one level whose keys are to be merged; none if there are not enough."""
    for _, group in itertools.groupby(spans_of(manifest), key=lambda span: span.level):
        spans = list(group)
        if len(spans) >= MERGED:
            return spans[:MERGED]
    return []


def write_merged(objects: Objects, spans: Sequence[KeySpan], part_keys: int = PART_KEYS) -> list[KeyRun]:
    """Write the merged run of these spans, in parts; return them. Raises ``CorruptObject`` and ``ObjectError``."""
    level, start, end = spans[0].level + 1, spans[0].start, spans[-1].end
    rand = random_hex()
    count = max(-(-sum(span.keys for span in spans) // part_keys), 1)
    bounds = [number * (HASH_MAX + 1) // count for number in range(count + 1)]
    parts = []
    for number, (first, after) in enumerate(itertools.pairwise(bounds)):
        held = list(itertools.chain.from_iterable(_between(objects, span, first, after - 1) for span in spans))
        hashes = np.concatenate([each["hash"] for each in held]).astype(np.uint64)
        entries = sorted_entries(hashes, np.concatenate([each["physical_offset"] for each in held]).astype(np.int64))
        name = f"{KEY_RUNS}{level}/{start:020d}-{end:020d}-{rand}-{number}.run"
        objects.create(name, encode_run(entries))
        parts.append(
            KeyRun(name, level, start, end, len(entries), spans[0].first_ms, spans[-1].last_ms, first, after - 1)
        )
    return parts


def _between(objects: Objects, span: KeySpan, first: int, last: int) -> Iterator[Entries]:
    """Yield the entries of a span with hashes from ``first`` to ``last``."""
    if span.entry is not None:
        entry = span.entry
        yield _read(
            objects, entry.name.idx, entry.idx_bytes - run_bytes(entry.keys), entry.keys, (0, HASH_MAX), first, last
        )
    for run in span.runs:
        if run.first_hash <= last and run.last_hash >= first:
            yield _read(objects, run.name, 0, run.keys, (run.first_hash, run.last_hash), first, last)


def _read(objects: Objects, name: str, at: int, count: int, hashes: tuple[int, int], first: int, last: int) -> Entries:
    """Read the blocks of a run that have the hashes from ``first`` to ``last``. ``hashes``: those that it may have."""
    if not count:
        return decode_blocks(b"", name)
    blocks = blocks_in(count)
    begin = max(block_of(max(first, hashes[0]), count, *hashes) - 1, 0)
    end = min(block_of(min(last, hashes[1]), count, *hashes) + 2, blocks)
    while True:
        found = decode_blocks(
            objects.range(name, at + block_range(begin, count)[0], at + block_range(end - 1, count)[1]), name
        )
        too_late = begin > 0 and int(found["hash"][0]) >= first
        too_early = end < blocks and int(found["hash"][-1]) <= last
        if not too_late and not too_early:
            break
        begin, end = max(begin - too_late, 0), min(end + too_early, blocks)
    return found[(found["hash"] >= np.uint64(first)) & (found["hash"] <= np.uint64(last))]
