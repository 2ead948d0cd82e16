"""The power goes at any moment: what was acknowledged after a sync is there, and of the rest only ends are lost."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, StoreSettings, TopicConfig
from flintmq.protocol.layout import PRE_BLANK_SIZE, UNIT_STRUCT
from flintmq.protocol.record import Record
from tests.fault.power_cut import PowerCut, PowerCutFiles
from tests.store_tools import HOST, Message, Sent, find, kill, make_batch, matches, pull_all, sent_of

KIB = 1024
TOPICS = ("orders", "bills", "%x|y")
QUEUES = 2


def tiny(policy: str) -> StoreSettings:
    """Files that roll all the time; smaller than a broker allows."""
    return StoreSettings(
        commitlog_file_bytes=64 * KIB,
        consumequeue_file_bytes=20 * 30,
        index_slots=50,
        index_entries=80,
        message_bytes_max=16 * KIB,
        allocate_step_bytes=16 * KIB,
        flush_policy=policy,
    )


class Life:
    """A broker that does things at random until the power goes, and what it promised."""

    def __init__(self, path: Path, source: random.Random, policy: str, lives: int) -> None:
        self._source = source
        self._path = path
        self._policy = policy
        self._lives = lives
        self.written: dict[tuple[str, int], list[Sent]] = {}
        """Every message of a queue, in order."""
        self.unfinished: tuple[str, int, list[Message]] = ("", 0, [])
        """The frame whose append the power may have ended, with its first messages written."""
        self.synced: set[int] = set()
        """Physical offsets of messages that were acknowledged after a sync."""
        self.topics: set[str] = set()
        """Whose creation was confirmed."""
        self.deleted: set[int] = set()
        """Physical offsets of messages whose topic's deletion was confirmed."""
        self.in_doubt: set[str] = set()
        """Topics that were being made or deleted."""
        self.committed: dict[tuple[str, int], int] = {}
        """A group's progress that was confirmed."""
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Take what lies there now for what the disk holds."""
        self.files = PowerCutFiles(self._path, self._lives)
        self.store = MessageStore(self._path, tiny(self._policy), store_host=HOST, files=self.files)

    def live(self) -> None:
        """Until the power goes: raises ``PowerCut``."""
        self.store.open()
        while True:
            self._source.choice(
                [self._append] * 12
                + [self._flush] * 5
                + [self._dispatch] * 5
                + [self._sync] * 2
                + [self._prepare, self._commit, self._delete]
            )()

    def next(self, found: MessageStore, lives: int) -> Life:
        """The life of the store that came back, whose messages are all on the disk."""
        after = Life(found.path, self._source, found.settings.flush_policy, lives)
        after._number = self._number
        for topic in TOPICS:
            config = found.topics.get(topic)
            if config is None:
                continue
            after.topics.add(topic)
            for queue in range(config.queues):
                offsets = {record.physical_offset for record in pull_all(found, topic, queue)}
                kept = [each for each in self.written.get((topic, queue), []) if each.physical_offset in offsets]
                assert len(kept) == len(offsets)
                after.written[topic, queue] = kept
                after.synced |= offsets
        after.deleted = {offset for offset in self.deleted if offset < found.write_offset}
        return after

    def _append(self) -> None:
        source, store = self._source, self.store
        topic = source.choice(TOPICS)
        config = store.topics.get(topic)
        if config is None:
            self.in_doubt.add(topic)
            config = TopicConfig(topic, QUEUES, QUEUES)
            store.topics.put(config)
            store.topics.persist()
            self.in_doubt.discard(topic)
            self.topics.add(topic)
        queue = source.randrange(config.queues)
        messages = []
        for _ in range(source.choice([1, 1, 3, 10])):
            self._number += 1
            body = source.randbytes(source.choice([0, 10, 300, 3000])) + b"%d" % self._number
            messages.append(Message(body, keys=(f"k{self._number}", f"all-{queue}"), tags=source.choice(["", "eu"])))
        self.unfinished = (topic, queue, messages)
        sent = sent_of(store.append(config, queue, make_batch(messages)), topic, queue, messages)
        self.unfinished = ("", 0, [])
        self.written.setdefault((topic, queue), []).extend(sent)

    def _flush(self) -> None:
        flushed = self.store.flush()
        self.synced |= {
            each.physical_offset for row in self.written.values() for each in row if each.physical_offset < flushed
        }

    def _dispatch(self) -> None:
        while self.store.reput_offset < self.store.dispatchable_offset:
            self.store.dispatch(self.store.dispatchable_offset, self._source.choice([500, 5000, 50_000]))

    def _sync(self) -> None:
        self.store.sync_derived()

    def _prepare(self) -> None:
        self.store.commitlog.prepare_ahead()

    def _commit(self) -> None:
        row = self._source.choice(TOPICS), self._source.randrange(QUEUES)
        queue = self.store.queues.get(*row)
        if queue is not None and row[0] in self.topics:
            self.committed.pop(row, None)
            self.store.consumer_offsets.commit("group", *row, queue.max_offset)
            self.store.consumer_offsets.persist()
            self.committed[row] = queue.max_offset

    def _delete(self) -> None:
        topic = self._source.choice(TOPICS)
        if topic not in self.topics or self._source.random() < 0.5:
            return
        self.in_doubt.add(topic)
        self.topics.discard(topic)
        self.store.topics.remove(topic)
        self.store.delete_topic(topic)
        self.in_doubt.discard(topic)
        for queue in range(QUEUES):
            self.deleted |= {each.physical_offset for each in self.written.pop((topic, queue), [])}
            self.committed.pop((topic, queue), None)


def check_units(store: MessageStore) -> None:
    """No unit points behind the log's end."""
    for path in (store.path / "consumequeue").rglob("0*"):
        for physical_offset, size, _ in UNIT_STRUCT.iter_unpack(path.read_bytes() if path.is_file() else b""):
            assert size == PRE_BLANK_SIZE or physical_offset + size <= store.write_offset, path


def check_queue(life: Life, topic: str, queue: int, records: list[Record]) -> None:
    """The queue holds what was written to it, without an end that was never synced."""
    written = life.written.setdefault((topic, queue), [])
    if (topic, queue) == life.unfinished[:2]:
        for record, message in zip(records[len(written) :], life.unfinished[2], strict=False):
            at = record.queue_offset, record.physical_offset, record.store_timestamp
            written.append(Sent(topic, queue, *at, message))
    assert len(records) <= len(written), (topic, queue)
    for record, each in zip(records, written, strict=False):
        assert matches(record, each)
    lost = {each.physical_offset for each in written[len(records) :]}
    assert not lost & life.synced, (topic, queue)


def check(store: MessageStore, life: Life) -> None:
    """What was promised is kept, and nothing else is there."""
    check_units(store)
    assert store.reput_offset == store.write_offset == store.flushed_offset
    for topic in TOPICS:
        if topic in life.in_doubt:
            continue
        assert (store.topics.get(topic) is not None) == (topic in life.topics), topic
        config = store.topics.get(topic)
        for queue in range(config.queues) if config is not None else ():
            records = list(pull_all(store, topic, queue))
            assert not life.deleted & {record.physical_offset for record in records}
            check_queue(life, topic, queue, records)
            shared = [record.physical_offset for record in find(store, topic, f"all-{queue}")]
            assert shared == [record.physical_offset for record in reversed(records)]
            for record in records[-5:]:
                key = record.property_map()["KEYS"].split()[0]
                assert [each.physical_offset for each in find(store, topic, key)] == [record.physical_offset]
            committed = life.committed.get((topic, queue))
            if committed is not None:
                kept = store.consumer_offsets.committed("group", topic)[queue]
                assert kept == min(committed, store.max_offset(topic, queue))


@pytest.mark.parametrize("policy", ["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_whenever_the_power_goes_the_store_comes_back_with_what_was_synced(
    tmp_path: Path, seed: int, policy: str
) -> None:
    source = random.Random(f"{seed} {policy}")
    life = Life(tmp_path / "store-0", source, policy, source.randrange(20, 700))
    for number in range(1, 7):
        with pytest.raises(PowerCut):
            life.live()
        kill(life.store)
        path = tmp_path / f"store-{number}"
        life.files.cut(path, source)
        shutil.rmtree(tmp_path / f"store-{number - 1}")
        if source.random() < 0.4:
            path = cut_in_recovery(path, source, policy)
        store = MessageStore(path, tiny(policy), store_host=HOST)
        store.open()
        check(store, life)
        life = life.next(store, source.randrange(20, 900))
        kill(store)
        life.begin()  # what this start wrote counts as being on the disk


def cut_in_recovery(path: Path, source: random.Random, policy: str) -> Path:
    """Begin a start, and let the power go again in the middle of it; where what is left lies."""
    files = PowerCutFiles(path, source.randrange(1, 150))
    store = MessageStore(path, tiny(policy), store_host=HOST, files=files)
    with contextlib.suppress(PowerCut):
        store.open()
    kill(store)
    target = path.with_name(path.name + "-again")
    files.cut(target, source)
    shutil.rmtree(path)
    target.rename(path)
    return path


def test_the_cut_itself_forgets_what_was_not_synced(tmp_path: Path) -> None:
    """The layer of these tests: neither too kind nor too cruel."""
    seen = set()
    for seed in range(80):
        root, target = tmp_path / f"root-{seed}", tmp_path / f"cut-{seed}"
        root.mkdir()
        files = PowerCutFiles(root, 1000)
        fd = files.open(root / "a", create=True)
        files.resize(fd, 8192)
        files.write(fd, b"1" * 8192, 0)
        files.sync_data(fd)
        files.sync_folder(root)
        files.map(fd, 8192)[:4096] = b"2" * 4096
        files.make_folder(root / "b")
        files.rename(root / "a", root / "b" / "c")
        files.close(fd)
        files.cut(target, random.Random(seed))
        names = tuple(sorted(str(path.relative_to(target)) for path in target.rglob("*")))
        (content,) = [path.read_bytes() for path in target.rglob("*") if path.is_file()]
        assert content[4096:] == b"1" * 4096
        seen.add((names, content[:1]))
    assert {names for names, _ in seen} == {("a",), ("a", "b"), ("b", "b/c")}
    assert {first for _, first in seen} == {b"1", b"2"}
