"""A member of a group, whose listener fails now and then. SIGTERM has it leave in order."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flintmq.client import Batch, MemberNameTaken, PushConsumer, StoredMessage, TryLater, aio

from .ledger import Ledger, parse_body

JOIN_SECONDS = 60.0
NAME_TAKEN_SECONDS = 20.0
"""For so long the name of a member that was killed may still be taken."""
CLOSE_SECONDS = 30.0
RETRY_LEVEL = 1
"""A second later."""


class Failed(Exception):
    """A listener's own."""


class Listener:
    """Takes some milliseconds, writes down what it did, and raises for a ``failing`` share of the messages."""

    def __init__(self, ledger: Ledger, seed: int, failing: float, slow_ms: float) -> None:
        self._ledger = ledger
        self._source = random.Random(seed)
        self._failing = failing
        self._slow_ms = slow_ms

    def message(self, message: StoredMessage) -> None:
        """A listener of messages."""
        if not self._handle(message):
            raise Failed(f"{message.body[:20]!r} does not suit me")

    def batch_in_order(self, batch: Batch | list[StoredMessage]) -> None:
        """A listener of batches in orderly mode: what is behind the one that fails is not touched."""
        for message in getattr(batch, "messages", batch):
            self.message(message)

    def batch(self, batch: Batch | list[StoredMessage]) -> None:
        """A listener of batches: only those that fail are to be tried again."""
        failed = [message for message in getattr(batch, "messages", batch) if not self._handle(message)]
        if failed:
            raise TryLater(RETRY_LEVEL, failed)

    def _handle(self, message: StoredMessage) -> bool:
        begun_ns = time.monotonic_ns()
        key, number = parse_body(message.body)
        if self._slow_ms:
            time.sleep(self._source.uniform(0, self._slow_ms) / 1000)
        done = self._source.random() >= self._failing
        # The last that it does: what is written down as done was handled to its end.
        self._ledger.write(begun_ns, time.monotonic_ns(), key, number, int(done))
        return done


def handler(arguments: dict[str, Any], listener: Listener) -> Callable[[Any], None]:
    """What the member does with messages, or batches."""
    if arguments["batch"] is None:
        return listener.message
    return listener.batch_in_order if arguments["orderly"] else listener.batch


def options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the member, but for its listener."""
    orderly = arguments["orderly"]
    return {
        "addresses": arguments["address"],
        "group": arguments["group"],
        "topics": arguments["topic"],
        "batch": arguments["batch"],
        "orderly": orderly,
        "workers": 4,
        "start": "first",
        "member": arguments["member"],
        "delay_level": 0 if orderly else RETRY_LEVEL,
        "suspend": 0.1,
        "prefetch_messages": 1_024,
        "commit_interval": arguments["commit_interval"],
        "timeout": JOIN_SECONDS,
    }


def attend(arguments: dict[str, Any], listener: Listener, leave: threading.Event) -> None:
    """Be a member until told to leave. The broker may not know yet that who had the name before was killed."""
    deadline = time.monotonic() + NAME_TAKEN_SECONDS
    while True:
        try:
            consumer = PushConsumer(**options(arguments), listener=handler(arguments, listener)).start()
            break
        except MemberNameTaken:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    print("joined", flush=True)
    while not leave.wait(0.5):
        if consumer.wait(0):
            raise RuntimeError("the consumer ended by itself")
    consumer.close(CLOSE_SECONDS)


async def attend_asyncio(arguments: dict[str, Any], listener: Listener, leave: threading.Event) -> None:
    """As ``attend``, in an event loop; such a member has no name that lasts."""
    handle = handler(arguments, listener)

    async def listen(handed: Any) -> None:
        await asyncio.to_thread(handle, handed)

    consumer = await aio.PushConsumer(**options(arguments), listener=listen).start()
    print("joined", flush=True)
    ended = asyncio.create_task(consumer.wait())
    while not leave.is_set():
        await asyncio.wait([ended], timeout=0.5)
        if ended.done():
            ended.result()
            raise RuntimeError("the consumer ended by itself")
    await consumer.close(CLOSE_SECONDS)
    await ended


def main() -> None:
    """Who it is stands in the argument, as JSON."""
    arguments = json.loads(sys.argv[1])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    listener = Listener(
        Ledger(Path(arguments["ledger"])), arguments["seed"], arguments["failing"], arguments["slow_ms"]
    )
    if arguments["asyncio"]:
        asyncio.run(attend_asyncio(arguments, listener, leave))
    else:
        attend(arguments, listener, leave)


if __name__ == "__main__":
    main()
