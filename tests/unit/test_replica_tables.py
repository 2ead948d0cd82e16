"""The tables that a primary sends: a follower that takes them over has whole changes, or none of them."""

from __future__ import annotations

from pathlib import Path

from flintmq.broker.replication.member.tables import TopicsTable
from flintmq.broker.store import MessageStore
from tests.store_tools import make_topic, open_store, plain, put


def store_with_topic(path: Path, topic: str) -> MessageStore:
    """Return an open store with a topic that has messages."""
    store = open_store(path)
    put(store, topic, 0, plain(3))
    return store


def test_a_topic_whose_deletion_is_not_on_disk_is_not_deleted_on_a_follower(tmp_path: Path) -> None:
    primary, follower = (store_with_topic(tmp_path / name, "gone") for name in ("primary", "follower"))
    primary.topics.remove("gone")
    TopicsTable(follower).write(TopicsTable(primary).read())
    assert follower.topics.get("gone") is not None
    for store in (primary, follower):
        store.close()


def test_a_deletion_takes_the_messages_of_a_follower_with_it(tmp_path: Path) -> None:
    primary, follower = (store_with_topic(tmp_path / name, "gone") for name in ("primary", "follower"))
    table = TopicsTable(primary)
    primary.topics.remove("gone")
    before = table.version()
    primary.delete_topic("gone")
    assert table.version() != before
    TopicsTable(follower).write(table.read())
    assert follower.topics.get("gone") is None
    assert follower.state.deleted == primary.state.deleted
    for store in (primary, follower):
        store.close()


def test_a_topic_that_is_created_again_is_sent(tmp_path: Path) -> None:
    primary = store_with_topic(tmp_path / "primary", "back")
    primary.topics.remove("back")
    primary.delete_topic("back")
    config = make_topic(primary, "back", queues=2)
    follower = open_store(tmp_path / "follower")
    TopicsTable(follower).write(TopicsTable(primary).read())
    assert follower.topics.get("back") == config
    for store in (primary, follower):
        store.close()
