"""The kernels of the offline tools against their plain twin."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.broker.kernels import dispatch, search
from flintmq.protocol.storage.layout import MAGIC_BLANK
from flintmq.protocol.storage.record import Record
from tests.property.test_kernel_dispatch_property import damages, sentinels, stretches, tails
from tests.twins import examine as twin
from tests.twins.arrays import examples, fenced, room
from tests.twins.log import SCHEDULE_TOPIC, Queue, Queues, Stopped, read_record, size_at, write_log

margins = st.sampled_from([0, 3_000, 2**40])
seeds = st.integers(0, 2**32 - 1)
MAX = dispatch.QUEUE_OFFSET_MAX


def check_examine(log: bytes, at: int, end: int, file_base: int, queues: Queues, margin_ms: int, sentinel: int) -> None:
    for checksummed in (False, True):
        table = twin.ExaminedTable(queues, sentinel)
        work = twin.work_for(margin_ms, checksummed=checksummed, sentinel=sentinel)
        answer = twin.call(fenced(log, sentinel=sentinel), at, end, file_base, table, work)
        examination = twin.Examination(queues, margin_ms, checksummed=checksummed)
        assert answer == examination.examine(log, at, end, file_base)
    # The mode of a start finds the same, except flaws that a queue does not show.
    table, work = twin.ExaminedTable(queues, sentinel), twin.work_for(0, mode=dispatch.DERIVE, sentinel=sentinel)
    derived = twin.call(fenced(log, sentinel=sentinel), at, end, file_base, table, work)
    of_queues = (dispatch.FLAW_QUEUE_OFFSET, dispatch.FLAW_NO_QUEUE_OFFSET)
    assert derived == replace(answer, flaws=[flaw for flaw in answer.flaws if flaw[0] in of_queues])


@given(stretches(), tails, margins, sentinels, st.data())
@examples(150)
def test_flaws_units_and_keys_equal_those_of_the_twin(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, margin_ms: int, sentinel: int, data: st.DataObject
) -> None:
    log, at, file_base, queues = stretch
    end = data.draw(st.integers(at, len(log) + len(tail)))
    check_examine(log + tail, at, end, file_base, queues, margin_ms, sentinel)


@given(stretches(), seeds, sentinels)
@examples(60)
def test_damaged_records_are_judged_like_the_twin(
    stretch: tuple[bytes, int, int, Queues], seed: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    for _, damaged in zip(range(10), damages(log, seed), strict=False):
        check_examine(damaged, min(at, len(damaged)), len(damaged), file_base, queues, 3_000, sentinel)


@given(stretches(), st.integers(1, 3), st.integers(4, 8), st.integers(1, 300), sentinels)
@examples(60)
def test_many_calls_with_little_room_find_the_same_as_one_call(
    stretch: tuple[bytes, int, int, Queues], unit_room: int, flaw_room: int, step: int, sentinel: int
) -> None:
    log, at, file_base, queues = stretch
    expected = twin.Examination(queues, 0).examine(log, at, len(log), file_base)
    table = twin.ExaminedTable(queues, sentinel)
    work = twin.work_for(0, unit_room=unit_room, flaw_room=flaw_room, sentinel=sentinel)
    found = twin.Examined(at=at)
    while found.at < len(log) and found.status in (dispatch.DONE, dispatch.FULL):
        answer = twin.call(
            fenced(log, sentinel=sentinel), found.at, min(found.at + step, len(log)), file_base, table, work
        )
        assert answer.records > 0 or answer.status not in (dispatch.DONE, dispatch.FULL), "a call must get on"
        found.at, found.status = answer.at, answer.status
        found.records += answer.records
        found.flaws += answer.flaws
        found.keys += answer.keys
        found.optional_keys += answer.optional_keys
        found.runs += answer.runs
        found.last_store_ms, found.next = answer.last_store_ms, answer.next
        found.first, found.wanted = answer.first, answer.wanted
    units = {(run.name, run.queue_offset + k): unit for run in expected.runs for k, unit in enumerate(run.units)}
    assert {(run.name, run.queue_offset + k): unit for run in found.runs for k, unit in enumerate(run.units)} == units
    found.runs = expected.runs
    assert found == expected


@given(st.lists(st.sampled_from([-(2**63), -(2**63) + 3_000, -1, 0, 2**63 - 1]), min_size=2, max_size=5), margins)
def test_store_times_at_the_ends_of_their_range_are_compared_as_numbers(times: list[int], margin_ms: int) -> None:
    log = write_log([Record(*QUEUE[:1], b"", queue_offset=k, store_timestamp=ms) for k, ms in enumerate(times)])
    check_examine(log, 0, len(log), 0, {QUEUE: Queue()}, margin_ms, 0)


QUEUE = (b"orders", 0)


def follow(queue_offsets: list[int]) -> list[tuple[int, int]]:
    """Return (number of the record, expected offset) of each record whose queue offset is a flaw."""
    log = write_log([Record(*QUEUE[:1], b"", queue_offset=offset) for offset in queue_offsets])
    queues = {QUEUE: Queue()}
    answer = twin.call(fenced(log), 0, len(log), 0, twin.ExaminedTable(queues), twin.work_for(0))
    assert answer == twin.Examination(queues, 0).examine(log, 0, len(log), 0)
    size = size_at(log, 0)
    return [(at // size, detail) for kind, at, detail in answer.flaws if kind == dispatch.FLAW_QUEUE_OFFSET]


def test_a_record_with_a_wrong_queue_offset_is_one_flaw() -> None:
    assert follow([7, 8, 500, 10, 11, 3, 13]) == [(2, 9), (5, 12)]


@given(
    st.lists(
        st.sampled_from([-(2**63), -(2**63) + 1, -2, -1, 0, 1, 2, MAX, MAX + 1, 2**63 - 1]), min_size=1, max_size=8
    )
)
@example([-(2**63)])  # the smallest was once taken for "none yet", like -1
@example([-(2**63), -(2**63) + 1, 0])
@example([5, -1, 7, -1])
@example([2**63 - 1, 0])
def test_queue_offsets_at_the_ends_of_their_range_are_compared_as_numbers(queue_offsets: list[int]) -> None:
    log = write_log([Record(*QUEUE[:1], b"", queue_offset=queue_offset) for queue_offset in queue_offsets])
    check_examine(log, 0, len(log), 0, {QUEUE: Queue()}, 0, 0)


def test_an_impossible_queue_offset_counts_as_the_next_one() -> None:
    log = write_log([Record(*QUEUE[:1], b"", queue_offset=offset) for offset in (7, -(2**63), 9, 2**63 - 1, 11)])
    answer = twin.call(fenced(log), 0, len(log), 0, twin.ExaminedTable({QUEUE: Queue()}), twin.work_for(0))
    size = size_at(log, 0)
    assert answer.flaws == [(dispatch.FLAW_NO_QUEUE_OFFSET, at * size, 0) for at in (1, 3)]
    assert [(run.queue_offset, len(run.units)) for run in answer.runs] == [(7, 1), (9, 1), (11, 1)]
    assert answer.next == {QUEUE: 12}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of NumPy, where kernels run interpreted
@pytest.mark.parametrize("store_ms", [2**63 - 1, 2**63 - 1000, -(2**63), 0])
def test_the_time_of_a_delay_level_at_the_ends_of_its_range_wraps_as_in_java(store_ms: int) -> None:
    name = (SCHEDULE_TOPIC, 0)
    log = write_log([Record(SCHEDULE_TOPIC, b"", properties=b"DELAY\x0118\x02", store_timestamp=store_ms)])
    check_examine(log, 0, len(log), 0, {name: Queue()}, 0, 0)


def test_consecutive_missing_messages_are_one_flaw() -> None:
    assert follow([7, 8, 20, 21, 22]) == [(2, 9)]


@given(stretches(), st.integers(0, 60), seeds, sentinels)
@examples(80)
def test_the_next_record_after_damage_is_found(
    stretch: tuple[bytes, int, int, Queues], skip: int, seed: int, sentinel: int
) -> None:
    log, at, file_base, _ = stretch
    blank = random.Random(seed).randint(8, 40)
    log += blank.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True) + bytes(blank - 8)
    for begin, end in ((at + skip, len(log)), (at + skip, len(log) // 2), (len(log) - 3, len(log))):
        array, parts = fenced(log, sentinel=sentinel), room(dispatch.PARTS, np.int64, sentinel)
        found = search.next_record(array.array, begin, end, file_base, parts.array)
        assert array.intact
        assert parts.intact
        assert found == next(iter(places(log, begin, end, file_base, blank)), end)


def places(log: bytes, begin: int, end: int, file_base: int, blank: int) -> list[int]:
    found = []
    for at in range(begin, end):
        try:
            read_record(log, at, file_base + at, check_body=False)
        except Stopped as stopped:
            if stopped.status != dispatch.BLANK or at != len(log) - blank:
                continue
        found.append(at)
    return found
