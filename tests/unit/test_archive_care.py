"""Which fragments become one, and which objects no reader needs any more."""

from __future__ import annotations

from flintmq.broker.archive.leftovers import HOUR_MS, old_tables, old_versions, orphans
from flintmq.broker.archive.merge import MERGED, next_merge
from flintmq.protocol.storage.archive.fragment import FRAGMENT_BYTES, FragmentName
from flintmq.protocol.storage.archive.manifest import LATEST, ArchiveManifest, Entry, version_name
from flintmq.protocol.storage.archive.objects import Listed
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
