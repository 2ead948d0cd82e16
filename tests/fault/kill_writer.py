"""A process that forks processes that write to a store until they are killed.

It reads lines ``STORE SEED FIRST_NUMBER`` and forks for each, so that only one start pays for the imports. The fork
prints ``pid N``, then a line of JSON for every message that is on the disk: [number, topic, queue, queue offset,
physical offset, store ms]. When the fork is dead, its parent prints ``ended``.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import traceback
from pathlib import Path

from flintmq.broker.store import MessageStore, TopicConfig
from tests.store_tools import HOST, SMALL, Message, make_batch

TOPICS = ("orders", "bills")
QUEUES = 3


def message(number: int) -> Message:
    """Return the message with that number, the same in every process."""
    source = random.Random(number)
    body = source.randbytes(source.choice([0, 20, 500, 5000, 60_000]))
    return Message(body, keys=(f"key-{number}",), tags=source.choice(["", "eu"]))


def say(text: str) -> None:
    """Print one line, completely or not at all."""
    os.write(1, (text + "\n").encode())


class Writer:
    """Writes, flushes, dispatches, syncs and restarts in random order, and prints the messages that are on the disk."""

    def __init__(self, path: Path, source: random.Random, number: int) -> None:
        self._path = path
        self._source = source
        self._number = number
        self._unsaid: list[tuple[int, list[object]]] = []

    def run(self) -> None:
        """Work until killed."""
        store = self._open()
        while True:
            match self._source.randrange(40):
                case 0:
                    store.sync_derived()
                case 1:
                    store.close()
                    self._say_flushed(self._number_end)
                    store = self._open()
                case 2:
                    store.commitlog.prepare_ahead()
                case step if step < 14:
                    self._say_flushed(store.flush())
                case step if step < 24:
                    store.dispatch(store.dispatchable_offset, self._source.choice([1000, 100_000]))
                case _:
                    self._append(store)

    _number_end = 1 << 62

    def _open(self) -> MessageStore:
        store = MessageStore(self._path, SMALL, store_host=HOST)
        store.open()
        for topic in TOPICS:
            if store.topics.get(topic) is None:
                store.topics.put(TopicConfig(topic, QUEUES, QUEUES))
                store.topics.persist()
        return store

    def _append(self, store: MessageStore) -> None:
        topic, queue = self._source.choice(TOPICS), self._source.randrange(QUEUES)
        config = store.topics.get(topic)
        assert config is not None
        count = self._source.choice([1, 1, 5, 40])
        numbers = range(self._number, self._number + count)
        self._number += count
        appended = store.append(config, queue, make_batch([message(number) for number in numbers]))
        offsets = struct.unpack(f">{count}q", appended.physical_offsets)
        for at, (number, offset) in enumerate(zip(numbers, offsets, strict=True)):
            row: list[object] = [number, topic, queue, appended.queue_offset + at, offset, appended.store_ms]
            self._unsaid.append((offset, row))

    def _say_flushed(self, flushed: int) -> None:
        while self._unsaid and self._unsaid[0][0] < flushed:
            say(json.dumps(self._unsaid.pop(0)[1]))


def main() -> None:
    """Fork a writer for every line."""
    for line in sys.stdin:
        path, seed, number = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                say(f"pid {os.getpid()}")
                Writer(Path(path), random.Random(seed), int(number)).run()
            except BaseException:  # noqa: BLE001 - the parent must see any error
                say(json.dumps({"failed": traceback.format_exc()}))
                os._exit(1)
        os.waitpid(pid, 0)
        say("ended")


if __name__ == "__main__":
    main()
