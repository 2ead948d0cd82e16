"""A transactional producer on a broker, or a replica set, that may fail at any moment, and the check afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import TracebackType
from typing import Self

from flintmq.client import BrokerFailure, Message, Outcome, StoredMessage
from flintmq.client.aio import Admin, Consumer, TransactionProducer

from .ledger import Finding, number_in
from .load import PATIENCE_S

TOPIC, GROUP = "deals", "dealers"
REST_S = 0.02


class TransactionLoad:
    """One producer that commits and rolls back messages, each with a number of its own."""

    def __init__(self, address: str, source: random.Random) -> None:
        self._address = address
        self._source = source
        self._decided: dict[int, Outcome] = {}
        self._ended: dict[int, Outcome] = {}
        """Outcome of each message whose end was acknowledged."""
        self._stopping = False
        self.disk_fails = False
        """In this round the broker may fail to end a transaction, because the disk does."""
        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._producer = TransactionProducer(self._address, GROUP, self._check, delivery_timeout=PATIENCE_S)
        self._consumer = Consumer(self._address, timeout=PATIENCE_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._producer.close()
        await self._consumer.close()

    def _check(self, message: StoredMessage) -> Outcome:
        return self._decided.get(number_in(bytes(message.body)), Outcome.UNKNOWN)

    async def prepare(self) -> None:
        """Create the topic."""
        async with Admin(self._address, timeout=PATIENCE_S) as admin:
            await admin.create_topic(TOPIC, queues=2)

    def begin(self) -> None:
        """Work until ``finish``."""
        self._stopping = False
        self._working = asyncio.create_task(self._work())

    async def finish(self) -> None:
        """Begin no transaction, and wait for the end of the one in progress."""
        self._stopping = True
        assert self._working is not None
        await asyncio.wait_for(self._working, 2 * PATIENCE_S)

    async def _work(self) -> None:
        while not self._stopping:
            number = len(self._decided)
            half = await self._producer.send_half(Message(TOPIC, b"%012d" % number))
            await asyncio.sleep(REST_S)
            outcome = self._decided[number] = self._source.choice((Outcome.COMMIT, Outcome.ROLLBACK))
            while number not in self._ended:
                try:
                    await (half.commit() if outcome is Outcome.COMMIT else half.rollback())
                except BrokerFailure:
                    if not self.disk_fails:
                        raise
                else:
                    self._ended[number] = outcome

    async def judge(self, finding: Finding) -> None:
        """Check that each committed message can be read once, and no other."""
        if not self._ended:
            return
        times = Counter[int]()
        async for message in self._consumer.iter(TOPIC, from_="earliest", until="latest"):
            times[number_in(bytes(message.body))] += 1
        for number, outcome in self._ended.items():
            count = times.pop(number, 0)
            if outcome is Outcome.COMMIT and count != 1:
                finding.note("duplicates" if count else "lost", f"committed {number} is there {count} times")
            elif outcome is Outcome.ROLLBACK and count:
                finding.note("wrong", f"{number} was rolled back, and is there {count} times")
        for number in times:
            finding.note("wrong", f"{number} was never ended")
