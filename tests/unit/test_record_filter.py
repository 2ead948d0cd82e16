"""Records of a response that a filter keeps, and how far the filter looks."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flintmq.broker.store.read.pulls import CHUNK_RECORDS, LOOK_S, Kept, keep_matching
from flintmq.protocol.storage.record import Record, decode_record, encode_host
from tests.store_tools import split_answer


class Named:
    """Filter for records whose property ``n`` is one of these numbers; it counts the records that it is given."""

    def __init__(self, *wanted: int) -> None:
        self.wanted = {b"\x02n\x01%d\x02" % number for number in wanted}
        self.asked = 0

    def select(self, sources: Sequence[bytes]) -> list[int]:
        self.asked += len(sources)
        assert all(source[:1] == b"\x02" for source in sources)
        return [place for place, source in enumerate(sources) if source in self.wanted]


def record(number: int, body_bytes: int = 10) -> Record:
    properties = b"n\x01%d\x02" % number
    return Record(b"orders", b"x" * body_bytes, properties, queue_offset=number, physical_offset=1000 * number)


def answer(blobs: list[bytes]) -> bytearray:
    return bytearray(struct.pack(f">{len(blobs)}I", *map(len, blobs)) + b"".join(blobs))


def keep(
    blobs: list[bytes],
    wanted: Named,
    max_count: int = 1000,
    max_bytes: int = 1 << 20,
    one_at_least: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
) -> Kept:
    body = answer(blobs)
    before = bytes(body)
    kept = keep_matching(body, len(blobs), wanted, max_count, max_bytes, one_at_least=one_at_least, clock=clock)
    assert bytes(body) == before
    return kept


def blobs_of(count: int) -> list[bytes]:
    return [record(number).encode() for number in range(count)]


def kept_numbers(kept: Kept) -> list[int]:
    return [decode_record(blob).queue_offset for blob in split_answer(kept.body, kept.count)]


def test_matching_records_are_kept_unchanged_in_order() -> None:
    blobs = blobs_of(100)
    kept = keep(blobs, Named(3, 77, 40))
    assert split_answer(kept.body, kept.count) == [blobs[3], blobs[40], blobs[77]]
    assert kept.looked == 100
    everything = keep(blobs, Named(*range(100)))
    assert (everything.body, everything.count) == (answer(blobs), 100)
    nothing = keep(blobs, Named())
    assert (bytes(nothing.body), nothing.count, nothing.looked) == (b"", 0, 100)


@pytest.mark.parametrize("max_count", [1, 2, CHUNK_RECORDS - 1, CHUNK_RECORDS, CHUNK_RECORDS + 1, 99, 100, 101])
def test_the_search_ends_after_the_last_record_that_fits(max_count: int) -> None:
    kept = keep(blobs_of(100), Named(*range(100)), max_count=max_count)
    assert kept_numbers(kept) == list(range(min(max_count, 100)))
    assert kept.looked == min(max_count, 100)


@pytest.mark.parametrize("fitting", [1, 5, CHUNK_RECORDS, CHUNK_RECORDS + 3])
def test_looking_ends_before_the_record_that_does_not_fit(fitting: int) -> None:
    blobs = blobs_of(10) * 10
    wanted = Named(0, 1, 2, 3, 4, 5, 6, 8, 9)
    places = [place for place in range(100) if place % 10 != 7]
    size = sum(len(blobs[place]) for place in places[:fitting])
    for spare in (0, len(blobs[0]) - 1):
        kept = keep(blobs, wanted, max_bytes=size + spare)
        assert kept.count == fitting
        assert kept.looked == places[fitting]


def test_the_first_match_is_kept_at_any_size_unless_optional() -> None:
    blobs = blobs_of(10)
    kept = keep(blobs, Named(4, 5), max_bytes=1)
    assert (kept_numbers(kept), kept.looked) == ([4], 5)
    kept = keep(blobs, Named(4, 5), max_bytes=1, one_at_least=False)
    assert (kept.count, kept.looked) == (0, 4)


def test_looking_ends_when_its_time_is_over() -> None:
    times = iter([0.0, LOOK_S * 0.9, LOOK_S, 99.0])
    wanted = Named(0, 50, 90)
    kept = keep(blobs_of(200), wanted, clock=lambda: next(times))
    assert kept.looked == wanted.asked == 2 * CHUNK_RECORDS
    assert kept_numbers(kept) == [0, 50]


def test_large_records_are_looked_at_a_few_at_a_time() -> None:
    times = iter([0.0, LOOK_S])
    wanted = Named()
    kept = keep([record(number, 20_000).encode() for number in range(50)], wanted, clock=lambda: next(times))
    assert kept.looked == wanted.asked == 1


V6 = encode_host("::1", 10911)


@pytest.mark.parametrize(
    "change",
    [
        {"born_host": V6},
        {"store_host": V6},
        {"born_host": V6, "store_host": V6},
        {"topic": b"t" * 200},
        {"body": b""},
        {"body": b"x" * 100_000},
    ],
)
def test_properties_are_found_in_records_of_every_shape(change: dict[str, Any]) -> None:
    usual = blobs_of(5)
    blobs = [*usual, dataclasses.replace(record(7), **change).encode(), *usual]
    kept = keep(blobs, Named(7, 2))
    assert split_answer(kept.body, kept.count) == [blobs[2], blobs[5], blobs[8]]


@pytest.mark.parametrize("at", [84, 85, 86, 87, 88 + 10, 88 + 10 + 1 + 6, 88 + 10 + 1 + 6 + 1])
@pytest.mark.parametrize("value", [0x05, 0x7F, 0xFF])
def test_a_record_whose_parts_do_not_add_up_is_kept_for_its_reader(at: int, value: int) -> None:
    blobs = blobs_of(5)
    damaged = bytearray(blobs[3])
    damaged[at] ^= value
    blobs[3] = bytes(damaged)
    kept = keep(blobs, Named(1, 4))
    assert split_answer(kept.body, kept.count) == [blobs[1], blobs[3], blobs[4]]
