"""Which fragments become one, and which objects no reader needs any more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.archive.key_runs import next_index, write_merged
from flintmq.broker.archive.leftovers import HOUR_MS, old_tables, old_versions, orphans
from flintmq.broker.archive.merge import MERGED, next_merge
from flintmq.protocol.storage.archive.fragment import FRAGMENT_BYTES, FragmentName, encode_index
from flintmq.protocol.storage.archive.keys import (
    Entries,
    block_of,
    blocks_in,
    decode_blocks,
    positions_of,
    sorted_entries,
)
from flintmq.protocol.storage.archive.manifest import LATEST, ArchiveManifest, Entry, version_name
from flintmq.protocol.storage.archive.objects import Listed, Objects
from flintmq.protocol.storage.archive.tables import table_object

NOW_MS = 1_700_000_000_000
KIB = 1024
MIB = 1024 * KIB


def entries_of(*sizes: int) -> list[Entry]:
    """Return adjacent entries of these sizes."""
    entries, at = [], 0
    for size in sizes:
        entries.append(Entry(at, at + size, 0, "0" * 16, size, size, 0, b"", b"", 0, 0, 0, 1, 1, b""))
        at += size
    return entries


def test_sixteen_fragments_of_a_size_become_one() -> None:
    small = entries_of(*[100 * KIB] * MERGED)
    assert next_merge(small) == small
    assert next_merge(small[1:]) == []
    # With them those between that are even smaller, and none that is not beside them.
    mixed = entries_of(FRAGMENT_BYTES, *[MIB] * 10, KIB, *[MIB] * 6, KIB)
    assert next_merge(mixed) == mixed[1:-1]
    apart = [each for number, each in enumerate(entries_of(*[MIB] * (MERGED + 1))) if number != 8]
    assert next_merge(apart) == []


def test_full_fragments_are_left_alone_and_none_becomes_too_large() -> None:
    assert next_merge(entries_of(*[FRAGMENT_BYTES] * 40)) == []
    assert len(next_merge(entries_of(*[3 * MIB] * 40))) == MERGED
    assert len(next_merge(entries_of(*[26 * MIB] * 3))) == 2
    assert next_merge(entries_of(*[26 * MIB] * 2)) == []
    assert next_merge(entries_of(20 * MIB, FRAGMENT_BYTES - 1, 20 * MIB, FRAGMENT_BYTES)) == []


def test_a_year_of_small_fragments_becomes_few_and_each_byte_is_written_again_a_few_times() -> None:
    entries: list[Entry] = []
    written, at = 0, 0
    for _ in range(8_000):
        entries.append(entries_of(100 * KIB)[0]._replace(start=at, end=at + 100 * KIB))
        at += 100 * KIB
        while run := next_merge(entries):
            first = entries.index(run[0])
            total = sum(each.raw_bytes for each in run)
            written += total
            entries[first : first + len(run)] = [run[0]._replace(end=run[-1].end, raw_bytes=total)]
    assert sum(each.raw_bytes for each in entries) == at
    assert len(entries) < at // FRAGMENT_BYTES * 2 + 60
    assert written < 3.2 * at


def listed(name: str, age_ms: int) -> Listed:
    return Listed(name, 1, NOW_MS - age_ms)


def test_a_version_goes_an_hour_after_the_next_one_was_written() -> None:
    ages = [5 * HOUR_MS, 3 * HOUR_MS, HOUR_MS + 1, HOUR_MS - 1, 10, 0]
    versions = [listed(version_name(number), age) for number, age in enumerate(ages, 1)]
    newest = ArchiveManifest(6, "", 0, "", 0, 0)
    assert list(old_versions([*versions, listed(LATEST, 0)], newest, NOW_MS)) == [version_name(1), version_name(2)]
    # However old they are, the newest and the one before it stay.
    old = [listed(version_name(number), 90 * HOUR_MS) for number in range(1, 7)]
    assert list(old_versions(old, newest, NOW_MS)) == [version_name(number) for number in range(1, 5)]


def test_an_object_that_is_not_named_goes_after_a_day() -> None:
    names = [FragmentName(0, number, number + 1, "0" * 16).log for number in range(3)]
    found = [listed(name, hours * HOUR_MS) for name, hours in zip(names, (25, 25, 23), strict=True)]
    found += [listed("groups/x.mft", 25 * HOUR_MS), listed("log/somebody-elses", 90 * HOUR_MS)]
    assert list(orphans(found, {names[1]}, NOW_MS)) == [names[0], "groups/x.mft"]


def test_of_old_tables_one_an_hour_and_one_a_day_is_kept() -> None:
    minute = HOUR_MS // 60
    found = [listed(table_object(10_000_000 - age, "topics"), age * minute) for age in range(0, 5 * 24 * 60, 5)]
    gone = set(old_tables(found, NOW_MS))
    kept = [each for each in found if each.name not in gone]
    assert [each for each in kept if each.modified_ms >= NOW_MS - HOUR_MS] == found[:13]
    assert 12 + 23 + 4 <= len(kept) <= 13 + 25 + 6
    others = [listed(table_object(number, "config/x"), 90 * HOUR_MS) for number in range(3)]
    assert set(old_tables(others, NOW_MS)) == {each.name for each in others[:2]}


def written(objects: Objects, keys: Entries, number: int) -> Entry:
    """Write the index of a full fragment with these keys; return its entry."""
    start = number * FRAGMENT_BYTES
    name = FragmentName(0, start, start + FRAGMENT_BYTES, f"{number:016x}")
    idx = encode_index(start, name.end, "none", [], [], keys, 1, [])
    objects.create(name.idx, idx)
    sizes = (FRAGMENT_BYTES, 0, len(idx))
    return Entry(start, name.end, 0, name.rand, *sizes, b"", b"", 0, number, number, 1, len(keys), b"")


@pytest.mark.parametrize("part_keys", [300, 100_000])
def test_sixteen_runs_of_keys_become_one_and_every_key_is_found_in_it(tmp_path: Path, part_keys: int) -> None:
    objects = Objects(tmp_path)
    random = np.random.default_rng(5)
    manifest, everything = ArchiveManifest(1, "", 0, "", 0, 0), []
    for number in range(MERGED * MERGED):
        keys = sorted_entries(random.integers(0, 2**64, 20, np.uint64), number * 1_000 + np.arange(20))
        everything.append(keys)
        manifest = manifest.next(entries=[*manifest.entries, written(objects, keys, number)])
        while spans := next_index(manifest):
            old = [run for span in spans for run in span.runs]
            new = write_merged(objects, spans, part_keys)
            runs = [run for run in manifest.runs if run not in old] + new
            manifest = manifest.next(runs=sorted(runs, key=lambda run: (run.start, run.first_hash)))
    whole = np.sort(np.concatenate(everything), order=("hash", "physical_offset"))
    assert {run.level for run in manifest.runs} == {2}
    assert (manifest.runs[0].start, manifest.runs[-1].end) == (0, manifest.end)
    assert len(manifest.runs) == max(-(-len(whole) // part_keys), 1)
    held = [decode_blocks(objects.get(run.name), run.name) for run in manifest.runs]
    assert np.array_equal(np.concatenate(held), whole)
    for hash_, position in whole[::97].tolist():
        (run,) = [run for run in manifest.runs if run.first_hash <= hash_ <= run.last_hash]
        assert block_of(hash_, run.keys, run.first_hash, run.last_hash) < blocks_in(run.keys)
        assert position in positions_of(hash_, decode_blocks(objects.get(run.name), run.name))


def test_keys_of_a_fragment_that_is_still_to_be_merged_wait() -> None:
    full, small = [FRAGMENT_BYTES] * MERGED, [KIB] * 3
    assert len(next_index(ArchiveManifest(1, "", 0, "", 0, 0, entries=entries_of(*full)))) == MERGED
    assert not next_index(ArchiveManifest(1, "", 0, "", 0, 0, entries=entries_of(*small, *full)))
    settled = entries_of(*small, *[FRAGMENT_BYTES] * 64)
    assert [span.entry for span in next_index(ArchiveManifest(1, "", 0, "", 0, 0, entries=settled))] == settled[:MERGED]
