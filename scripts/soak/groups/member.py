"""A member of a group, whose listener fails at random. It leaves gracefully on SIGTERM."""

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
"""Maximum time that the broker keeps the name of a killed member."""
CLOSE_SECONDS = 30.0
RETRY_LEVEL = 1
"""Delay level of redeliveries: 1 s."""


class Failed(Exception):
    """Error raised by the listener on purpose."""


class Listener:
    """Listener that takes some milliseconds, writes to the ledger and fails for a ``failing`` share of the messages."""

    def __init__(self, ledger: Ledger, seed: int, failing: float, slow_ms: float) -> None:
        self._ledger = ledger
        self._source = random.Random(seed)
        self._failing = failing
        self._slow_ms = slow_ms

    def message(self, message: StoredMessage) -> None:
        if not self._handle(message):
            raise Failed(f"{message.body[:20]!r} fails on purpose")

    def batch_in_order(self, batch: Batch | list[StoredMessage]) -> None:
        """Handle a batch in orderly mode: stop at the first message that fails."""
        for message in getattr(batch, "messages", batch):
            self.message(message)

    def batch(self, batch: Batch | list[StoredMessage]) -> None:
        """Handle a batch: have only the messages that fail redelivered."""
        failed = [message for message in getattr(batch, "messages", batch) if not self._handle(message)]
        if failed:
            raise TryLater(RETRY_LEVEL, failed)

    def _handle(self, message: StoredMessage) -> bool:
        begun_ns = time.monotonic_ns()
        key, number = parse_body(message.body)
        if self._slow_ms:
            time.sleep(self._source.uniform(0, self._slow_ms) / 1000)
        done = self._source.random() >= self._failing
        # The last step: a message that the ledger calls done was handled to its end.
        self._ledger.write(begun_ns, time.monotonic_ns(), key, number, int(done))
        return done


def handler(arguments: dict[str, Any], listener: Listener) -> Callable[[Any], None]:
    """Return the listener's method for the kind of member."""
    if arguments["batch"] is None:
        return listener.message
    return listener.batch_in_order if arguments["orderly"] else listener.batch


def options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the ``PushConsumer`` without its listener."""
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


def run_member(arguments: dict[str, Any], listener: Listener, leave: threading.Event) -> None:
    """Be a member until told to leave."""
    # The broker may not have noticed yet that the previous member of this name was killed.
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


async def run_asyncio_member(arguments: dict[str, Any], listener: Listener, leave: threading.Event) -> None:
    """Be an asyncio member until told to leave; such a member has no fixed name."""
    handle = handler(arguments, listener)

    async def listen(messages: Any) -> None:
        await asyncio.to_thread(handle, messages)

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
    """Run the member that the argument, a JSON object, describes."""
    arguments = json.loads(sys.argv[1])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    listener = Listener(
        Ledger(Path(arguments["ledger"])), arguments["seed"], arguments["failing"], arguments["slow_ms"]
    )
    if arguments["asyncio"]:
        asyncio.run(run_asyncio_member(arguments, listener, leave))
    else:
        run_member(arguments, listener, leave)


if __name__ == "__main__":
    main()
