"""The sequences kernel, rule by rule: which records are a producer's messages, and which of them form one run."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.kernels import dispatch, sequences
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import UNIQUE_PREFIX_DIGITS, Record, unique_key
from tests.twins.log import write_log
from tests.twins.sequences import WAITING_TOPICS, Run, call

PREFIX = "7F00000155A738209801"


def a_record(
    counter: int = 5,
    queue_offset: int = 0,
    *,
    prefix: str = PREFIX,
    key: str | None = None,
    more: str = "",
    topic: bytes = b"orders",
    queue_id: int = 0,
    **fields: Any,
) -> Record:
    """Return a message as the broker stores it.

    ``key`` replaces the generated key; ``more`` are properties before the others.
    """
    properties = f"{more}UNIQ_KEY\x01{unique_key(prefix, counter) if key is None else key}\x02".encode()
    return Record(topic, b"body", properties, queue_id, queue_offset, **fields)


def runs_of(*records: Record, run_room: int = 64) -> list[Run]:
    """Return the runs of a log with these records."""
    log = write_log(records)
    status, at, runs = call(log, 0, len(log), 0, run_room)
    assert (status, at) == (dispatch.DONE, len(log))
    return runs


def test_the_digits_are_those_of_unique_keys() -> None:
    assert sequences.PREFIX_DIGITS == UNIQUE_PREFIX_DIGITS
    assert len(unique_key(PREFIX, 0)) == sequences.KEY_DIGITS


def test_messages_that_follow_each_other_are_one_run() -> None:
    assert runs_of(a_record(5, 70), a_record(6, 71), a_record(7, 72)) == [
        Run(0, PREFIX.encode(), 5, 3, b"orders", b"orders", 0, 70)
    ]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # a NumPy integer if kernels are interpreted
def test_the_smallest_queue_offset_does_not_follow_the_largest() -> None:
    first, second = runs_of(a_record(5, 2**63 - 1), a_record(6, -(2**63)))
    assert (first.queue_offset, second.queue_offset) == (2**63 - 1, -(2**63))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x",
        PREFIX,
        unique_key(PREFIX, 5)[:-1],
        unique_key(PREFIX, 5) + "0",
        "G" + unique_key(PREFIX, 5)[1:],
        unique_key(PREFIX, 5)[:-1] + "G",
        unique_key(PREFIX, 5)[:-1] + "a",
        "7F" * 28,
    ],
)
def test_a_key_that_no_producer_of_counters_made_does_not_count(key: str) -> None:
    assert runs_of(a_record(key=key)) == []


@pytest.mark.parametrize(
    "copy",
    [
        a_record(sys_flag=SysFlag.TRANSACTION_COMMIT),
        a_record(reconsume_times=1),
        a_record(more="RETRY_TOPIC\x01orders\x02"),
        a_record(more="REAL_TOPIC\x01orders\x02"),
        a_record(topic=b"SCHEDULE_TOPIC_XXXX", more="REAL_TOPIC\x01%RETRY%g\x02RETRY_TOPIC\x01orders\x02"),
        a_record(topic=b"SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_a_message_that_was_stored_before_does_not_count_again(copy: Record) -> None:
    assert runs_of(copy) == []


@pytest.mark.parametrize("topic", WAITING_TOPICS)
def test_a_message_that_waits_counts_for_the_topic_that_it_was_sent_to(topic: bytes) -> None:
    more = "REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
    assert runs_of(a_record(5, 7, topic=topic, more=more), a_record(6, 8, topic=topic, more=more)) == [
        Run(0, PREFIX.encode(), 5, 2, b"orders", topic, 0, 7)
    ]


def test_the_topics_of_waiting_messages_are_those_of_delivery() -> None:
    assert tuple(name.encode() for name in sequences.WAITING_TOPICS) == WAITING_TOPICS


def test_the_kernel_stops_at_the_end_of_the_records() -> None:
    log = write_log([a_record(5, 0)])
    assert call(log + bytes(200), 0, len(log) + 200, 0)[:2] == (dispatch.NO_RECORD, len(log))
    assert call(log, 0, len(log), 1)[:2] == (dispatch.BAD_PHYSICAL_OFFSET, 0)
