"""Writes messages of every kind to a FlintMQ store and reports what is acknowledged, one JSON object a line.

It is a process of its own, so that a test can kill it. As in the broker, one thread appends, one flushes and
acknowledges, and one dispatches and syncs.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import queue
import random
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import msgpack

from flintmq.broker.store import MessageStore, ProduceBatch, StoreSettings, TopicConfig, common_properties
from flintmq.client.core.compression import ALGORITHMS, Compressor
from flintmq.protocol.storage.record import encode_host, unique_counter_start, unique_key, unique_prefix

SETTINGS = StoreSettings(
    commitlog_file_bytes=4 * 1024 * 1024,
    consumequeue_file_bytes=2_000,
    index_slots=500,
    index_entries=2_000,
    allocate_step_bytes=1024 * 1024,
)
"""So small that every kind of file rolls several times."""

TOPICS = {"orders": 4, "audit_log-2|x%": 2, "t" * 127: 1}
STORE_HOSTS = (encode_host("127.0.0.1", 10911), encode_host("2001:db8::5", 10911))
BORN_HOSTS = (encode_host("10.1.2.3", 65535), encode_host("2001:db8::7", 1))
TAGS = (None, "eu", "us", "日本", "🙂")
LAYOUT_ROWS, LAYOUT_COLUMNS = 0, 1
SYNC_EVERY_BYTES = 1024 * 1024
PENDING_BATCHES_MAX = 16
AGE_NS = 3600 * 10**9


@dataclass
class Written:
    """A message as any reader of the store must see it. Hosts: the address in hex, a colon, the port."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    properties: dict[str, str]
    body_sha1: str


@dataclass
class Draft:
    """A message before it is stored: ``body`` as a consumer sees it, ``stored`` as it is written."""

    body: bytes
    stored: bytes
    sys_flag: int = 0
    flag: int = 0
    properties: dict[str, str] = field(default_factory=dict)


def shown_host(host: bytes) -> str:
    """Return an encoded host in the form that ``Written`` has."""
    return f"{host[:-4].hex()}:{struct.unpack('>i', host[-4:])[0]}"


def _text(rng: random.Random, size: int) -> bytes:
    words = ("flint ", "Straße ", "消息 ", "🙂 ", "0123456789 ")
    return "".join(rng.choices(words, k=size // 6)).encode()


def _body(rng: random.Random, number: int) -> tuple[bytes, bytes, int]:
    """Return (body, stored body, sys_flag); the body is empty, short, text, incompressible, long, or compressed."""
    match number % 20:
        case 0:
            body = b""
        case 1 | 2 | 3:
            body = _text(rng, rng.randrange(600, 6_000))
        case 4:
            body = rng.randbytes(rng.randrange(1, 16_000))
        case 5 | 6 | 7:
            body = _text(rng, 30_000)
            return body, *Compressor(0, ALGORITHMS[number % 3]).compress(body)
        case 8 if number % 200 == 8:
            body = rng.randbytes(rng.randrange(200_000, 500_000))
        case _:
            body = f"message {number}".encode()
    return body, body, 0


def _draft(rng: random.Random, seed: int, number: int) -> Draft:
    body, stored, sys_flag = _body(rng, number)
    properties: dict[str, str] = {}
    if number % 5 != 3:
        keys = [f"o-{seed}-{number}"]
        if number % 4 == 0:
            keys += [f"клиент-{number % 50}", f"🔑{number}"]
        properties["KEYS"] = " ".join(keys)
    if tag := rng.choice(TAGS):
        properties["TAGS"] = tag
    if number % 3 == 0:
        properties |= {"source": "web", "naïve": "ünïcödé = yes", "WAIT": "true"}
    if number % 11 == 0:
        properties["UNIQ_KEY"] = rng.randbytes(28 if number % 2 else 16).hex().upper()
    flag = rng.randrange(-(2**31), 2**31) if number % 7 == 0 else 0
    return Draft(body, stored, sys_flag, flag, properties)


class Batches:
    """Endless batches of messages of every kind, with the expected reading of each message."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._seed = seed
        self._rng = random.Random(seed)
        self._number = 0
        self._prefix = unique_prefix(b"\x7f\0\0\1", os.getpid(), str(seed).encode())
        self._counter = unique_counter_start(time.time())

    def append_next(self) -> tuple[int, list[Written]]:
        """Append one batch; return the log's end after it, and its messages."""
        rng = self._rng
        columns = rng.random() < 0.3
        drafts = [_draft(rng, self._seed, self._number + k) for k in range(rng.randrange(1, 40))]
        self._number += len(drafts)
        topic = self._store.topics.get(rng.choice(list(TOPICS)))
        assert topic is not None
        queue_id = rng.randrange(topic.queues)
        common = {}
        if columns:
            common = {"TAGS": "eu", "source": "bulk"}
            for draft in drafts:
                draft.stored, draft.sys_flag, draft.flag = draft.body[:1000], 0, 0
                draft.body = draft.stored
                draft.properties = {"KEYS": draft.properties["KEYS"]} if "KEYS" in draft.properties else {}
            frame = msgpack.packb([draft.stored for draft in drafts])
            frame += msgpack.packb([draft.properties.get("KEYS") for draft in drafts])
        else:
            rows = ([draft.stored, draft.properties, draft.sys_flag, draft.flag] for draft in drafts)
            frame = b"".join(msgpack.packb(row) for row in rows)
        self._store.commitlog.store_host = rng.choice(STORE_HOSTS)
        batch = ProduceBatch(
            buffer=bytearray(frame),
            body_at=0,
            body_end=len(frame),
            count=len(drafts),
            layout=LAYOUT_COLUMNS if columns else LAYOUT_ROWS,
            common=common_properties("".join(f"{name}\x01{value}\x02" for name, value in common.items())),
            sys_flag=0,
            unique_prefix=self._prefix.encode() if rng.random() < 0.9 else b"",
            unique_first=self._counter,
            born_ms=time.time_ns() // 1_000_000 - 5,
            born_host=rng.choice(BORN_HOSTS),
        )
        for draft in drafts:
            draft.properties = {**common, **draft.properties}
        return self._append(topic, queue_id, batch, drafts)

    def _append(
        self, topic: TopicConfig, queue_id: int, batch: ProduceBatch, drafts: list[Draft]
    ) -> tuple[int, list[Written]]:
        appended = self._store.append(topic, queue_id, batch)
        written = []
        for k, draft in enumerate(drafts):
            if batch.unique_prefix:
                draft.properties.setdefault("UNIQ_KEY", unique_key(self._prefix, self._counter + k))
            written.append(
                Written(
                    topic=topic.name,
                    queue=queue_id,
                    queue_offset=appended.queue_offset + k,
                    physical_offset=struct.unpack_from(">q", appended.physical_offsets, 8 * k)[0],
                    flag=draft.flag,
                    born_ms=batch.born_ms,
                    born_host=shown_host(batch.born_host),
                    store_ms=appended.store_ms,
                    store_host=shown_host(self._store.commitlog.store_host),
                    properties=draft.properties,
                    body_sha1=hashlib.sha1(draft.body).hexdigest(),
                )
            )
        self._counter += len(drafts)
        return appended.end_offset, written


class Writer:
    """The three threads. A failure in any of them ends the process at once, without an orderly stop."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._batches = Batches(store, seed)
        self._pending: queue.Queue[tuple[int, list[Written]] | None] = queue.Queue(PENDING_BATCHES_MAX)
        self._flushed: queue.Queue[int | None] = queue.Queue()

    def run(self, rounds: Iterator[int]) -> None:
        """Append a batch per round; return when all of it is acknowledged and dispatched."""
        threading.excepthook = _end_process
        threads = [threading.Thread(target=work) for work in (self._flush, self._dispatch)]
        for thread in threads:
            thread.start()
        for _ in rounds:
            self._pending.put(self._batches.append_next())
            self._store.commitlog.prepare_ahead()
        self._pending.put(None)
        for thread in threads:
            thread.join()

    def _flush(self) -> None:
        while (first := self._pending.get()) is not None:
            waiting = [first]
            last = False
            while not self._pending.empty():
                if (more := self._pending.get()) is None:
                    last = True
                    break
                waiting.append(more)
            flushed = self._store.flush()
            for end_offset, messages in waiting:
                assert end_offset <= flushed
                say({"acknowledged": [asdict(message) for message in messages]})
            self._flushed.put(flushed)
            if last:
                break
        self._flushed.put(None)

    def _dispatch(self) -> None:
        synced = 0
        while (flushed := self._flushed.get()) is not None:
            while self._store.reput_offset < flushed:
                self._store.dispatch(flushed)
            if self._store.reput_offset - synced > SYNC_EVERY_BYTES:
                self._store.sync_derived()
                synced = self._store.reput_offset


def _end_process(failure: threading.ExceptHookArgs) -> None:
    sys.__excepthook__(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    os._exit(1)


def say(answer: dict[str, object]) -> None:
    """Print one whole line and flush it, so that a reader that sees its end has all of it."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Write according to the arguments of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--aged-rounds", type=int, default=0, help="as many rounds before, by a clock an hour behind")
    parser.add_argument("--checksum", action="store_true", help="records carry a checksum over all of them")
    options = parser.parse_args()
    store = MessageStore(options.store, dataclasses.replace(SETTINGS, record_checksum=options.checksum))
    report = store.open()
    say({"opened": asdict(report)})
    for name, queues in TOPICS.items():
        store.topics.put(TopicConfig(name, queues, queues))
    store.topics.persist()
    if options.aged_rounds:
        now = time.time_ns
        with mock.patch.object(time, "time_ns", side_effect=lambda: now() - AGE_NS):
            Writer(store, options.seed + 1_000_000).run(iter(range(options.aged_rounds)))
    Writer(store, options.seed).run(iter(range(options.rounds)))
    store.close()
    say({"closed": store.write_offset})


if __name__ == "__main__":
    main()
