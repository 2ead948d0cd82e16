"""Whatever broker and network do, every message is settled once and stored once, pinned queues keep their order, and
only illegal messages fail as illegal.

The broker of these tests recognises resent messages like a real one: with its table.
"""

from __future__ import annotations

import contextlib
import struct
from collections import defaultdict
from dataclasses import dataclass
from math import inf

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flintmq.broker.delivery.deduplication import ProducerSequences
from flintmq.client import (
    ConnectionFailed,
    DeliveryFailed,
    FlintError,
    Message,
    MessageIllegal,
    NoPermission,
    PartlyStored,
    SystemBusy,
)
from flintmq.client.core.compression import Compressor
from flintmq.client.core.produce.accumulator import BatchGroup, Bulk, Single
from flintmq.client.core.produce.delivery import Outbox
from flintmq.client.core.produce.packer import RowSource
from flintmq.client.core.produce.receipts import Acknowledged
from flintmq.client.core.rpc.session import Answer
from flintmq.protocol.commands import HelloAnswer
from flintmq.protocol.errors import BrokerError

BOUND = 60_000
PREFIX = "AB" * 10
CHOSEN = 8
"""Queue that the broker chooses; its number is higher than any that a message asks for."""
LIMITS = HelloAnswer(1, "b", "0", "async", 1 << 24, 9_000, 1 << 19)
queues = st.sampled_from([-1, 0, 1])


@dataclass(frozen=True)
class Sent:
    """A frame as the broker gets it: the requested queue, the first message's counter, and the messages' numbers."""

    queue: int
    first: int
    numbers: list[int]


class DeliveryMachine(RuleBasedStateMachine):
    """An ``Outbox``, and a broker that stores, refuses, loses connections and loses responses."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.delivery = Outbox(10.0, BOUND, PREFIX, 0)
        self.delivery.connected(LIMITS)
        self.next_number = 0
        self.next_id = 1
        self.in_flight: dict[int, Sent] = {}
        """Frames that the broker has not processed yet, by request id."""
        self.late: list[Sent] = []
        """Such frames of lost connections: no client learns their outcome."""
        self.stored: dict[int, list[int]] = defaultdict(list)
        self.sequences = ProducerSequences(runs_max=100_000, producer_runs_max=10_000, expiry_s=1e9)
        self.singles: dict[int, Single] = {}
        self.bulks: dict[tuple[int, ...], Bulk] = {}
        self.bad: set[int] = set()

    def number(self, *, bad: bool) -> tuple[int, bytes]:
        number = self.next_number
        self.next_number += 1
        if bad:
            self.bad.add(number)
        return number, b"%d " % number + b"x" * (number * 37 % 1500)

    @rule(queue=queues, bad=st.booleans(), seconds=st.sampled_from([1.0, 10.0]))
    def add_single(self, queue: int, bad: bool, seconds: float) -> None:
        number, body = self.number(bad=bad)
        if self.delivery.has_room(len(body)):
            self.singles[number] = self.delivery.add_single("t", queue, (body, {}), "", self.now + seconds)

    @rule(queue=queues, count=st.integers(1, 60), seconds=st.sampled_from([2.0, inf]), bad=st.integers(0, 100))
    def add_bulk(self, queue: int, count: int, seconds: float, bad: int) -> None:
        pairs = [self.number(bad=place == bad) for place in range(count)]
        bulk = Bulk(count, self.now, self.now + seconds)
        source = RowSource([Message("t", body) for _, body in pairs], Compressor(None))
        self.delivery.add_bulk(bulk, "t", queue, BatchGroup(bulk, source, range(count), "", ""))
        self.bulks[tuple(number for number, _ in pairs)] = bulk

    @rule()
    def send(self) -> None:
        while (request := self.delivery.next_request(self.now, self.next_id)) is not None:
            head, body = request
            assert len(head) + len(body) <= LIMITS.produce_frame_bytes_max
            frame = self.delivery.in_flight[self.next_id]
            self.in_flight[self.next_id] = Sent(frame.lane.queue % CHOSEN, frame.first, self.numbers(body))
            self.next_id += 1

    def produce(self, sent: Sent, torn_at: int | None = None) -> tuple[dict[str, int], bytes]:
        """Store a frame as a broker does, or recognise it; return the response. A torn one is stored up to a
        message."""
        queue, numbers = sent.queue, sent.numbers
        before = self.sequences.find(PREFIX, "t", sent.first, len(numbers))
        if before is not None:
            offset = before.queue_offset
            assert self.stored[before.queue][offset : offset + len(numbers)] == numbers
            queue = before.queue
        elif self.bad & set(numbers):
            raise MessageIllegal("bad")
        else:
            kept, offset = numbers[:torn_at], len(self.stored[queue])
            self.stored[queue] += kept
            if kept:
                self.sequences.stored(PREFIX, "t", sent.first, len(kept), "t", queue, offset, self.now)
        fields = {"queue": queue, "queue_offset": offset, "store_ms": 0}
        return fields, struct.pack(f">{len(numbers)}q", *numbers)

    @precondition(lambda self: self.in_flight)
    @rule()
    def store(self) -> None:
        """Let the broker process the oldest frame."""
        request_id = min(self.in_flight)
        try:
            code, (fields, body) = 0, self.produce(self.in_flight.pop(request_id))
        except BrokerError as error:
            code, fields, body = error.code, error.fields(), b""
        self.delivery.answered(Answer(request_id, code, fields, body), self.now)

    @precondition(lambda self: self.in_flight)
    @rule(error=st.sampled_from([SystemBusy("busy", retry_after_ms=50), NoPermission("no")]))
    def refuse(self, error: SystemBusy) -> None:
        request_id = min(self.in_flight)
        del self.in_flight[request_id]
        self.delivery.answered(Answer(request_id, error.code, error.fields(), b""), self.now)

    @rule(stored=st.integers(0, 3), torn_at=st.none() | st.integers(0, 20), late=st.booleans())
    def lose_connection(self, stored: int, torn_at: int | None, late: bool) -> None:
        """Lose the connection: some frames are stored without a response, the last perhaps torn by a crash; others may
        still be processed later."""
        waiting = [self.in_flight[request_id] for request_id in sorted(self.in_flight)]
        for number, sent in enumerate(waiting[:stored], 1):
            with contextlib.suppress(BrokerError):
                self.produce(sent, torn_at if number == stored else None)
        if late and torn_at is None:
            self.late += waiting[stored:]
        self.in_flight.clear()
        self.delivery.connection_lost(ConnectionFailed("gone"), self.now)
        self.delivery.connected(LIMITS)

    @precondition(lambda self: self.late)
    @rule()
    def process_late_frames(self) -> None:
        with contextlib.suppress(BrokerError):
            self.produce(self.late.pop(0))

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.delivery.expire_due(self.now):
            self.delivery.expire(self.now)

    def numbers(self, body: bytes | memoryview) -> list[int]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(body)
        return [int(row[0].split()[0]) for row in unpacker]

    @invariant()
    def bytes_are_bounded(self) -> None:
        assert 0 <= self.delivery.pending_bytes <= BOUND + LIMITS.produce_frame_bytes_max

    @invariant()
    def a_pinned_queue_has_one_frame_in_flight(self) -> None:
        for queue in (0, 1):
            assert sum(frame.lane.queue == queue for frame in self.delivery.in_flight.values()) <= 1

    @invariant()
    def what_is_acknowledged_is_stored(self) -> None:
        everything = {number for numbers in self.stored.values() for number in numbers}
        for number, single in self.singles.items():
            if single.done and single.error is None:
                assert single.receipt().physical_offset == number
                assert number in everything

    def teardown(self) -> None:
        """Keep the broker sound for a long time: every message must be settled, exactly once."""
        for _ in range(2000):
            if self.delivery.idle:
                break
            self.now += 0.2
            if self.delivery.expire_due(self.now):
                self.delivery.expire(self.now)
            self.send()
            while self.in_flight:
                self.store()
        assert self.delivery.idle
        assert self.delivery.pending_bytes == 0
        everything = {number for numbers in self.stored.values() for number in numbers}
        assert all(single.done for single in self.singles.values())
        assert not any(isinstance(single.error, PartlyStored) for single in self.singles.values())
        acknowledged = {number for number, single in self.singles.items() if single.error is None}
        blamed = {number for number, single in self.singles.items() if isinstance(single.error, MessageIllegal)}
        for numbers, bulk in self.bulks.items():
            assert bulk.done
            outcomes: dict[int, object] = {}
            for part in bulk.parts:
                for index in part.indexes:
                    assert index not in outcomes, "settled twice"
                    outcomes[index] = part.outcome
            assert sorted(outcomes) == list(range(len(numbers)))
            for index, outcome in outcomes.items():
                assert isinstance(outcome, Acknowledged | FlintError)
                assert not isinstance(outcome, DeliveryFailed | PartlyStored)
                if isinstance(outcome, MessageIllegal):
                    blamed.add(numbers[index])
                if isinstance(outcome, Acknowledged):
                    assert numbers[index] in everything
                    acknowledged.add(numbers[index])
        assert blamed <= self.bad, "a sound message fails with an illegal one"
        for queue, stored in self.stored.items():
            assert len(set(stored)) == len(stored), "a message is stored twice"
            kept = [number for number in stored if number in acknowledged]
            assert queue == CHOSEN - 1 or kept == sorted(kept), "a pinned queue lost its order"


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
