"""Ends of ConsumeQueues that a start keeps in memory: whatever it finds by them, it would find in the files too."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.store import queues
from flintmq.broker.store.files.file_system import Files, OpenFiles
from flintmq.broker.store.queues import ConsumeQueue, order_problem, order_problems
from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES

UNITS_A_FILE = 512
RECORD_BYTES = 100


def opened(folder: Path, row: int, kept_bytes: int = 0) -> ConsumeQueue:
    queue = ConsumeQueue(Files(), OpenFiles(), folder, "orders", 0, UNITS_A_FILE * UNIT_BYTES, row)
    assert queue.load(kept_bytes) == ("", None)
    return queue


def unit(record: int) -> bytes:
    """Return the unit of a record, numbered from 0; -1: of a filling; -2: one that cannot be."""
    if record == -1:
        return struct.pack(">qiq", 0, PRE_BLANK_SIZE, 0)
    return struct.pack(">qiq", record * RECORD_BYTES, RECORD_BYTES if record >= 0 else -7, 0)


@st.composite
def contents(draw: st.DrawFn) -> list[int]:
    """Return the records of a queue in the order of the log, with fillings between them."""
    first = draw(st.integers(0, 3))
    gaps = draw(st.lists(st.integers(0, 2), max_size=700))
    records = [-1] * first
    for number, gap in enumerate(gaps):
        records += [-1] * (gap == 2) + [first + 2 * number + gap % 2]
    return records


@given(
    records=contents(),
    below=st.integers(0, 1500),
    kept_bytes=st.sampled_from([1, UNIT_BYTES, 333, 4096]),
    stop=st.integers(0, 800),
)
def test_a_kept_end_and_the_files_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, records: list[int], below: int, kept_bytes: int, stop: int
) -> None:
    folder = tmp_path_factory.mktemp("queue")
    written = opened(folder, 0)
    if records:
        written.append(memoryview(b"".join(map(unit, records))))
    plain, kept = opened(folder, 0), opened(folder, 0, kept_bytes)
    count = queues.count_units(plain, below * RECORD_BYTES)
    assert queues.count_units(kept, below * RECORD_BYTES) == count
    for end in (count, min(stop, plain.end_byte // UNIT_BYTES)):
        assert queues.last_record_unit(kept, end) == queues.last_record_unit(plain, end)
        assert queues.find_start(kept, end) == queues.find_start(plain, end)
        assert queues.order_problem(kept, 0, end) == queues.order_problem(plain, 0, end)
    for first in (0, count, stop):
        assert kept.read_units(first, 70, hot=False) == plain.read_units(first, 70, hot=False)
    kept.truncate(count)
    content = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert kept.read_units(count, 1, hot=False) in (b"", bytes(UNIT_BYTES))
    plain.truncate(count)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == content
    for queue in (written, plain, kept):
        queue.close()


def test_an_end_before_the_kept_units_is_found_behind_a_filling(tmp_path: Path) -> None:
    written = opened(tmp_path, 0)
    written.append(memoryview(b"".join(map(unit, [0, 1, 2, 3, 4, 5, -1, -1]))))
    written.close()
    kept = opened(tmp_path, 0, 2 * UNIT_BYTES)
    assert queues.count_units(kept, 3 * RECORD_BYTES) == 3
    kept.close()


def test_a_write_is_seen_behind_a_kept_end(tmp_path: Path) -> None:
    written = opened(tmp_path, 0)
    written.append(memoryview(unit(0) + unit(1)))
    written.close()
    kept = opened(tmp_path, 0, 4096)
    kept.max_offset = 2
    kept.append(memoryview(unit(5)))
    assert kept.read_units(0, 3, hot=False) == unit(0) + unit(1) + unit(5)
    kept.write_at(1, memoryview(unit(4)))
    assert kept.unit(1, hot=False) == (4 * RECORD_BYTES, RECORD_BYTES, 0)
    kept.close()


@given(
    parts=st.lists(st.lists(st.integers(-2, 9), max_size=4) | st.just(list(range(20))), min_size=1, max_size=12),
    block=st.sampled_from([2, 8192]),
)
def test_queues_are_judged_together_as_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], block: int
) -> None:
    folder = tmp_path_factory.mktemp("queues")
    judged = []
    for row, records in enumerate(parts):
        queue = opened(folder / str(row), row)
        if records:
            queue.append(memoryview(b"".join(map(unit, records))))
        judged.append((queue, 0, len(records)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "BLOCK_UNITS", block)
        one_by_one = {part[0].row: problem for part in judged if (problem := order_problem(*part))}
        assert order_problems(judged) == one_by_one
    for queue, _, _ in judged:
        queue.close()
