"""Ranges of the log whose records must have a checksum of the whole record: they begin, end and are cut."""

from __future__ import annotations

from flintmq.broker.store.tables.store_state import FOREVER, OPEN, ChecksummedRanges


def test_a_range_begins_when_the_option_is_enabled_and_ends_when_it_is_disabled() -> None:
    ranges = ChecksummedRanges()
    assert ranges.at(0) == (False, FOREVER)
    ranges.begin(100)
    ranges.begin(900)  # another start with the option enabled continues the range
    assert [ranges.at(offset) for offset in (0, 99, 100, 10**9)] == [
        (False, 100),
        (False, 100),
        (True, FOREVER),
        (True, FOREVER),
    ]
    ranges.end(300)
    ranges.end(500)  # another start with the option disabled
    assert list(ranges) == [(100, 300)]
    assert ranges.at(299) == (True, 300)
    assert ranges.at(300) == (False, FOREVER)
    ranges.begin(500)
    assert list(ranges) == [(100, 300), (500, OPEN)]
    assert ranges.at(300) == (False, 500)
    assert [ranges.around(offset) for offset in (99, 100, 299, 300, 500)] == [
        (0, 0),
        (100, 300),
        (100, 300),
        (0, 0),
        (500, FOREVER),
    ]


def test_without_writes_toggling_the_option_adds_no_range() -> None:
    ranges = ChecksummedRanges()
    ranges.begin(100)
    ranges.end(100)
    assert list(ranges) == []
    ranges.begin(100)
    ranges.end(200)
    ranges.begin(200)
    assert list(ranges) == [(100, OPEN)]


def test_cutting_the_log_removes_the_ranges_after_the_cut() -> None:
    ranges = ChecksummedRanges([(100, 200), (300, 400), (500, OPEN)])
    ranges.cut(600)
    assert list(ranges) == [(100, 200), (300, 400), (500, OPEN)]
    ranges.cut(450)
    assert list(ranges) == [(100, 200), (300, 400)]
    ranges.cut(350)
    assert list(ranges) == [(100, 200), (300, 350)]
    ranges.end(150)
    assert list(ranges) == [(100, 150)]


def test_expired_ranges_are_forgotten() -> None:
    ranges = ChecksummedRanges([(100, 200), (300, 400), (500, OPEN)])
    ranges.drop_below(200)
    assert list(ranges) == [(300, 400), (500, OPEN)]
    ranges.drop_below(1000)
    assert list(ranges) == [(500, OPEN)]
