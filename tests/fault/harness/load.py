"""Producers, a consumer and an administrator on a broker that may die at any moment, and the check afterwards. All of
them are FlintMQ's own clients: the promises they make across a crash are checked too."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self

from flintmq.client import (
    BrokerFailure,
    CommitIllegal,
    FlintError,
    Message,
    MessageNotFound,
    OffsetOutOfRange,
    Receipt,
    StoredMessage,
    TopicNotExist,
)
from flintmq.client.aio import Admin, Consumer, Producer

from .ledger import QUEUES, TOPIC, Acknowledged, Allowance, Finding, Held, Ledger, key_of, message_of, number_in

PATIENCE_S = 30.0
"""Longest time that a client waits for a broker that is being restarted."""
READ_S = 20.0
PRODUCERS = 3
BURSTS = (1, 1, 4, 25)
LATER, GROUP = "later", "harness"


class Load:
    """Clients of one broker address, or of a replica set's. They survive its restarts.

    ``rest_s``: pause of each producer between two bursts.
    """

    def __init__(self, address: str, ledger: Ledger, source: random.Random, *, sync: bool, rest_s: float = 0.0) -> None:
        self._address = address
        self._ledger = ledger
        self._source = source
        self._sync = sync
        self._rest_s = rest_s
        self._stopping = False
        self._producers: list[Producer] = []
        self._working: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self.acknowledged = 0
        """Acknowledged messages since the last ``begin``."""
        self.slowest_s = 0.0
        """Longest time that a producer waited for one burst since then."""
        self._in_flight: set[int] = set()
        self._in_doubt_at_fault: set[int] = set()
        self.resent = 0
        """Messages that were in flight at a fault, and acknowledged after the client resent them."""
        self.delayed: set[int] = set()
        """Acknowledged messages with a later delivery time."""
        self.made: set[str] = set()
        """Topics whose creation was confirmed, and whose deletion was not."""
        self.deleted: set[str] = set()
        self.in_doubt: set[str] = set()
        self.committed: dict[int, int] = {}
        self.disk_fails = False
        """In this round the broker may refuse a change of a table, because it cannot be written."""

    async def __aenter__(self) -> Self:
        for _ in range(PRODUCERS):
            self._producers.append(Producer(self._address, delivery_timeout=PATIENCE_S, compress_over=None))
        self._admin = Admin(self._address, timeout=PATIENCE_S)
        self._consumer = Consumer(self._address, timeout=PATIENCE_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = self._working if self._watching is None else [*self._working, self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # errors of workers have been raised by ``check_alive``
        for producer in self._producers:
            with contextlib.suppress(
                FlintError, TimeoutError
            ):  # the round failed: the outcome of messages in flight stays unknown
                await asyncio.wait_for(producer.close(), 1.0 if raised else None)
        await self._admin.close()
        await self._consumer.close()

    async def prepare(self) -> None:
        """Create the topics."""
        await self._admin.create_topic(TOPIC, queues=QUEUES)
        await self._admin.create_topic(LATER, queues=1)
        await self._admin.create_topic("last", queues=1)  # so that the table before its last change has the others

    def begin(self) -> None:
        """Work until ``finish``."""
        self._stopping = False
        self.acknowledged = 0
        self.slowest_s = 0.0
        self._working = [asyncio.create_task(self._produce(n)) for n in range(PRODUCERS)]
        self._working += [asyncio.create_task(self._send_later()), asyncio.create_task(self._change_topics())]
        self._watching = asyncio.create_task(self._watch())

    def fault_happened(self) -> None:
        """Note that the broker has died: every message in flight is in doubt."""
        self._in_doubt_at_fault = set(self._in_flight)

    async def finish(self) -> None:
        """Begin nothing new, and wait for the outcome of everything in progress. The broker must be running (again)."""
        self._stopping = True
        await self._stop_watching()
        await asyncio.wait_for(asyncio.gather(*self._working), 2 * PATIENCE_S)
        self._working = []

    async def _stop_watching(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def check_alive(self) -> None:
        """Raise the error that ended a worker task, or the reader."""
        for task in self._working if self._watching is None else (*self._working, self._watching):
            if task.done() and not self._stopping:
                task.result()

    # Workers.

    async def _produce(self, which: int) -> None:
        """Send bursts one after the other: producer 0 to one queue, the others to queues that the client selects."""
        producer, source = self._producers[which], random.Random(self._source.random())
        while not self._stopping:
            numbers = self._ledger.take_numbers(source.choice(BURSTS))
            queue = 0 if which == 0 else None
            flush: Literal["sync"] | None = source.choice(("sync", None))
            sends = []
            for number in numbers:
                if which == 0:
                    self._ledger.owners[number] = which
                sends.append(self._send(producer, number, queue, flush))
            begun = time.monotonic()
            await asyncio.gather(*sends)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            await asyncio.sleep(self._rest_s)

    async def _send(self, producer: Producer, number: int, queue: int | None, flush: Literal["sync"] | None) -> None:
        self._in_flight.add(number)
        receipt = await producer.send(message_of(number), queue=queue, flush=flush)
        self._in_flight.discard(number)
        self.resent += number in self._in_doubt_at_fault
        self._note(number, receipt, sync=self._sync or flush == "sync")

    def _note(self, number: int, receipt: Receipt, *, sync: bool) -> None:
        place = Acknowledged(receipt.queue, receipt.queue_offset, receipt.physical_offset, receipt.message_id, sync)
        self._ledger.acknowledge(number, place)
        self.acknowledged += 1

    async def _send_later(self) -> None:
        source = random.Random(self._source.random())
        while not self._stopping:
            (number,) = self._ledger.take_numbers(1)
            message = Message(LATER, b"%012d" % number, delay=timedelta(seconds=source.choice((1, 2))))
            await self._producers[1].send(message, flush="sync")
            self.delayed.add(number)
            await asyncio.sleep(0.02)

    async def _change_topics(self) -> None:
        """Create topics, use them, delete them, and commit a group's offsets."""
        source = random.Random(self._source.random())
        while not self._stopping:
            (number,) = self._ledger.take_numbers(1)
            name = f"topic-{number}"
            self.in_doubt.add(name)
            if not await self._made(name):
                continue
            await self._producers[2].send(message_of(number, name))
            self.in_doubt.discard(name)
            self.made.add(name)
            if source.random() < 0.7:
                gone = source.choice(sorted(self.made))
                self.in_doubt.add(gone)
                self.made.discard(gone)
                if await self._is_deleted(gone):
                    self.in_doubt.discard(gone)
                    self.deleted.add(gone)
            offsets = {queue: offset + 1 for queue, offset in self._ledger.seen}
            if offsets:
                with contextlib.suppress(
                    CommitIllegal
                ):  # the power cut took messages that were seen; ``judge`` has not run yet
                    await self._consumer.commit(GROUP, TOPIC, offsets)
                self.committed.update(offsets)
            await asyncio.sleep(0.01)

    async def _made(self, name: str) -> bool:
        """Create a topic; return whether that was confirmed."""
        try:
            await self._admin.create_topic(name, queues=1)
        except BrokerFailure:
            if not self.disk_fails:
                raise
            return False
        return True

    async def _is_deleted(self, name: str) -> bool:
        """Delete a topic; return whether that was confirmed. If it is missing, it was deleted and the response got
        lost."""
        try:
            await self._admin.delete_topic(name)
        except TopicNotExist:
            return True
        except BrokerFailure:
            if not self.disk_fails:
                raise
            return False
        return True

    async def _watch(self) -> None:
        """Read the topic from its end, and note each message."""
        while True:
            try:
                async for message in self._consumer.iter(TOPIC, from_=-5):
                    number = number_in(bytes(message.body))
                    self._ledger.see(message.queue, message.queue_offset, number, message.physical_offset)
            except OffsetOutOfRange:
                pass  # a power cut moved the end back, or retention moved the beginning ahead
            except BrokerFailure:
                if not self.disk_fails:
                    raise

    # The check afterwards.

    async def look(self) -> Held:
        """Return every message of every queue, from its first offset to its last."""
        held: Held = {}
        for queue in range(QUEUES):
            messages: list[StoredMessage] = []
            offset = await self._consumer.min_offset(TOPIC, queue)
            end = await self._consumer.max_offset(TOPIC, queue)
            while offset < end:
                batch = await self._consumer.pull(TOPIC, queue, offset, max_count=1000)
                messages += batch.messages
                if batch.next_offset <= offset:
                    break
                offset = batch.next_offset
            held[queue] = messages
        return held

    async def read_something(self) -> None:
        """Pull from a queue. Raises if the broker does not respond."""
        while True:
            offset = await self._consumer.min_offset(TOPIC, 0, timeout=READ_S)
            with contextlib.suppress(OffsetOutOfRange):  # retention ran in between
                await self._consumer.pull(TOPIC, 0, offset, max_count=10, timeout=READ_S)
                return

    async def look_up(self, finding: Finding, sample: int, allowance: Allowance) -> None:
        """Look up some acknowledged messages by key, by unique key and by offset id."""
        places = self._ledger.acknowledged.items()
        numbers = [number for number, place in places if not allowance.is_unchecked(place.physical_offset)]
        for number in self._source.sample(numbers, min(sample, len(numbers))):
            place = self._ledger.acknowledged[number]
            found = await self._consumer.query(TOPIC, key_of(number))
            offsets = [message.physical_offset for message in found]
            if offsets != [place.physical_offset]:
                finding.note("wrong", f"key {key_of(number)} finds {offsets} instead of {place}")
            try:
                by_id = await self._consumer.message(place.message_id, TOPIC)
            except MessageNotFound:
                finding.note("lost", f"id {place.message_id} finds nothing instead of {place}")
                continue
            if (by_id.queue, by_id.queue_offset) != (place.queue, place.queue_offset):
                finding.note("wrong", f"id {place.message_id} finds {by_id} instead of {place}")

    async def look_at_tables(self, finding: Finding, *, fell_back: bool) -> None:
        """Check the topics and the group's offsets. ``fell_back``: the topics are those before their last change."""
        topics = set(await self._admin.topics())
        changed = (self.made - topics) | (self.deleted & topics)
        if fell_back and len(changed) == 1:
            self.made -= changed
            self.deleted -= changed
            self.in_doubt |= changed
            finding.reported += 1
        for name in self.made - topics:
            finding.note("lost", f"{name}, whose creation was confirmed")
        for name in self.deleted & topics:
            finding.note("vanished", f"the deletion of {name}, which was confirmed")
        for queue, offset in (await self._consumer.committed(GROUP, TOPIC)).items():
            if offset > max(await self._consumer.max_offset(TOPIC, queue), self.committed.get(queue, 0)):
                finding.note(
                    "wrong", f"the group's committed offset of queue {queue} is {offset}, which no member committed"
                )

    async def wait_for_delayed(self, finding: Finding, touched: set[int], seconds_max: float = 30.0) -> None:
        """Check that every acknowledged timed message arrives, except those that damage ``touched``."""
        missing = self.delayed - touched

        async def come() -> None:
            async for message in self._consumer.iter(LATER, from_="earliest"):
                missing.discard(number_in(bytes(message.body)))
                if not missing:
                    return

        if missing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(come(), seconds_max)
        for number in missing:
            finding.note("lost", f"{number}, a timed message, was not delivered")
