"""Records whose checksums are right but which claim to be other messages: another topic, queue or queue offset.

No checksum covers these fields in a plain store. Each start must finish, and name the messages it lost.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.broker.store import DamagedRecord, MessageStore
from flintmq.broker.store.errors import ContainmentStuck
from flintmq.broker.store.recovery.derived_check import Examination
from flintmq.protocol.storage.layout import RECORD
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    assert_contained,
    copy_store,
    kill,
    lost_of,
    open_store,
    overwrite,
    pull_all,
    put,
    reopen,
    without_dispatched,
)
from tests.twins.arrays import examples

FIRST = "0" * 20
BODY_AT = 88
"""Offset of the body in a record whose hosts are both IPv4 addresses."""
SMALL_BODY_BYTES = 4
LARGE_BODY_BYTES = 100


class ContainedTwice(AssertionError):
    """A start contained the same place a second time."""


class EachPlaceOnce(logging.Handler):
    """Log handler that ends a start that would contain the same place for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._places: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"is damaged: .*physical offset ([\d,]+)", record.getMessage())
        if found is not None:
            self._places[found[1]] += 1
            if self._places[found[1]] > 1:
                raise ContainedTwice(record.getMessage())


@contextmanager
def each_place_is_contained_once() -> Iterator[None]:
    handler = EachPlaceOnce()
    logger = logging.getLogger("flintmq.broker.store.recovery.holes")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def a_copy(source: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="flintmq-") as folder:
        yield copy_store(source, Path(folder) / "store")


@dataclass(frozen=True)
class Filled:
    """A stopped store, and its messages."""

    path: Path
    sent: list[Sent] = field(repr=False)


def fill(path: Path, body_bytes: int) -> list[Sent]:
    """Create a stopped store: 60 messages of one queue, and 40 of three others between them."""
    store, source, sent = open_store(path), random.Random(3), []
    for number in range(100):
        topic, queue = ("orders", 0) if number % 5 < 3 else source.choice([("orders", 1), ("bills", 0), ("bills", 1)])
        sent += put(store, topic, queue, [Message(b"%d" % number * (body_bytes // 2), keys=(f"k{number}",))])
    store.close()
    return sent


@pytest.fixture(scope="module", params=[SMALL_BODY_BYTES, LARGE_BODY_BYTES])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    path = tmp_path_factory.mktemp("filled") / "store"
    return Filled(path, fill(path, request.param))


def of_orders(sent: Sequence[Sent], *numbers: int) -> list[Sent]:
    messages = [each for each in sent if (each.topic, each.queue) == ("orders", 0)]
    return [messages[number] for number in numbers]


def change(path: Path, at: int, change_byte: Callable[[int], int]) -> None:
    log = path / "commitlog" / FIRST
    overwrite(log, at, bytes([change_byte(log.read_bytes()[at]) & 0xFF]))


def topic_at(each: Sent) -> int:
    return each.physical_offset + BODY_AT + len(each.message.body) + 1


def undispatched(path: Path) -> None:
    """Remove the derived files, so that only the log says which messages there are."""
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").write_bytes(without_dispatched(path / "checkpoint"))


# The same bit of the topic in several records of one queue.


@pytest.mark.parametrize(
    "numbers", [(0,), (10,), (59,), (10, 11), (10, 12), (10, 11, 12, 13), (0, 1), (58, 59), (0, 2, 30, 57, 59)], ids=str
)
@pytest.mark.parametrize("bit", [0, 1, 5], ids=["nrders", "mrders", "Orders"])
def test_records_with_the_same_wrong_topic_cost_only_themselves(
    filled: Filled, tmp_path: Path, numbers: tuple[int, ...], bit: int
) -> None:
    source, sent = filled.path, filled.sent
    path = copy_store(source, tmp_path / "store")
    lost = of_orders(sent, *numbers)
    for each in lost:
        change(path, topic_at(each), lambda byte: byte ^ 1 << bit)
    with each_place_is_contained_once():
        assert_contained(path, sent, lost)


def test_all_records_of_a_queue_with_the_same_wrong_topic_are_named(filled: Filled, tmp_path: Path) -> None:
    source, sent = filled.path, filled.sent
    path = copy_store(source, tmp_path / "store")
    lost = of_orders(sent, *range(60))
    for each in lost:
        change(path, topic_at(each), lambda byte: byte ^ 1)
    with each_place_is_contained_once():
        assert_contained(path, [each for each in sent if each.topic == "bills"] + lost, lost)


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
@pytest.mark.parametrize("queue_offset", [-1, -(2**63), 2**63 - 1, 2**62])
def test_an_impossible_queue_offset_costs_its_message(
    filled: Filled, tmp_path: Path, known: str, queue_offset: int
) -> None:
    source, sent = filled.path, filled.sent
    path = copy_store(source, tmp_path / "store")
    lost = of_orders(sent, 20, 22)
    for each in lost:
        at = each.physical_offset + RECORD.at["queue_offset"]
        overwrite(path / "commitlog" / FIRST, at, queue_offset.to_bytes(8, "big", signed=True))
    if known == "by the log alone":
        undispatched(path)
    with each_place_is_contained_once():
        assert_contained(path, sent, lost)


def test_one_wrong_record_after_a_lost_one_does_not_discredit_right_ones(filled: Filled, tmp_path: Path) -> None:
    """Message 10 is lost, so 11 follows a gap; 12 claims to be 3, which is below 11."""
    source, sent = filled.path, filled.sent
    path = copy_store(source, tmp_path / "store")
    lost, liar = of_orders(sent, 10, 12)
    change(path, lost.physical_offset + BODY_AT, lambda byte: byte ^ 1)
    overwrite(path / "commitlog" / FIRST, liar.physical_offset + RECORD.at["queue_offset"], (3).to_bytes(8, "big"))
    undispatched(path)
    with each_place_is_contained_once():
        store, report = reopen(path)
    assert lost_of(report) == {("orders", 0, 10)}
    assert [record.queue_offset for record in pull_all(store, "orders", 0)] == [
        number for number in range(60) if number not in (10, 12)
    ]
    kill(store)


# Random changes.

Change = tuple[int, str, int, int]
"""(number of the message, field, byte of the field, bits to flip)."""
changes = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.one_of(
            st.tuples(st.just("topic"), st.integers(0, 4)),
            st.tuples(st.just("queue_id"), st.integers(0, 3)),
            st.tuples(st.just("queue_offset"), st.integers(0, 7)),
        ),
        st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.integers(1, 255)),
    ).map(lambda drawn: (drawn[0], *drawn[1], drawn[2])),
    min_size=1,
    max_size=8,
    unique_by=lambda each: each[0],
)


def damage(path: Path, sent: Sequence[Sent], changes: Sequence[Change]) -> list[Sent]:
    """Apply the changes; return the messages that they hit."""
    for number, name, byte, bits in changes:
        each = sent[number]
        at = topic_at(each) if name == "topic" else each.physical_offset + RECORD.at[name]
        change(path, at + byte, bits.__xor__)
    return [sent[number] for number in sorted({each[0] for each in changes})]


@given(changes)
@example([(0, "topic", 0, 1), (1, "topic", 0, 1)])
@example([(15, "queue_id", 3, 1), (17, "queue_id", 3, 1), (18, "queue_offset", 7, 8)])
@examples(40)
def test_a_start_with_wrong_records_finishes_and_names_each_of_them(filled: Filled, changes: list[Change]) -> None:
    source, sent = filled.path, filled.sent
    with a_copy(source) as path:
        lost = damage(path, sent, changes)
        with each_place_is_contained_once():
            store, report = reopen(path)
        assert lost_of(report) == {(each.topic, each.queue, each.queue_offset) for each in lost}
        assert_all_but_these_are_there(store, sent, lost)
        kill(store)
        store, report = reopen(path)
        assert (report.quarantined, report.rebuilt) == ([], [])
        assert_all_but_these_are_there(store, sent, lost)
        kill(store)


@given(changes)
@example([(0, "topic", 0, 1), (1, "topic", 0, 1)])
@examples(40)
def test_a_start_with_wrong_records_and_only_the_log_finishes(filled: Filled, changes: list[Change]) -> None:
    """If two records claim to be the same message, only a checksum could tell which one is wrong."""
    source, sent = filled.path, filled.sent
    with a_copy(source) as path:
        damage(path, sent, changes)
        undispatched(path)
        with each_place_is_contained_once():
            store, _ = reopen(path)
        kill(store)
        store, report = reopen(path)
        assert (report.quarantined, report.rebuilt) == ([], [])
        kill(store)


def assert_all_but_these_are_there(store: MessageStore, sent: Sequence[Sent], lost: Sequence[Sent]) -> None:
    for topic, queue in {(each.topic, each.queue) for each in sent}:
        expected = [
            (each.queue_offset, each.message.body)
            for each in sent
            if (each.topic, each.queue) == (topic, queue) and each not in lost
        ]
        assert [(record.queue_offset, record.body) for record in pull_all(store, topic, queue)] == expected


# Containment terminates.


def test_a_start_that_finds_a_contained_place_damaged_again_fails_with_a_typed_error(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No damage is known to cause this: the test makes the check accuse the same sound record each time."""
    source, sent = filled.path, filled.sent
    path = copy_store(source, tmp_path / "store")
    accused = of_orders(sent, 10)[0].physical_offset
    examine = Examination.examine

    def accuse(self: Examination, dispatched: int, end: int) -> tuple[dict[int, int], int]:
        found = examine(self, dispatched, end)
        self.liars[accused] = DamagedRecord("accused", accused, "an accused record")
        return found

    monkeypatch.setattr(Examination, "examine", accuse)
    with pytest.raises(ContainmentStuck, match=f"physical offset {accused:,} .* damaged again.*rebuild STORE"):
        open_store(path, SMALL)
