"""The memory that connections share: receive buffers, kept frames, and the order in which connections resume."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.budgets import (
    ANSWER_BYTES_MIN,
    FLOOR_BYTES,
    LOOK_EVERY_S,
    SHARED_BYTES,
    SMALL_BYTES,
    ReceiveBudget,
    SendBudget,
    SharingParser,
)
from flintmq.protocol.frames import FRAME_BYTES_MAX, REQUEST, Frame, encode_frame

KIB = 1024
MIB = 1024 * 1024


class Reader:
    """The receiving side of one connection, which reads from prepared bytes."""

    def __init__(self, memory: ReceiveBudget, arrived: bytes) -> None:
        self.memory = memory
        self.parser = SharingParser(FRAME_BYTES_MAX, memory)
        self.unread = memoryview(arrived)
        self.waits = False
        self.bodies: list[bytes] = []

    def has_memory(self) -> None:
        self.waits = False

    def read(self, at_most: int) -> None:
        """Read once and handle the complete frames, as a connection does."""
        room = self.parser.writable()
        size = min(len(room), at_most, len(self.unread))
        room[:size] = self.unread[:size]
        self.unread = self.unread[size:]
        self.parser.received(size)
        frames = 0
        while (frame := self.parser.next_frame()) is not None:
            self.bodies.append(bytes(frame.body))
            frames += 1
        if frames:
            self.memory.done(self.parser)
        if not self.parser.settle():
            self.waits = True
            self.memory.wait(self)


def frame(body: bytes) -> bytes:
    return encode_frame(REQUEST, 10, 1, {}, body)


def soon_calls() -> tuple[list[Callable[[], None]], Callable[[], None]]:
    """Return the calls that were scheduled, and a function that runs them."""
    calls: list[Callable[[], None]] = []

    def run() -> None:
        while calls:
            calls.pop(0)()

    return calls, run


@given(
    sizes=st.lists(st.lists(st.integers(0, 600 * KIB), min_size=1, max_size=4), min_size=1, max_size=6),
    max_bytes=st.sampled_from([4096, 100 * KIB, MIB, 64 * MIB]),
    order=st.randoms(use_true_random=False),
)
def test_all_frames_of_all_connections_arrive_complete_within_the_memory_bound(
    sizes: list[list[int]], max_bytes: int, order: random.Random
) -> None:
    calls, run = soon_calls()
    memory = ReceiveBudget(max_bytes, calls.append)
    numbers = count()
    sent = [[next(numbers).to_bytes(2, "big") * (size // 2) for size in own] for own in sizes]
    readers = [Reader(memory, b"".join(map(frame, bodies))) for bodies in sent]
    largest = max(len(frame(body)) for bodies in sent for body in bodies)
    while any(reader.unread for reader in readers):
        ready = [reader for reader in readers if reader.unread and not reader.waits]
        assert ready, "there is always a connection that can resume"
        reader = order.choice(ready)
        reader.read(order.choice([1, 1000, 70_000, MIB]))
        run()
        own = sum(reader.parser.own_bytes for reader in readers)
        assert own == memory.used_bytes
        assert own <= max_bytes + largest + (len(readers) + 1) * 2 * FLOOR_BYTES
    assert [reader.bodies for reader in readers] == sent
    assert memory.used_bytes == 0, "a connection with nothing pending has no buffer"


def test_connections_waiting_for_memory_resume_in_fifo_order() -> None:
    calls, run = soon_calls()
    memory = ReceiveBudget(100 * KIB, calls.append)
    readers = [Reader(memory, frame(bytes(500 * KIB))) for _ in range(4)]
    for reader in readers:
        while reader.unread and not reader.waits:
            reader.read(SHARED_BYTES)
    order: list[Reader] = []
    while any(reader.unread for reader in readers):
        run()
        going = [reader for reader in readers if reader.unread and not reader.waits]
        order += [reader for reader in going if reader not in order]
        going[0].read(SHARED_BYTES)
    assert order == readers


def test_a_kept_frame_survives_the_reads_of_other_connections() -> None:
    calls, _ = soon_calls()
    memory = ReceiveBudget(MIB, calls.append)
    parser, other = SharingParser(FRAME_BYTES_MAX, memory), SharingParser(FRAME_BYTES_MAX, memory)
    both = frame(b"keep me") + frame(b"next")
    parser.writable()[: len(both)] = both
    parser.received(len(both))
    kept = parser.next_frame()
    assert isinstance(kept, Frame)
    parser.keep(kept)
    assert parser.settle()
    other.writable()[:1000] = b"x" * 1000
    assert bytes(kept.body) == b"keep me"
    parser.let_go()
    following = parser.next_frame()
    assert following is not None
    assert bytes(following.body) == b"next"
    parser.settle()
    assert memory.used_bytes == 0


class Slow:
    """A connection with ``unsent`` bytes that the client has not drained."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent

    def unsent_bytes(self) -> int:
        return self.unsent


def test_a_slow_reader_waits_until_it_drains_enough_and_others_do_not() -> None:
    clock = [0.0]
    timers: list[tuple[float, Callable[[], None]]] = []
    memory = SendBudget(MIB, lambda: clock[0], lambda seconds, call: timers.append((seconds, call)))
    slow, quick = Slow(MIB), Slow(0)
    memory.note(slow, MIB)
    assert memory.answer_bytes() == ANSWER_BYTES_MIN
    clock[0] += 1
    assert not memory.may_read(slow)
    assert memory.may_read(quick)
    called: list[bool] = []

    def read() -> None:
        called.append(memory.may_read(slow))

    memory.wait(read)
    ((seconds, look),) = timers
    assert seconds == LOOK_EVERY_S
    look()
    assert called == [False], "nothing was drained yet"
    slow.unsent = 0
    memory.wait(read)
    timers.pop()[1]()
    assert called == [False, True]


def test_above_one_and_a_half_times_the_budget_no_connection_is_served() -> None:
    clock = [0.0]
    memory = SendBudget(MIB, lambda: clock[0], lambda seconds, call: None)
    slow = [Slow(512 * KIB) for _ in range(3)]
    for each in slow:
        memory.note(each, each.unsent)
    clock[0] += 1
    assert not memory.may_read(Slow(0))
    slow[0].unsent = 0
    clock[0] += 1
    assert memory.may_read(Slow(0))


def test_few_unsent_bytes_of_a_connection_do_not_count() -> None:
    memory = SendBudget(MIB, lambda: 0.0, lambda seconds, call: None)
    slow = Slow(SMALL_BYTES)
    memory.note(slow, SMALL_BYTES)
    assert memory.used_bytes == 0
    memory.note(slow, SMALL_BYTES + 1)
    memory.note(slow, 0)
    assert memory.used_bytes == 0
