"""Connections that a kernel reads and answers: a broker with them does the same as one without, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import resource
import socket
import termios
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.kernels import short_sends as kernel
from flintmq.broker.kernels.addresses import AVAILABLE
from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.requests.short_sends import ShortSends
from flintmq.protocol.errors import ServiceNotAvailable
from flintmq.protocol.frames import ProduceHead, PullHead
from tests.native_side import CHANGES, TOPICS, NativeSide, change_topic
from tests.paired_brokers import Pair, Wire, pair_of, split_evenly
from tests.property.test_repeated_produce import produces

HEADS = [
    ProduceHead(topic, queue, 0, flush, "TAGS\x01red\x02", prefix)
    for topic, queue, flush, prefix in [
        ("orders", -1, "", "AB" * 10),
        ("orders", 0, "", "CD" * 10),
        ("orders", 1, "sync", "CD" * 10),
        ("payments", 0, "", ""),
        ("payments", -1, "", "AB" * 10),
    ]
]

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the kernel needs Linux, and is not interpreted")

CLIENTS = 3


@dataclass
class SocketWire(Wire):
    """A transport with a real socket, which reads only when the test lets it."""

    ours: socket.socket = field(init=False)
    client: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.ours, self.client = socket.socketpair()
        for each in (self.ours, self.client):
            each.setblocking(False)

    def get_extra_info(self, name: str) -> Any:
        """Return the socket."""
        assert name == "socket", name
        return self.ours

    def write(self, data: bytes) -> None:
        """Send the data; if the socket is full, the client reads."""
        rest = memoryview(data)
        while rest:
            with suppress(BlockingIOError):
                rest = rest[self.ours.send(rest) :]
            self.receive()

    def writelines(self, parts: list[bytes]) -> None:
        """Send the data; if the socket is full, the client reads."""
        self.write(b"".join(parts))

    def receive(self) -> None:
        """Keep what the broker has sent."""
        with suppress(BlockingIOError):
            while part := self.client.recv(1 << 16):
                self.sent += part

    def unread(self) -> bool:
        """Return whether the broker has not read everything."""
        return any(fcntl.ioctl(self.ours.fileno(), termios.FIONREAD, bytes(4)))


class SocketSide(NativeSide):
    """A broker with several clients on sockets; ``use`` chooses the one that ``feed`` uses."""

    def connect(self) -> None:
        """Open all connections."""
        self.wires: list[SocketWire] = []
        self.connections: list[ClientConnection] = []
        for _ in range(CLIENTS):
            self.wires.append(SocketWire())
            self.connections.append(self.make_connection())
            self.connections[-1].connection_made(cast(asyncio.Transport, self.wires[-1]))
            self.connections[-1].enter_after = 0

    async def prepare(self) -> None:
        """Say HELLO on each connection, and create the topics."""
        for number in range(CLIENTS):
            self.use(number)
            await super().prepare()
            self.wires[number].sent.clear()

    def use(self, number: int) -> None:
        """Choose a client."""
        self.wire, self.connection = self.wires[number], self.connections[number]

    async def feed(self, chunks: list[bytes], requests: int) -> None:
        """Send the chunks, each after the broker has read the one before, and wait for all responses."""
        wire = cast(SocketWire, self.wire)
        for chunk in chunks:
            wire.client.sendall(chunk)
            await self._until(lambda: self._pump() and not wire.unread())
        await self._until(lambda: self._pump() and len(self.answers()) >= requests)

    async def hold(self, requests: bytes, count: int) -> None:
        """Send pulls from the consumer, and return after each of them is answered or held."""
        self.use(CONSUMER)
        held = self.connection.deferred.held_pulls
        wanted = len(held) + len(self.answers()) + count
        await self.feed([requests], 0)
        await self._until(lambda: self._pump() and len(held) + len(self.answers()) == wanted)

    async def woken(self, topic: str, queue: int) -> None:
        """Return after no pull waits for a queue, and the consumer has all responses."""
        self.use(CONSUMER)
        await self._until(lambda: self._pump() and (topic, queue) not in self.broker.holds.by_queue)

    def _pump(self) -> bool:
        """Do what a transport would do now."""
        wire, connection = cast(SocketWire, self.wire), self.connection
        if connection.reading:
            room = connection.get_buffer(-1)
            with suppress(BlockingIOError):
                if size := wire.ours.recv_into(room):
                    connection.buffer_updated(size)
        for each in self.wires:
            each.receive()
        return True


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[SocketSide]]:
    before, ShortSends.enter_again_after = ShortSends.enter_again_after, 0
    with pair_of(SocketSide, request.param) as made:
        yield made
        for side in (made.short, made.general):
            for connection, wire in zip(side.connections, side.wires, strict=True):
                connection.connection_lost(None)
                wire.ours.close()
                wire.client.close()
    ShortSends.enter_again_after = before


@st.composite
def usual_produces(draw: st.DrawFn) -> tuple[ProduceHead, dict[str, Any]]:
    """Return one of few heads, and valid messages."""
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=3))
    body = b"".join(msgpack.packb([each, {"KEYS": "k"}]) for each in bodies)
    numbers = {"count": len(bodies), "first": draw(st.sampled_from([-1] * 20 + [3])), "born_ms": 0, "body": body}
    return draw(st.sampled_from(HEADS)), numbers


usual = usual_produces()
frames_of_a_step = st.lists(st.one_of(*[usual] * 20, produces()), min_size=1, max_size=3)
changes = st.tuples(st.sampled_from(TOPICS), st.sampled_from(CHANGES))
steps = st.lists(
    st.tuples(
        st.integers(0, CLIENTS - 1),
        frames_of_a_step,
        st.sampled_from([1] * 8 + [2, 4]),
        st.one_of(*[st.none()] * 12, changes),
    ),
    min_size=1,
    max_size=12,
)


@given(steps=steps, repeats=st.integers(2, 5), advance_ms=st.integers(0, 3))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_frames_that_the_kernel_reads_are_stored_answered_and_counted_as_others(
    pair: Pair[SocketSide], steps: list[Any], repeats: int, advance_ms: int
) -> None:
    sides = (pair.short, pair.general)
    entered = 0
    for client, frames, pieces, change in steps * repeats:
        stream = bytearray()
        for head, numbers in frames:
            pair.next_id += 1
            # Most counters rise from frame to frame, or all but the first would be duplicates.
            first = numbers["first"] if numbers["first"] >= 0 else 4 * pair.next_id
            stream += head.encode(pair.next_id, numbers["count"], first, numbers["born_ms"], len(numbers["body"]))
            stream += numbers["body"]
        entered += not pair.short.connections[client].reading
        for side in sides:
            side.use(client)
            side.clock.at_ms += advance_ms
        feed(pair, split_evenly(bytes(stream), pieces), len(frames))
        if change is not None:
            pair.next_id += 1
            feed(pair, [change_topic(change[0], change[1], pair.next_id)], 1)
    event(f"reads by the kernel: {min(entered, 8)}")
    for topic in TOPICS:
        pair.next_id += 1
        feed(pair, [change_topic(topic, "writable", pair.next_id)], 1)
    for side in sides:
        for connection in side.connections:
            assert not connection.responses.unflushed
        assert side.broker.in_flight.bytes == 0


def feed(pair: Pair[SocketSide], chunks: list[bytes], requests: int) -> None:
    """Send the same to both brokers, and compare what they make of it."""
    for side in (pair.short, pair.general):
        pair.runner.run(side.feed(chunks, requests))
    pair.check_equal()


def frames(pair: Pair[SocketSide], queue: int, count: int, body_bytes: int = 4) -> bytes:
    """Return new frames of one message."""
    stream = bytearray()
    for _ in range(count):
        pair.next_id += 1
        body = msgpack.packb([bytes(body_bytes), {}])
        head = ProduceHead("orders", queue, 0, "", "", "EF" * 10)
        stream += head.encode(pair.next_id, 1, 4 * pair.next_id, 0, len(body)) + body
    return bytes(stream)


def warm(pair: Pair[SocketSide], client: int) -> None:
    """Let a client of both brokers send frames until the kernel reads its connection."""
    for side in (pair.short, pair.general):
        side.use(client)
    for _ in range(4):
        feed(pair, [frames(pair, -1, 2)], 2)
        feed(pair, [frames(pair, 1, 2)], 2)
    assert not pair.short.connections[client].reading


def fail(*arguments: Any) -> None:
    """Do what a write to a full disk does."""
    raise OSError(errno.ENOSPC, "no space left on device")


@pytest.fixture
def full_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the kernel write to a device without room."""
    original = kernel.serve
    with open("/dev/full", "wb") as device:

        def serve(array: Any) -> Any:
            array[kernel.S_FILE] = device.fileno()
            return original(array)

        monkeypatch.setattr(kernel, "serve", serve)
        yield


@pytest.mark.parametrize("entered", [True, False])
def test_frames_that_a_full_disk_refuses_leave_nothing_behind(
    pair: Pair[SocketSide], monkeypatch: pytest.MonkeyPatch, full_device: None, entered: bool
) -> None:
    sides = (pair.short, pair.general)
    warm(pair, 0)
    connection = pair.short.connections[0]
    if not entered:
        connection._leave_short_way()
    refused = frames(pair, -1, 3)
    with monkeypatch.context() as patch:
        for side in sides:
            patch.setattr(side.broker.store.commitlog.writer._os, "write", fail)
            pair.runner.run(side.feed([refused], 3))
            # Not the whole answers: they name the folder and the free bytes.
            assert {code for _, code, _, _ in side.answers()} == {ServiceNotAvailable.code}
            side.wire.sent.clear()
    pair.check_equal()
    assert connection.reading
    for _ in range(3):
        feed(pair, [frames(pair, -1, 2)], 2)


def test_records_that_the_kernel_could_not_write_are_written_all_the_same(
    pair: Pair[SocketSide], full_device: None
) -> None:
    warm(pair, 1)
    assert not pair.short.connections[1].reading


def test_frames_after_those_that_filled_the_disk_are_refused_alone(
    pair: Pair[SocketSide], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, count = (0, 1), 16
    for client in clients:
        warm(pair, client)
    # The kernel reads a connection in pieces of as many frames, and if it may answer, both pieces in one turn.
    piece = kernel.SLOT_BYTES
    body_bytes = piece // count - len(frames(pair, 1, 1, 300)) + 300
    streams = [frames(pair, 1, 2 * count, body_bytes) for _ in clients]
    assert [len(stream) for stream in streams] == [2 * piece, 2 * piece]

    async def send(side: SocketSide, streams: list[bytes], answers: int) -> None:
        for client, stream in zip(clients, streams, strict=True):
            side.wires[client].client.sendall(stream)
        for client in clients:
            side.use(client)
            await side._until(lambda: side._pump() and len(side.answers()) >= answers)

    def answered(side: SocketSide, client: int) -> tuple[list[Any], list[int]]:
        side.use(client)
        answers = side.answers()
        side.wire.sent.clear()
        return [each for each in answers if each[1] == 0], [each[0] for each in answers if each[1] != 0]

    def position(side: SocketSide) -> int:
        commitlog = side.broker.store.commitlog
        return commitlog.write_offset - commitlog.queue.files[-1].start_offset

    general, short = pair.general, pair.short
    begin = position(general)
    pair.runner.run(send(general, [stream[:piece] for stream in streams], count))
    size = position(general) - begin
    with monkeypatch.context() as patch:
        patch.setattr(general.broker.store.commitlog.writer._os, "write", fail)
        pair.runner.run(send(general, [stream[piece:] for stream in streams], 2 * count))
    limit, limits = position(short) + size, resource.getrlimit(resource.RLIMIT_FSIZE)
    original = kernel.serve

    def serve(array: Any) -> Any:
        # A limit instead of a full device, because what is below it is written.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            return original(array)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "serve", serve)
        patch.setattr(short.broker.store.commitlog.writer._os, "write", fail)
        pair.runner.run(send(short, streams, 2 * count))
    for client in clients:
        stored, refused = answered(short, client)
        assert (stored, refused) == answered(general, client)
        assert len(stored) == len(refused) == count
    pair.check_equal()
    for client in clients:
        warm(pair, client)


CONSUMER = 2
waiting_pulls = st.tuples(st.integers(0, 1), st.sampled_from([{}, {}, {}, {"max_bytes": 150}, {"group": "g"}]))
sizes = st.one_of(*[st.sampled_from([[0], [4], [40]])] * 4, st.sampled_from([[4, 4], [kernel.NEWEST_BYTES_MAX]]))
deliveries = st.lists(
    st.tuples(
        st.lists(waiting_pulls, min_size=1, max_size=2), st.integers(0, 1), sizes, st.sampled_from([True] * 6 + [False])
    ),
    min_size=1,
    max_size=8,
)


@given(steps=deliveries)
@settings(
    max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pulls_that_the_kernel_answers_get_the_same_responses_as_others(
    pair: Pair[SocketSide], steps: list[Any]
) -> None:
    sides, topic = (pair.short, pair.general), "orders"
    warm(pair, 0)
    short_pulls = pair.short.broker.short_sends
    assert short_pulls is not None
    answered = short_pulls.pulls.given
    given = 0

    def count(place: int, record: memoryview) -> None:
        nonlocal given
        given += 1
        answered(place, record)

    # At the end, a message for each queue ends the pulls that are left.
    steps = [*steps, ([], 0, [4], False), ([], 1, [4], False)]
    with mock.patch.object(short_pulls.pulls, "given", count):
        for waiting, queue, bodies, entered in steps:
            requests = b""
            for of_queue, fields in waiting:
                pair.next_id += 1
                offset = pair.general.broker.store.append_offsets.known(topic, of_queue)
                values = {"topic": topic, "queue": of_queue, "max_count": 5, "max_bytes": 1 << 20, "wait_ms": 60_000}
                requests += PullHead(values | fields).encode(pair.next_id, offset)
            packed = b"".join(msgpack.packb([bytes(size), {}]) for size in bodies)
            pair.next_id += 1
            head = ProduceHead(topic, queue, 0, "", "", "EF" * 10)
            sent = head.encode(pair.next_id, len(bodies), 4 * pair.next_id, 0, len(packed)) + packed
            for side in sides:
                pair.runner.run(side.hold(requests, len(waiting)))
                side.use(0 if entered else 1)
                pair.runner.run(side.feed([sent], 1))
                pair.runner.run(side.woken(topic, queue))
            responses = []
            for side in sides:
                side.use(CONSUMER)
                responses.append(sorted(side.answers(), key=lambda answer: answer[0]))
                side.wire.sent.clear()
                side.use(0 if entered else 1)
            assert responses[0] == responses[1]
            pair.check_equal()
            assert pair.short.pulled() == pair.general.pulled()
    event(f"messages given by the kernel: {min(given, 5)}")
