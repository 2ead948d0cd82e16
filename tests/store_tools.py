"""A store for tests: small files, messages in and out, snapshots of its tree, and its end without a clean stop."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import pytest

from flintmq.broker.store import (
    Appended,
    KeySearch,
    MessageStore,
    ProduceBatch,
    PullSelection,
    RecoveryReport,
    StoreFailed,
    StoreSettings,
    TopicConfig,
)
from flintmq.broker.store.files.file_system import Files
from flintmq.protocol.errors import SUCCESS, MessageNotFound
from flintmq.protocol.storage.layout import CHECKPOINT, CHECKPOINT_MARK, CHECKPOINT_MARK_AT
from flintmq.protocol.storage.record import Record, decode_record, encode_host, offset_id

ROCKETMQ_ARCHIVE = Path(__file__).parent / "data" / "rocketmq-5.3.3.tgz"
"""A store that RocketMQ wrote, and a list of what was sent."""
MIB = 1024 * 1024
HOST = encode_host("127.0.0.1", 10911)
BORN_HOST = encode_host("127.0.0.1", 40000)
FOREVER = 1 << 62

SMALL = StoreSettings(
    commitlog_file_bytes=4 * MIB,
    consumequeue_file_bytes=20 * 50,
    index_slots=500,
    index_entries=200,
    allocate_step_bytes=MIB,
)
"""Settings of files that roll after a few messages."""

SERVED = StoreSettings(
    commitlog_file_bytes=4 * MIB,
    consumequeue_file_bytes=20_000,
    index_slots=5_000,
    index_entries=20_000,
    allocate_step_bytes=MIB,
)
"""Settings of the brokers that tests start (``SMALL_FILES``): they can serve stores created with these."""


def unpack_rocketmq(folder: Path) -> Path:
    """Unpack ``ROCKETMQ_ARCHIVE``, whose files stay sparse, into ``folder``; return it."""
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        # Python has filters from 3.11.4 on, and asks for a choice later; earlier it ignores this attribute.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder


class UnsyncedFiles(Files):
    """File system without syncs: a process that ends loses nothing of the page cache, and tests save the time."""

    def sync_data(self, fd: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Message:
    body: bytes
    keys: tuple[str, ...] = ()
    tags: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    sys_flag: int = 0
    flag: int = 0

    def to_row(self) -> list[object]:
        """Return the message as a row of a PRODUCE frame."""
        properties = dict(self.properties)
        if self.keys:
            properties["KEYS"] = " ".join(self.keys)
        if self.tags:
            properties["TAGS"] = self.tags
        return [self.body, properties, self.sys_flag, self.flag]


@dataclass(frozen=True)
class Sent:
    """A message that was appended, and its place."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_ms: int
    message: Message = field(repr=False)


def make_batch(
    messages: Sequence[Message], *, unique_prefix: bytes = b"", unique_first: int = 0, common: bytes = b""
) -> ProduceBatch:
    """Return the messages as a frame in the rows layout."""
    body = bytearray(b"".join(msgpack.packb(message.to_row()) for message in messages))
    return ProduceBatch(
        buffer=body,
        body_at=0,
        body_end=len(body),
        count=len(messages),
        layout=0,
        common=common,
        sys_flag=0,
        unique_prefix=unique_prefix,
        unique_first=unique_first,
        born_ms=0,
        born_host=BORN_HOST,
    )


def open_store(path: Path, settings: StoreSettings = SMALL, files: Files | None = None) -> MessageStore:
    """Open a store, by default on files that are never synced."""
    store, _ = reopen(path, settings, files)
    return store


def reopen(
    path: Path, settings: StoreSettings = SMALL, files: Files | None = None
) -> tuple[MessageStore, RecoveryReport]:
    """Open a store; return it with the result of its recovery."""
    store = MessageStore(path, settings, store_host=HOST, files=files or UnsyncedFiles())
    return store, store.open()


def make_topic(store: MessageStore, name: str, queues: int = 4) -> TopicConfig:
    """Return the topic, created and on disk if it did not exist."""
    config = store.topics.get(name)
    if config is None:
        config = TopicConfig(name, queues, queues)
        store.topics.put(config)
        store.topics.persist()
    return config


def append(store: MessageStore, topic: str, queue: int, messages: Sequence[Message]) -> list[Sent]:
    """Append messages to a queue in one frame, without flush or dispatch."""
    appended = store.append(make_topic(store, topic), queue, make_batch(messages))
    return sent_of(appended, topic, queue, messages)


def sent_of(appended: Appended, topic: str, queue: int, messages: Sequence[Message]) -> list[Sent]:
    offsets = struct.unpack(f">{len(messages)}q", appended.physical_offsets)
    return [
        Sent(topic, queue, appended.queue_offset + number, physical_offset, appended.store_ms, message)
        for number, (physical_offset, message) in enumerate(zip(offsets, messages, strict=True))
    ]


def dispatch(store: MessageStore) -> None:
    """Flush, and dispatch everything."""
    store.flush()
    while store.reput_offset < store.write_offset:
        store.dispatch(store.write_offset)


def put(store: MessageStore, topic: str, queue: int, messages: Sequence[Message]) -> list[Sent]:
    """Append messages in one frame, flush and dispatch them."""
    sent = append(store, topic, queue, messages)
    dispatch(store)
    return sent


def plain(count: int, *, size: int = 100, first: int = 0, tags: str = "") -> list[Message]:
    """Return messages with a body of ``size`` bytes that contains their number, and one key each."""
    return [
        Message(f"{number:08d}".encode().ljust(size, b"."), keys=(f"key-{number}",), tags=tags)
        for number in range(first, first + count)
    ]


def split_answer(body: bytes | bytearray, count: int) -> list[bytes]:
    """Return the records of a response body: count × u32 sizes, then the records."""
    sizes = struct.unpack_from(f">{count}I", body)
    at, blobs = 4 * count, []
    for size in sizes:
        blobs.append(bytes(body[at : at + size]))
        at += size
    assert at == len(body)
    return blobs


def pull_all(store: MessageStore, topic: str, queue: int) -> Iterator[Record]:
    """Return every message of a queue, checked."""
    offset, end = store.queue_reads.min_offset(topic, queue, hot=False), store.queue_reads.max_offset(topic, queue)
    while offset < end:
        pulled = store.pulls.pull(topic, queue, offset, PullSelection(1000, MIB), hot=False)
        assert pulled.next_offset > offset
        offset = pulled.next_offset
        if pulled.code == SUCCESS:
            for blob in split_answer(pulled.body, pulled.count):
                yield decode_record(blob)


def find(store: MessageStore, topic: str, key: str) -> list[Record]:
    """Return every message with that key, newest first, page by page."""
    found, cursor = [], ""
    while True:
        page = store.query(KeySearch(topic, key, cursor=cursor), hot=False)
        found += [decode_record(blob) for blob in split_answer(page.body, page.count)]
        cursor = page.cursor
        if not cursor:
            return found


def matches(record: Record, sent: Sent) -> bool:
    """Return whether a record is the sent message at its acknowledged place."""
    properties = record.property_map()
    message = sent.message
    return (
        record.topic.decode(),
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp,
        record.body,
        properties.get("KEYS", ""),
        properties.get("TAGS", ""),
        record.flag,
    ) == (
        sent.topic,
        sent.queue,
        sent.queue_offset,
        sent.physical_offset,
        sent.store_ms,
        message.body,
        " ".join(message.keys),
        message.tags,
        message.flag,
    )


def assert_holds(store: MessageStore, sent: Sequence[Sent], *, keys: bool = True) -> None:
    """Check that the queues of the messages' topics hold exactly these messages, dense and in order, and that keys find
    them."""
    expected: dict[tuple[str, int], list[Sent]] = {}
    for each in sent:
        expected.setdefault((each.topic, each.queue), []).append(each)
    for (topic, queue), messages in expected.items():
        records = list(pull_all(store, topic, queue))
        assert [record.queue_offset for record in records] == [each.queue_offset for each in messages], (topic, queue)
        for record, each in zip(records, messages, strict=True):
            assert matches(record, each), each
    if keys:
        assert_found(store, sent)


def assert_found(store: MessageStore, sent: Sequence[Sent]) -> None:
    """Check that each key of the messages finds those that have it, newest first, and no other."""
    by_key: dict[tuple[str, str], list[int]] = {}
    for each in sent:
        for key in dict.fromkeys(each.message.keys):
            by_key.setdefault((each.topic, key), []).append(each.physical_offset)
    for (topic, key), offsets in by_key.items():
        assert [record.physical_offset for record in find(store, topic, key)] == sorted(offsets, reverse=True), key


def lost_of(report: RecoveryReport) -> set[tuple[str, int, int]]:
    """Return (topic, queue, queue offset) of each message that a recovery reports as lost."""
    return {
        (each.topic, each.queue, queue_offset)
        for hole in report.quarantined
        for each in hole.lost
        for queue_offset in range(each.first, each.first + each.messages)
    }


def assert_contained(
    path: Path, sent: Sequence[Sent], lost: Sequence[Sent], *, exact: bool = True, settings: StoreSettings = SMALL
) -> None:
    """Check that a start loses exactly these messages, names them, keeps their bytes, and continues, and that later
    starts find nothing new. ``exact``: the store's queues tell to the byte what was in the damaged places."""
    damaged = b"".join(each.read_bytes() for each in sorted((path / "commitlog").iterdir()))
    base = int(min(each.name for each in (path / "commitlog").iterdir()))
    store, report = reopen(path, settings)
    assert lost_of(report) == {(each.topic, each.queue, each.queue_offset) for each in lost}
    for hole in report.quarantined:
        kept = (path / "flintmq" / "quarantine" / hole.file).read_bytes()
        if exact:
            assert kept == damaged[hole.physical_offset - base : hole.end_offset - base]
        assert len(kept) == hole.bytes
    kept_messages = [each for each in sent if each not in lost]
    assert_only_these_are_left(store, kept_messages, lost)
    assert store.quarantine.lost_messages == len(lost)
    kill(store)
    files = tree(path, ignore=("lock",))
    for end in (kill, MessageStore.close):
        store, report = reopen(path, settings)
        assert (report.quarantined, report.rebuilt, report.truncated_bytes) == ([], [], 0)
        assert_only_these_are_left(store, kept_messages, lost)
        new = put(store, sent[0].topic, sent[0].queue, plain(1, first=77_000))
        ends = [each.queue_offset for each in sent if (each.topic, each.queue) == (new[0].topic, new[0].queue)]
        assert new[0].queue_offset > ends[-1]
        kept_messages += new
        end(store)
    assert_same_files(files, tree(path, ignore=("lock",)))
    derived = queue_files(path), index_files(path)
    store = MessageStore(path, settings, store_host=HOST, files=UnsyncedFiles())
    report = store.open(rebuild=True)
    assert report.quarantined == []
    store.close()
    assert (queue_files(path), index_files(path)) == derived


def assert_same_files(before: dict[str, str], after: dict[str, str]) -> None:
    """Check that no file of the quarantine was changed."""
    names = [name for name in before if "quarantine" in name and not name.endswith(".bak")]
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def assert_only_these_are_left(store: MessageStore, kept: Sequence[Sent], lost: Sequence[Sent]) -> None:
    """Check that lost messages have no substitute, and that all others are there."""
    assert_holds(store, kept)
    queues = {(each.topic, each.queue) for each in kept}
    for each in lost:
        assert all(find(store, each.topic, key) == [] for key in each.message.keys)
        assert (each.topic, each.queue) in queues or list(pull_all(store, each.topic, each.queue)) == []
        with pytest.raises(MessageNotFound, match="is lost: the log was damaged there"):
            store.view(offset_id(HOST, each.physical_offset), "", False)


def without_dispatched(checkpoint: Path) -> bytes:
    """Return a checkpoint with the same state of the log, but nothing dispatched to queues and index."""
    blob = bytearray(checkpoint.read_bytes())
    at = CHECKPOINT_MARK_AT + CHECKPOINT_MARK.at["dispatched_offset"]
    blob[at : at + 8] = bytes(8)
    offsets = blob[CHECKPOINT_MARK_AT + CHECKPOINT_MARK.at["flushed_offset"] : at + 8]
    crc_at = CHECKPOINT_MARK_AT + CHECKPOINT_MARK.at["crc"]
    blob[crc_at : crc_at + 4] = zlib.crc32(bytes(blob[: CHECKPOINT.size] + offsets)).to_bytes(4, "big")
    return bytes(blob)


def kill(store: MessageStore) -> None:
    """Release a store as a killed process does: nothing is flushed or written, `abort` stays."""
    store.failed = StoreFailed("killed")
    store.close()


def tree(path: Path, *, ignore: Sequence[str] = ("lock",)) -> dict[str, str]:
    """Return every file below ``path`` with a digest of its content, and every folder with an empty one. The store must
    not be open here: reading its lock file would release the lock."""
    found = {}
    for each in sorted(path.rglob("*")):
        name = str(each.relative_to(path))
        if name not in ignore:
            found[name] = "" if each.is_dir() else hashlib.sha256(each.read_bytes()).hexdigest()
    return found


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def save(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a store that is not open, for ``restore``."""
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def restore(path: Path, saved: dict[str, bytes]) -> None:
    """Restore a store's files: cheaper than a copy for a test that needs hundreds."""
    for each in list(path.rglob("*")):
        if each.is_file() and str(each.relative_to(path)) not in saved:
            each.unlink()
    for name, content in saved.items():
        each = path / name
        if not each.exists() or each.read_bytes() != content:
            each.parent.mkdir(parents=True, exist_ok=True)
            each.write_bytes(content)


def overwrite(path: Path, at: int, blob: bytes) -> None:
    """Overwrite part of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(blob)


def queue_files(store: Path) -> dict[str, bytes]:
    """Return the content of every ConsumeQueue file by its name below ``consumequeue``."""
    folder = store / "consumequeue"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def index_files(store: Path) -> list[bytes]:
    """Return the content of the index files, oldest first (their names are times)."""
    return [path.read_bytes() for path in sorted((store / "index").iterdir())]
