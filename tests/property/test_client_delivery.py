"""Whatever the broker and the network do: every message is settled once, and pinned queues keep their order."""

from __future__ import annotations

import struct
from collections import defaultdict
from math import inf

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flintmq.client import (
    ConnectionFailed,
    DeliveryFailed,
    FlintError,
    Message,
    MessageIllegal,
    NoPermission,
    SystemBusy,
)
from flintmq.client.core.compression import Compressor
from flintmq.client.core.delivery import Delivery
from flintmq.client.core.lanes import Bulk, Group, Single
from flintmq.client.core.packing import RowSource
from flintmq.client.core.receipts import Acknowledged
from flintmq.client.core.session import Answer
from flintmq.protocol.commands import HelloAnswer

BOUND = 60_000
LIMITS = HelloAnswer(1, "b", "0", "async", 1 << 24, 9_000, 1 << 19)
queues = st.sampled_from([-1, 0, 1])


class DeliveryMachine(RuleBasedStateMachine):
    """A ``Delivery``, and a broker that stores, refuses, loses connections and loses answers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.delivery = Delivery(10.0, BOUND, "AB" * 10, 0)
        self.delivery.connected(LIMITS)
        self.next_number = 0
        self.next_id = 1
        self.in_flight: dict[int, tuple[int, list[int]]] = {}
        """What the broker has not looked at yet: queue and messages by request id."""
        self.stored: dict[int, list[int]] = defaultdict(list)
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
        self.delivery.add_bulk(bulk, "t", queue, Group(bulk, source, range(count), "", ""))
        self.bulks[tuple(number for number, _ in pairs)] = bulk

    @rule()
    def send(self) -> None:
        while (request := self.delivery.next_request(self.now, self.next_id)) is not None:
            head, body = request
            assert len(head) + len(body) <= LIMITS.produce_frame_bytes_max
            self.in_flight[self.next_id] = (self.delivery.in_flight[self.next_id].lane.queue, self.numbers(body))
            self.next_id += 1

    @precondition(lambda self: self.in_flight)
    @rule()
    def store(self) -> None:
        """The broker stores the oldest frame, or refuses it for a message that is illegal."""
        request_id = min(self.in_flight)
        queue, numbers = self.in_flight.pop(request_id)
        if self.bad & set(numbers):
            fields, body, code = MessageIllegal("bad").fields(), b"", MessageIllegal.code
        else:
            self.stored[queue] += numbers
            fields = {"queue": max(0, queue), "queue_offset": 0, "store_ms": 0}
            body, code = struct.pack(f">{len(numbers)}q", *numbers), 0
        self.delivery.answered(Answer(request_id, code, fields, body), self.now)

    @precondition(lambda self: self.in_flight)
    @rule(error=st.sampled_from([SystemBusy("busy", retry_after_ms=50), NoPermission("no")]))
    def refuse(self, error: SystemBusy) -> None:
        request_id = min(self.in_flight)
        del self.in_flight[request_id]
        self.delivery.answered(Answer(request_id, error.code, error.fields(), b""), self.now)

    @rule(stored_first=st.booleans())
    def lose_connection(self, stored_first: bool) -> None:
        if stored_first and self.in_flight:  # the frame is stored, its answer is lost
            queue, numbers = self.in_flight[min(self.in_flight)]
            if not self.bad & set(numbers):
                self.stored[queue] += numbers
        self.in_flight.clear()
        self.delivery.connection_lost(ConnectionFailed("gone"), self.now)
        self.delivery.connected(LIMITS)

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
        """The broker is well again for a long time: everything must be settled, exactly once."""
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
                assert not isinstance(outcome, DeliveryFailed)
                if isinstance(outcome, Acknowledged):
                    assert numbers[index] in everything
        for queue in (0, 1):
            first_time = list(dict.fromkeys(self.stored[queue]))
            assert first_time == sorted(first_time), "a pinned queue lost its order"


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
