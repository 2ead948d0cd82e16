"""A process that dies at any of its changes to the file system: the next one has the same result."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore, TopicConfig
from tests.fault.dying_files import Died, DyingFiles
from tests.store_tools import (
    SMALL,
    Message,
    Sent,
    append,
    assert_found,
    assert_holds,
    dispatch,
    find,
    index_files,
    kill,
    make_batch,
    make_topic,
    matches,
    open_store,
    overwrite,
    plain,
    pull_all,
    put,
    queue_files,
    reopen,
    restore,
    save,
    sent_of,
)

Damage = Callable[[Path], None]
FIRST = f"{0:020d}"


def only_torn(path: Path) -> None:
    """Leave only the log's torn end, as in all of these stores."""


def queue_and_index_lost(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders" / "1")
    overwrite(sorted((path / "index").iterdir())[0], 600, bytes(400))


def queue_misplaced(path: Path) -> None:
    (path / "consumequeue" / "orders" / "0" / FIRST).unlink()


def only_the_log(path: Path) -> None:
    for name in ("consumequeue", "index", "config"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()


def no_checkpoint(path: Path) -> None:
    (path / "checkpoint").unlink()
    shutil.rmtree(path / "index")


def nothing_synced(path: Path) -> None:
    """Set the mark back, as if nothing had been dispatched."""
    (path / "checkpoint").write_bytes(bytes(4096))


@pytest.mark.parametrize(
    "damage", [only_torn, queue_and_index_lost, queue_misplaced, only_the_log, no_checkpoint, nothing_synced]
)
def test_a_recovery_interrupted_anywhere_starts_over_with_the_same_result(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    old = put(store, "orders", 0, plain(20))
    store.topics.remove("orders")
    store.delete_topic("orders")
    sent = []
    for number in range(10):
        sent += put(store, "orders", number % 2, plain(15, first=100 + 15 * number))
    sent += put(store, "bills", 0, plain(10))
    store.sync_derived()
    queues = queue_files(path)
    kill(store)
    # The deleted topic's messages stay in the index until it is rebuilt.
    indexes = [index_files(path)]
    saved = save(path)
    shutil.rmtree(path / "index")
    kill(open_store(path))
    indexes.append(index_files(path))
    restore(path, saved)
    torn = append(store := open_store(path), "orders", 0, plain(3, first=900))
    kill(store)
    overwrite(path / "commitlog" / FIRST, torn[0].physical_offset + 60, bytes(60))
    damage(path)
    saved = save(path)

    source = random.Random(damage.__name__)
    lives = 0
    died = True
    while died:
        restore(path, saved)
        died = False
        for attempt in (lives, source.randrange(lives + 5)):  # and the recovery of the recovery dies too
            files = DyingFiles(attempt, half=bool(lives % 2))
            try:
                kill(open_store(path, files=files))
            except Died:
                died = True
        store, report = reopen(path)
        assert not report.clean
        assert_holds(store, sent)
        assert find(store, "orders", old[0].message.keys[0]) == []
        kill(store)
        assert index_files(path) in indexes, lives
        after = queue_files(path)
        # The deleted topic's units may be there or not; no consumer sees them.
        assert {name: after[name] for name in after if not name.startswith("orders/0/")} == {
            name: queues[name] for name in queues if not name.startswith("orders/0/")
        }
        lives += 1 + lives // 40
    assert lives > 10


class Run:
    """A broker's life on files that may die, and its promises."""

    def __init__(self, path: Path, files: DyingFiles) -> None:
        self._path = path
        self._files = files
        self.acknowledged: list[Sent] = []
        self.deleted: list[Sent] = []
        self.in_doubt = ""
        """Topics whose deletion was in progress."""
        self.committed = 0
        self.store = MessageStore(path, SMALL, files=files)

    def live(self) -> None:
        """Do everything that a broker does. Raises ``Died``."""
        self.store.open()
        self._send("orders", 0, plain(60, size=2000))
        self._send("orders", 1, plain(120, first=60))
        self.store.sync_derived()
        self._send("bills", 0, plain(10, size=300_000))
        self.store.consumer_offsets.commit("group", "orders", 0, 10)
        self.store.consumer_offsets.persist()
        self.committed = 10
        self._send("bills", 0, [Message(bytes([number]) * 400_000) for number in range(12)])
        self._delete("bills")
        self.store.sync_derived()
        self._send("bills", 1, plain(5, first=500))
        self._send("bills", 0, plain(5, first=600))
        self._send("orders", 0, plain(130, first=700))
        self.store.close()

    def _send(self, topic: str, queue: int, messages: list[Message]) -> None:
        store = self.store
        if store.topics.get(topic) is None:
            store.topics.put(TopicConfig(topic))
            store.topics.persist()
        config = make_topic(store, topic)
        appended = store.append(config, queue, make_batch(messages))
        store.flush()
        self.acknowledged += sent_of(appended, topic, queue, messages)
        while store.reput_offset < store.write_offset:
            store.dispatch(store.write_offset)

    def _delete(self, topic: str) -> None:
        self.in_doubt = topic
        self.store.topics.remove(topic)
        self.store.delete_topic(topic)
        self.in_doubt = ""
        self.deleted += [each for each in self.acknowledged if each.topic == topic]
        self.acknowledged = [each for each in self.acknowledged if each.topic != topic]


def assert_kept(store: MessageStore, run: Run) -> None:
    """Check that every promise is kept."""
    sure = [each for each in run.acknowledged if each.topic != run.in_doubt]
    queues = {(each.topic, each.queue) for each in sure}
    records = {record.physical_offset: record for queue in queues for record in pull_all(store, *queue)}
    for number, each in enumerate(sure):
        assert matches(records[each.physical_offset], each)
        if number % 7 == 0:
            assert_found(store, [each])
    for topic in {each.topic for each in run.deleted}:
        if store.topics.get(topic) is not None:
            gone = {each.physical_offset for each in run.deleted}
            assert not gone & {record.physical_offset for queue in range(4) for record in pull_all(store, topic, queue)}
    assert store.consumer_offsets.committed("group", "orders").get(0, 0) >= run.committed


@pytest.mark.parametrize("half", [False, True], ids=["before a write", "in the middle of a write"])
def test_a_broker_that_dies_anywhere_keeps_its_promises(tmp_path: Path, half: bool) -> None:
    source = random.Random(half)
    lives = 0
    died = True
    while died:
        path = tmp_path / "store"
        run = Run(path, DyingFiles(lives, half=half))
        died = False
        try:
            run.live()
        except Died:
            died = True
            kill(run.store)
        store, report = reopen(path)
        assert report.clean or died
        assert report.rebuilt == [] or half  # half a checkpoint is invalid
        assert_kept(store, run)
        for topic in ("orders", "bills"):
            before = store.queue_reads.max_offset(topic, 0) if store.topics.get(topic) is not None else None
            new = put(store, topic, 0, plain(2, first=9000))
            assert before is None or new[0].queue_offset == before
            assert_kept(store, run)
        dispatch(store)
        store.close()
        shutil.rmtree(path)
        lives += source.randrange(1, 14)
    assert lives > 100
