"""Where records must have a checksum over all of them: ranges that open, close, and are cut with the log."""

from __future__ import annotations

from flintmq.broker.store.checksummed import FOREVER, OPEN, ChecksummedRanges


def test_a_range_opens_where_the_option_is_turned_on_and_ends_where_it_is_turned_off() -> None:
    ranges = ChecksummedRanges()
    assert ranges.at(0) == (False, FOREVER)
    ranges.begin(100)
    ranges.begin(900)  # another start with the option on: it goes on
    assert [ranges.at(offset) for offset in (0, 99, 100, 10**9)] == [
        (False, 100), (False, 100), (True, FOREVER), (True, FOREVER),
    ]  # fmt: skip
    ranges.end(300)
    ranges.end(500)  # another start with the option off
    assert list(ranges) == [(100, 300)]
    assert ranges.at(299) == (True, 300)
    assert ranges.at(300) == (False, FOREVER)
    ranges.begin(500)
    assert list(ranges) == [(100, 300), (500, OPEN)]
    assert ranges.at(300) == (False, 500)
    assert [ranges.around(offset) for offset in (99, 100, 299, 300, 500)] == [
        (0, 0), (100, 300), (100, 300), (0, 0), (500, FOREVER),
    ]  # fmt: skip


def test_turned_off_and_on_with_nothing_in_between_it_is_one_range_and_none_where_nothing_was_written() -> None:
    ranges = ChecksummedRanges()
    ranges.begin(100)
    ranges.end(100)
    assert list(ranges) == []
    ranges.begin(100)
    ranges.end(200)
    ranges.begin(200)
    assert list(ranges) == [(100, OPEN)]


def test_a_cut_of_the_log_takes_away_what_lay_behind_it() -> None:
    ranges = ChecksummedRanges([(100, 200), (300, 400), (500, OPEN)])
    ranges.cut(600)
    assert list(ranges) == [(100, 200), (300, 400), (500, OPEN)]
    ranges.cut(450)
    assert list(ranges) == [(100, 200), (300, 400)]
    ranges.cut(350)
    assert list(ranges) == [(100, 200), (300, 350)]
    ranges.end(150)
    assert list(ranges) == [(100, 150)]


def test_what_retention_took_is_forgotten() -> None:
    ranges = ChecksummedRanges([(100, 200), (300, 400), (500, OPEN)])
    ranges.drop_below(200)
    assert list(ranges) == [(300, 400), (500, OPEN)]
    ranges.drop_below(1000)
    assert list(ranges) == [(500, OPEN)]
