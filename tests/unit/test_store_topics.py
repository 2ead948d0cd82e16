"""Topics that are deleted and created again: queue offsets continue, and no old message is visible."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store import KeySearch, MessageStore, PullSelection, TopicConfig
from flintmq.protocol.errors import MessageNotFound, OffsetOutOfRange, TopicNotExist
from flintmq.protocol.storage.record import offset_id
from tests.store_tools import (
    HOST,
    Sent,
    UnsyncedFiles,
    append,
    assert_holds,
    dispatch,
    find,
    kill,
    make_topic,
    open_store,
    overwrite,
    plain,
    pull_all,
    put,
    reopen,
)


def delete(store: MessageStore, topic: str) -> None:
    """Delete the topic as the broker does."""
    store.topics.remove(topic)
    store.delete_topic(topic)


def assert_gone(store: MessageStore, sent: list[Sent]) -> None:
    """Check that no read finds the messages."""
    for each in sent:
        with pytest.raises((OffsetOutOfRange, TopicNotExist)):
            store.pulls.pull(each.topic, each.queue, each.queue_offset, PullSelection(10, 1000), hot=False)
        with pytest.raises(MessageNotFound):
            store.view(offset_id(HOST, each.physical_offset), "", False)
        if store.topics.get(each.topic) is not None:
            for key in each.message.keys:
                assert each.physical_offset not in [record.physical_offset for record in find(store, each.topic, key)]


def remove_derived(path: Path) -> None:
    """Remove queues and index."""
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")


def remove_checkpoint(path: Path) -> None:
    """Remove everything except the log and FlintMQ's own files."""
    remove_derived(path)
    (path / "checkpoint").unlink()


def nothing(path: Path) -> None:
    """Remove nothing; only the restart is tested."""


@pytest.mark.parametrize("end", [MessageStore.close, kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", [nothing, remove_derived, remove_checkpoint])
def test_a_topic_created_again_continues_and_shows_no_old_message(
    tmp_path: Path, end: Callable[[MessageStore], None], damage: Callable[[Path], None]
) -> None:
    store = open_store(tmp_path / "store")
    kept = put(store, "bills", 0, plain(10))
    old = put(store, "orders", 0, plain(60)) + put(store, "orders", 1, plain(3))
    delete(store, "orders")
    assert_gone(store, old)
    make_topic(store, "orders")
    assert (store.queue_reads.min_offset("orders", 0, hot=False), store.queue_reads.max_offset("orders", 0)) == (60, 60)
    new = put(store, "orders", 0, plain(70)) + put(store, "orders", 2, plain(3))
    assert [each.queue_offset for each in new] == [*range(60, 130), 0, 1, 2]
    for again in range(3):
        assert_gone(store, old)
        assert_holds(store, new)
        assert_holds(store, kept)
        assert [row[:3] for row in store.queue_reads.topic_stats("orders", hot=False)] == [
            (0, 60, 130),
            (1, 3, 3),
            (2, 0, 3),
            (3, 0, 0),
        ]
        assert store.queue_reads.offset_by_time("orders", 0, 0, hot=False) == 60
        if again < 2:
            end(store)
            damage(store.path)
            store = open_store(tmp_path / "store")
    assert put(store, "orders", 1, plain(1))[0].queue_offset == 3
    store.close()


@pytest.mark.parametrize("damage", [nothing, remove_derived, remove_checkpoint])
def test_a_deleted_topic_stays_deleted_until_it_is_created_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = open_store(tmp_path / "store")
    old = put(store, "orders", 3, plain(5))
    kept = put(store, "bills", 0, plain(5))
    delete(store, "orders")
    for _ in range(3):
        store.close()
        damage(store.path)
        store = open_store(tmp_path / "store")
        assert [config.name for config in store.topics] == ["bills"]
        assert_gone(store, old)
        assert_holds(store, kept)
    assert put(store, "orders", 3, plain(1))[0].queue_offset == 5
    store.close()


def test_a_deletion_right_before_the_end_of_the_process_is_remembered(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    old = append(store, "orders", 0, plain(5))
    store.flush()
    delete(store, "orders")
    kill(store)
    store, report = reopen(tmp_path / "store")
    assert (report.clean, len(store.topics)) == (False, 0)
    assert_gone(store, old)
    make_topic(store, "orders")
    assert put(store, "orders", 0, plain(1))[0].queue_offset == 5
    store.close()


def test_a_deletion_is_remembered_if_the_newest_version_of_its_table_is_lost(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    old = put(store, "orders", 0, plain(5))
    delete(store, "orders")
    kill(store)
    (tmp_path / "store" / "flintmq" / "state.json").write_bytes(b"{")
    remove_checkpoint(tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert len(store.topics) == 0
    assert_gone(store, old)
    store.close()


def test_messages_not_dispatched_when_their_topic_was_deleted_never_are(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    old = append(store, "orders", 0, plain(5))
    delete(store, "orders")
    make_topic(store, "orders")
    new = append(store, "orders", 0, plain(2, first=5))
    dispatch(store)
    assert_gone(store, old)
    assert [record.queue_offset for record in pull_all(store, "orders", 0)] == [5, 6]
    assert_holds(store, new)
    store.close()


def test_a_topic_may_go_and_come_many_times(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    next_offset = 0
    for round_number in range(6):
        sent = put(store, "orders", 0, plain(round_number * 7 + 1))
        assert sent[0].queue_offset == next_offset
        next_offset += len(sent)
        if round_number % 3 == 1:
            store.close()
            store = open_store(tmp_path / "store")
        if round_number % 3 == 2:
            kill(store)
            remove_derived(store.path)
            store = open_store(tmp_path / "store")
        assert_holds(store, sent)
        delete(store, "orders")
    store.close()


def test_a_deletion_that_cannot_be_written_takes_nothing_away(tmp_path: Path) -> None:
    class FullForState(UnsyncedFiles):
        """Files without space for FlintMQ's own state."""

        full = False

        def rename(self, source: Path, target: Path) -> None:
            if self.full and target.name == "state.json":
                raise OSError(errno.ENOSPC, "no space left on device")
            super().rename(source, target)

    files = FullForState()
    store = open_store(tmp_path / "store", files=files)
    sent = put(store, "orders", 0, plain(5))
    config = store.topics.get("orders")
    assert config is not None
    files.full = True
    store.topics.remove("orders")
    with pytest.raises(OSError, match="no space"):
        store.delete_topic("orders")
    store.topics.put(config)
    files.full = False
    assert_holds(store, sent)
    sent += put(store, "orders", 0, plain(2, first=5))
    assert_holds(store, sent)
    store.close()
    store = open_store(tmp_path / "store")
    assert_holds(store, sent)
    store.close()


def test_a_deleted_topic_does_not_come_back_with_an_older_index(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(5))
    delete(store, "orders")
    store.topics.put(TopicConfig("orders"))
    store.topics.persist()
    assert store.query(KeySearch("orders", "key-1", max_count=10), hot=False).count == 0
    store.close()
    store, report = reopen(tmp_path / "store")
    assert report.rebuilt == []
    assert store.query(KeySearch("orders", "key-1", max_count=10), hot=False).count == 0
    store.close()


def test_a_deletion_of_messages_lost_in_a_crash_spares_later_ones(tmp_path: Path) -> None:
    """The crash cuts the log before the end that it had at the deletion; new messages take these offsets."""
    store = open_store(tmp_path / "store")
    kept = put(store, "bills", 0, plain(5))
    append(store, "orders", 0, plain(50))
    delete(store, "orders")
    end = store.flushed_offset
    kill(store)
    overwrite(store.path / "commitlog" / f"{0:020d}", end, bytes(60))
    for _ in range(3):
        store = open_store(tmp_path / "store")
        assert store.write_offset == end
        kill(store)
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 0, plain(3))
    for _ in range(3):
        assert_holds(store, sent)
        assert_holds(store, kept)
        kill(store)
        remove_derived(store.path)
        store = open_store(tmp_path / "store")
    store.close()
