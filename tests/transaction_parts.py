"""The broker's transactions over a real store, without sockets; the test controls the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack

from flintmq.broker.background.flush import flush_service
from flintmq.broker.delivery.client_handle import Answered
from flintmq.broker.delivery.groups.clients import ClientOwners, ProducerGroups
from flintmq.broker.delivery.routing import half_request
from flintmq.broker.delivery.topic_changes import TopicChanges
from flintmq.broker.delivery.transactions.checks import TransactionalMessageCheckService
from flintmq.broker.delivery.transactions.records import TOPICS, Half, half_frame
from flintmq.broker.delivery.transactions.service import TransactionalMessageService
from flintmq.broker.delivery.writer import RecordWriter
from flintmq.broker.store import MessageStore, ProduceBatch
from flintmq.protocol.commands import (
    PHYSICAL_OFFSET_STRUCT,
    CheckTransactionStateAnswer,
    Command,
    EndTransactionRequest,
    ProduceRequest,
)
from flintmq.protocol.errors import SUCCESS, BrokerError
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import RESPONSE, Frame
from flintmq.protocol.storage.delivery import HALF_TOPIC
from flintmq.protocol.storage.record import Record, decode_record
from tests.store_tools import BORN_HOST, dispatch, kill, make_topic, open_store, pull_all
from tests.transaction_tools import GROUP, PREFIX, common

TIMEOUT_MS, INTERVAL_MS, TIMES_MAX = 6_000, 30_000, 15


class Clock:
    """Clock whose seconds pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._timers: list[ClockTimer] = []

    def __call__(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> ClockTimer:
        """Schedule a call, as a loop does."""
        timer = ClockTimer(self._timers, at, call)
        self._timers.append(timer)
        return timer

    async def advance(self, seconds: float) -> None:
        """Let time pass; each due call runs at its time, followed by a turn of the loop."""
        until = self.now + seconds
        while due := min((timer for timer in self._timers if timer.at <= until), key=lambda t: t.at, default=None):
            self.now = max(self.now, due.at)
            due.cancel()
            due.call()
            await settled()
        self.now = until


class ClockTimer:
    """Timer that ``Clock.call_at`` returns."""

    def __init__(self, timers: list[ClockTimer], at: float, call: Callable[[], None]) -> None:
        self._timers = timers
        self.at = at
        self.call = call

    def cancel(self) -> None:
        """Cancel the call."""
        if self in self._timers:
            self._timers.remove(self)


class Producer:
    """A live producer, as the broker sees it: collects the broker's questions."""

    client = "test"
    address = ("127.0.0.1", 1)
    user_name = ""

    def __init__(self) -> None:
        self.lost = False
        self.asked: list[tuple[Any, Record, Answered]] = []
        self._when_lost: list[Callable[[], None]] = []

    def tell(self, command: Command, request: Any, body: bytes = b"") -> None:
        """Do nothing: producers get no notifications."""
        raise AssertionError(command.name)

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Note a question."""
        self.asked.append((request, decode_record(body), answered))

    def may_publish(self, topic: str, group: str = "") -> bool:
        """Return True."""
        return True

    def may_be_sent(self) -> bool:
        """Return True."""
        return True

    def when_lost(self, call: Callable[[], None], kept_bytes: int = 0) -> Callable[[], None]:
        """Note a callback for the connection's end."""
        self._when_lost.append(call)
        return lambda: self._when_lost.remove(call) if call in self._when_lost else None

    def answer(self, outcome: str, code: int = SUCCESS) -> None:
        """Answer the oldest question."""
        fields = encode_fields(CheckTransactionStateAnswer(outcome)) if code == SUCCESS else {"message": outcome}
        self.asked.pop(0)[2](Frame(RESPONSE, code, 1, fields, bytearray(), 0, 0))

    def go(self) -> None:
        """End the connection; as in a connection, open questions fail first."""
        self.lost = True
        asked, self.asked = self.asked, []
        for _, _, answered in asked:
            answered(None)
        for call in list(self._when_lost):
            call()


async def settled() -> None:
    """Wait until the loop is idle and all appended data is on disk. Await cold reads with ``until``."""
    while True:
        for each in _open:
            await each.on_disk()
        for _ in range(20):
            await asyncio.sleep(0)
        if all(each.flush.backlog() == 0 for each in _open):
            return


async def until(holds: Callable[[], object]) -> None:
    """Run the loop until a condition holds that another thread brings about."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


_open: list[Parts] = []


class Parts:
    """Transactions of one broker. Tests may read ``store``, but only the transactions may write to it."""

    def __init__(self, store: MessageStore, **limits: int) -> None:
        loop = asyncio.get_running_loop()
        self.store = store
        self.clock = Clock()
        self.readers = ThreadPoolExecutor(1)
        self._fatal: list[BaseException] = []
        self.flush = flush_service(store, loop.call_soon_threadsafe, lambda what, error: self._fatal.append(error))
        self.flush.start()
        self._topic_changes = TopicChanges(store, loop, lambda topic: None)
        self.writer = RecordWriter(store, self.flush, self._topic_changes, loop, self.flush.wake, sync=True)
        self.producers = ProducerGroups(self.clock, ClientOwners())
        self.service = TransactionalMessageService(
            self.writer, self._topic_changes, self.readers, open_max=limits.pop("open_max", 1000)
        )
        self.checks = TransactionalMessageCheckService(
            self.service,
            self.producers,
            timeout_ms=TIMEOUT_MS,
            check_interval_ms=INTERVAL_MS,
            check_times_max=TIMES_MAX,
            clock=self.clock,
            call_at=self.clock.call_at,
        )
        self.service.on_open = self.checks.opened
        for config in (*TOPICS,):
            make_topic(store, config.name, config.write_queues)
        self.service.restore(self.service.history.read_at_start())
        _open.append(self)

    async def on_disk(self) -> None:
        """Wait until all appended data is on disk and the waiting producers have been notified."""
        flushed: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        self.flush.wait_for(self.store.write_offset, flushed.set_result)  # after the callbacks that wait already
        self.flush.wake()
        await flushed

    def produce(
        self, topic: str, queue: int, *bodies: bytes, first: int, group: str = GROUP, keys: str = ""
    ) -> list[Half]:
        """Append half messages in one frame, with counters from ``first`` on."""
        make_topic(self.store, topic)
        properties = {"TAGS": "paid"} | ({"KEYS": keys} if keys else {})
        rows = bytearray(b"".join(msgpack.packb([body, properties]) for body in bodies))
        request = ProduceRequest(topic, len(bodies), common=common(group), unique_prefix=PREFIX, unique_first=first)
        half = half_request(request.common)
        assert half is not None
        made = half_frame(request, half, queue, memoryview(rows))
        config = self.store.topics.get(HALF_TOPIC)
        assert config is not None
        batch = ProduceBatch(
            made.body, 0, len(made.body), len(bodies), 0, made.common, 0, PREFIX.encode(), first, 0, BORN_HOST
        )
        appended = self.store.append(config, 0, batch)
        halves = [
            Half(
                transaction_id,
                group,
                topic,
                queue,
                queue_offset=appended.queue_offset + index,
                physical_offset=physical_offset,
                born_ms=appended.store_ms,
                store_ms=appended.store_ms,
            )
            for index, (transaction_id, (physical_offset,)) in enumerate(
                zip(made.transaction_ids, PHYSICAL_OFFSET_STRUCT.iter_unpack(appended.physical_offsets), strict=True)
            )
        ]
        self.service.add_halves(halves)
        return halves

    async def end(self, half: Half, *, commit: bool, group: str = GROUP, parked: bool = False) -> BrokerError | None:
        """End a transaction by its id; return the error of the response."""
        done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        request = EndTransactionRequest(group=group, transaction_id=half.transaction_id, commit=commit, parked=parked)
        self.service.end_transaction(request, done.set_result)
        return await done

    def alive(self, group: str = GROUP, member: str = "p", seconds: float = 1e9) -> Producer:
        """Register a producer that stays alive."""
        producer = Producer()
        self.producers.heart_beat(group, member, producer, seconds)
        return producer

    def records(self, topic: str, queue: int = 0) -> list[Record]:
        """Return the records of a queue."""
        dispatch(self.store)
        return list(pull_all(self.store, topic, queue))

    def stop(self) -> None:
        """Stop: nothing more is written, and everything is on disk."""
        _open.remove(self)
        self.checks.stop()
        self.service.stop()
        self._topic_changes.close()
        self.readers.shutdown()
        self.flush.stop()
        self.service.close()
        assert not self._fatal


@asynccontextmanager
async def parts(path: Path, *, killed: bool = False, **limits: int) -> AsyncIterator[Parts]:
    """Yield a broker's transactions over the store at ``path``; closed in the end, or ``killed``."""
    made = Parts(open_store(path), **limits)
    try:
        yield made
        await settled()
    finally:
        made.stop()
        if killed:
            kill(made.store)
        else:
            made.store.close()
