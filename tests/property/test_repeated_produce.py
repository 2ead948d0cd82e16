"""The short way of repeated PRODUCE headers: a broker that takes it does the same as one that never does."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.app.lifecycle import Lifecycle
from flintmq.broker.config import Settings
from flintmq.broker.handlers.repeated_produce import HEADERS_MAX
from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.requests.broker import Broker
from flintmq.broker.store.tables.clock import StoreClock
from flintmq.protocol.commands import DELETE_TOPIC_IN_BROKER, HELLO, PROTOCOL_VERSION, UPDATE_AND_CREATE_TOPIC, Command
from flintmq.protocol.frames import REQUEST, FrameParser, encode_head
from flintmq.protocol.produce_frame import ProduceHead

TOPICS = ("orders", "payments", "returns")
PREFIXES = ("", "AB" * 10, "CD" * 10)
QUIET_S = 60.0


class ManualClock(StoreClock):
    """A clock that only the test moves; it begins now, because the delivery of delayed messages has its own clock."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        """Return the time that the test has set."""
        return self.at_ms


@dataclass
class Wire:
    """A transport that keeps what the broker sends; the client reads at once."""

    sent: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes) -> None:
        """Keep the data."""
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        """Keep the data."""
        for part in parts:
            self.sent += part

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read."""
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: the buffer is always empty."""

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return False

    def pause_reading(self) -> None:
        """Do nothing: the test feeds bytes only to a connection that reads."""

    def resume_reading(self) -> None:
        """Do nothing, as ``pause_reading``."""


class Side:
    """One of the two brokers, with one connection."""

    def __init__(self, folder: Path, policy: str, now_ms: int) -> None:
        self._settings = _settings(folder, policy)
        self.clock = ManualClock(now_ms)

    async def start(self, *, short_way: bool) -> None:
        """Start the broker and say HELLO."""
        self.lifecycle = Lifecycle(self._settings, _fail)
        await self.lifecycle.start(lambda stage, done, total: None)
        assert self.lifecycle._broker is not None
        self.broker: Broker = self.lifecycle._broker
        self.broker.store.commitlog.clock = self.clock
        if not short_way:
            self.broker.kept_headers = HEADERS_MAX  # so that no connection keeps one
        self.connect()
        await self.feed([_request(HELLO, 1, {"protocol": PROTOCOL_VERSION, "client": "test"})], 1)
        for number, topic in enumerate(TOPICS, 2):
            await self.feed([_request(UPDATE_AND_CREATE_TOPIC, number, {"topic": topic, **_queues(2)})], number)
        self.wire.sent.clear()

    def connect(self) -> None:
        """Open the connection that ``feed`` uses."""
        self.wire = Wire()
        self.connection = ClientConnection(self.broker, ("127.0.0.1", 4000), lambda connection: None)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    async def feed(self, chunks: list[bytes], requests: int) -> None:
        """Let the bytes arrive in these chunks, each once the broker reads on, and wait for all responses."""
        connection = self.connection
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                await self._until(lambda: connection.reading)
                room = connection.get_buffer(len(rest))
                part = rest[: len(room)]
                room[: len(part)] = part
                rest = rest[len(part) :]
                connection.buffer_updated(len(part))
        await self._until(lambda: len(_frames(self.wire.sent)) >= requests)

    async def _until(self, holds: Any) -> None:
        deadline = time.monotonic() + QUIET_S
        while not holds():
            assert time.monotonic() < deadline, "the broker does not finish"
            await asyncio.sleep(0)

    def state(self) -> dict[str, Any]:
        """Return everything that both brokers must agree on."""
        broker, log = self.broker, self.broker.store.commitlog
        blob = bytearray(log.write_offset - log.start_offset)
        if blob:
            log.queue.read(log.start_offset, memoryview(blob), hot=False)
        produced = broker.counters.produced.by_topic
        return {
            "answers": _frames(self.wire.sent),
            "log": bytes(blob),
            "produced": {name: (each.frames, each.messages, each.bytes) for name, each in produced.items()},
            "errors": dict(broker.counters.errors),
            "duplicates": broker.counters.duplicates,
            "runs": broker.sequences.runs,
            "answered": sum(broker.counters.produce_latencies.counts),
            "next queues": dict(broker.next_queue),
        }


def _settings(folder: Path, policy: str) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": str(folder), "commitlog_file_bytes": 64 << 20},
            "server": {"listen": "127.0.0.1:0", "advertise": "127.0.0.1:10911"},
            "flush": {"policy": policy},
            "metrics": {"listen": "off"},
        }
    )


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(f"{name} failed: {error}")


def _request(command: Command, request_id: int, fields: dict[str, Any]) -> bytes:
    return encode_head(REQUEST, command.code, request_id, fields, 0)


def _queues(count: int) -> dict[str, int]:
    return {"read_queues": count, "write_queues": count}


def _frames(sent: bytearray) -> list[tuple[int, int, dict[str, Any], bytes]]:
    parser = FrameParser()
    frames = []
    for at in range(0, len(sent), 4096):
        piece = sent[at : at + 4096]
        parser.writable()[: len(piece)] = piece
        parser.received(len(piece))
        while (frame := parser.next_frame()) is not None:
            frames.append((frame.request_id, frame.code, frame.fields, bytes(frame.body)))
    return frames


@dataclass
class Pair:
    """Two brokers with the same history."""

    runner: asyncio.Runner
    short: Side
    general: Side
    next_id: int = 100


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        now_ms = time.time_ns() // 1_000_000
        sides = [Side(Path(folder, name), request.param, now_ms) for name in ("short", "general")]
        for side in sides:
            runner.run(side.start(short_way=side is sides[0]))
        yield Pair(runner, sides[0], sides[1])
        for side in sides:
            runner.run(side.lifecycle.stop())


properties = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "colour"]), st.text("ab\x01", max_size=3), max_size=2)
rows = st.tuples(st.binary(max_size=40), properties)


@st.composite
def produces(draw: st.DrawFn) -> tuple[ProduceHead, dict[str, Any]]:
    """Return the constant part of a PRODUCE, and its numbers and body; most are valid."""
    layout = draw(st.sampled_from([0, 0, 1]))
    count = draw(st.integers(1, 3))
    if layout:
        bodies = [draw(st.binary(max_size=20)) for _ in range(count)]
        body = msgpack.packb(bodies) + msgpack.packb([draw(st.sampled_from([None, "k"])) for _ in bodies])
    else:
        body = b"".join(msgpack.packb(draw(rows)) for _ in range(count))
    head = ProduceHead(
        draw(st.sampled_from(TOPICS)),
        draw(st.sampled_from([-1, -1, -1, 0, 1, 7])),
        layout,
        draw(st.sampled_from(["", "", "", "sync", "never"])),
        draw(st.sampled_from(["", "", "TAGS\x01red\x02", "DELAY\x0118\x02"])),
        draw(st.sampled_from(PREFIXES)),
    )
    return head, {
        "count": draw(st.sampled_from([count] * 8 + [count + 1, 0, 1 << 31])),
        "first": draw(st.integers(0, 40) | st.sampled_from([2**48 - 1, 2**48])),
        "born_ms": draw(st.sampled_from([0, 1_600_000_000_000, 2**63])),
        "body": body,
    }


changes = st.tuples(st.sampled_from(TOPICS), st.sampled_from(["delete", "read only", "writable", "one queue"]))
steps = st.lists(
    st.tuples(st.lists(produces(), min_size=1, max_size=4), st.integers(1, 6), st.none() | changes),
    min_size=1,
    max_size=8,
)


def _change(topic: str, change: str, request_id: int) -> bytes:
    if change == "delete":
        return _request(DELETE_TOPIC_IN_BROKER, request_id, {"topic": topic})
    fields: dict[str, Any] = {"topic": topic, **_queues(1 if change == "one queue" else 2)}
    return _request(UPDATE_AND_CREATE_TOPIC, request_id, {**fields, "perm": 4 if change == "read only" else 6})


@given(steps=steps, repeats=st.integers(1, 3), advance_ms=st.integers(0, 3))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_store_answer_and_count_the_same(pair: Pair, steps: list[Any], repeats: int, advance_ms: int) -> None:
    sides = (pair.short, pair.general)
    for frames, pieces, change in steps * repeats:
        stream = bytearray()
        for head, numbers in frames:
            pair.next_id += 1
            stream += head.encode(
                pair.next_id, numbers["count"], numbers["first"], numbers["born_ms"], len(numbers["body"])
            )
            stream += numbers["body"]
        size = -(-len(stream) // pieces)
        chunks = [bytes(stream[at : at + size]) for at in range(0, len(stream), size)]
        pair.next_id += 1
        for side in sides:
            side.clock.at_ms += advance_ms
            pair.runner.run(side.feed(chunks, len(frames)))
            if change is not None:
                pair.runner.run(side.feed([_change(change[0], change[1], pair.next_id)], len(frames) + 1))
        short, general = (side.state() for side in sides)
        for name, value in general.items():
            assert short[name] == value, name
        for side in sides:
            side.wire.sent.clear()
    assert not pair.general.connection.repeated.headers
    event(f"kept headers: {min(len(pair.short.connection.repeated.headers), 4)}")
