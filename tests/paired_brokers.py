"""Brokers in the process of a test; and two with the same history, one of which takes a short way that the other never
takes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from flintmq.broker.app.lifecycle import Lifecycle
from flintmq.broker.config import Settings
from flintmq.broker.handlers.repeated_headers import HEADERS_MAX
from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.requests.broker import Broker
from flintmq.broker.requests.request import Request
from flintmq.broker.store.tables.clock import StoreClock
from flintmq.protocol.commands import Command
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import REQUEST, Frame, FrameParser

QUIET_S = 60.0


@asynccontextmanager
async def running(folder: Path, policy: str, **sections: dict[str, Any]) -> AsyncIterator[Lifecycle]:
    """Start a broker in this process. ``sections``: settings beside those of ``settings``."""
    values = settings(folder, policy)
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    lifecycle = Lifecycle(Settings.model_validate(values), _fail)
    await lifecycle.start(lambda stage, done, total: None)
    yield lifecycle
    await lifecycle.stop()


def broker_of(lifecycle: Lifecycle) -> Broker:
    """Return the parts of a running broker."""
    assert lifecycle._broker is not None
    return lifecycle._broker


class Connected:
    """A client's connection to a broker, whose requests a test handles itself."""

    def __init__(self, broker: Broker) -> None:
        self.wire = Wire()
        self.connection = ClientConnection(broker, ("127.0.0.1", 50_000), lambda lost: None)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    def request(self, command: Command, params: Any, body: bytes = b"", **unknown: Any) -> Request:
        """Return a request, whose handler is the test. ``unknown``: fields that the command does not have."""
        fields = encode_fields(params) | unknown
        frame = Frame(REQUEST, command.code, 7, fields, bytearray(body), 0, len(body))
        frame.began = time.monotonic()
        return Request(self.connection, frame)

    def answers(self) -> list[Frame]:
        """Return the responses so far."""
        parser = FrameParser()
        parser.writable()[: len(self.wire.sent)] = self.wire.sent
        parser.received(len(self.wire.sent))
        return list(iter(parser.next_frame, None))


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

    def get_extra_info(self, name: str) -> Any:
        """Return None: there is no socket."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: the buffer is always empty."""

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return False

    def pause_reading(self) -> None:
        """Do nothing: the test feeds bytes only to a connection that reads."""

    def resume_reading(self) -> None:
        """Do nothing, as ``pause_reading``."""


class Side(ABC):
    """One of the two brokers, with one connection. A subclass says which protocol it speaks."""

    def __init__(self, folder: Path, policy: str, now_ms: int) -> None:
        self._settings = self.settings(folder, policy)
        self.clock = ManualClock(now_ms)

    def settings(self, folder: Path, policy: str) -> Settings:
        """Return the broker's settings."""
        return Settings.model_validate(settings(folder, policy))

    async def start(self, *, short_way: bool) -> None:
        """Start the broker and open the connection."""
        self.lifecycle = Lifecycle(self._settings, _fail)
        await self.lifecycle.start(lambda stage, done, total: None)
        assert self.lifecycle._broker is not None
        self.broker: Broker = self.lifecycle._broker
        self.broker.store.commitlog.clock = self.clock
        if not short_way:
            self.broker.counters.kept_headers = HEADERS_MAX  # so that no connection keeps one
        self.connect()
        await self.prepare()
        self.wire.sent.clear()

    def connect(self) -> None:
        """Open the connection that ``feed`` uses."""
        self.wire = Wire()
        self.connection = self.make_connection()
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    @abstractmethod
    def make_connection(self) -> ClientConnection:
        """Return a new connection to the broker."""

    @abstractmethod
    async def prepare(self) -> None:
        """Create the topics."""

    @abstractmethod
    def answers(self) -> list[Any]:
        """Return what the broker has sent, one item for each response."""

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
        await self._until(lambda: len(self.answers()) >= requests)

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
        for sequence in broker.sequences._sequences.values():
            sequence.settle()
        return {
            "answers": self.answers(),
            "log": bytes(blob),
            "produced": {name: (each.frames, each.messages, each.bytes) for name, each in produced.items()},
            "errors": dict(broker.counters.errors),
            "duplicates": broker.counters.duplicates,
            "runs": broker.sequences.runs,
            "answered": sum(broker.counters.produce_latencies.counts),
            "sequences": {
                key: (sequence.next, list(sequence.rows)) for key, sequence in broker.sequences._sequences.items()
            },
            "queue ends": {
                topic.name: broker.store.append_offsets.of_topic(topic.name) for topic in broker.store.topics
            },
            "next queues": broker.next_queues.by_topic(),
        }


S = TypeVar("S", bound=Side)


@dataclass
class Pair(Generic[S]):
    """Two brokers with the same history."""

    runner: asyncio.Runner
    short: S
    general: S
    next_id: int = 100

    def check_equal(self) -> None:
        """Raise if anything that both must agree on differs; forget the answers."""
        short, general = self.short.state(), self.general.state()
        for name, value in general.items():
            assert short[name] == value, name
        for side in (self.short, self.general):
            side.wire.sent.clear()


@contextmanager
def pair_of(side: type[S], policy: str) -> Iterator[Pair[S]]:
    """Yield two running brokers with a flush policy, and stop them afterwards."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        now_ms = time.time_ns() // 1_000_000
        sides = [side(Path(folder, name), policy, now_ms) for name in ("short", "general")]
        for each in sides:
            runner.run(each.start(short_way=each is sides[0]))
        yield Pair(runner, sides[0], sides[1])
        for each in sides:
            runner.run(each.lifecycle.stop())


def settings(folder: Path, policy: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a broker whose answers name the same address in every run."""
    return {
        "store": {"path": str(folder), "commitlog_file_bytes": 64 << 20},
        "server": {"listen": "127.0.0.1:0", "advertise": "127.0.0.1:10911"},
        "flush": {"policy": policy},
        "metrics": {"listen": "off"},
    }


def split_evenly(stream: bytes, pieces: int) -> list[bytes]:
    """Return the stream in so many pieces of about the same size."""
    size = -(-len(stream) // pieces)
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(f"{name} failed: {error}")
