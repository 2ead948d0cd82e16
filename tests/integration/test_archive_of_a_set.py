"""The archive of a replica set goes on with the next primary, without gap or duplicate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flintmq.client import Admin
from flintmq.protocol.storage.archive.objects import Objects
from tests.group_tools import until
from tests.replica_set import ReplicaSet
from tests.store_tools import SERVED, open_store
from tests.written_archive import WrittenArchive, newest


def test_the_next_primary_goes_on_with_the_archive(new_set: Callable[..., ReplicaSet], tmp_path: Path) -> None:
    objects = Objects(tmp_path / "archive")
    replicas = new_set(settings={"archive.url": objects.url, "archive.interval_ms": 100})
    replicas.begin()
    replicas.send("orders", 0, 200)
    first = replicas.leader()
    with Admin(replicas.running[first].address) as admin:
        until(lambda: admin.archive().archived_offset > 0 and admin.archive().behind_bytes == 0, "the first primary")
    epoch = newest(objects).epoch
    replicas.kill(first)
    until(lambda: replicas.leader() != first, "the next primary")
    replicas.send("orders", 200, 400)
    second = replicas.leader()
    with Admin(replicas.running[second].address) as admin:
        until(lambda: admin.archive().archived_offset > 0 and admin.archive().behind_bytes == 0, "the next primary")
        assert admin.archive().state == "running"
    assert newest(objects).epoch > epoch
    replicas.running[second].stop()
    store = open_store(replicas.store(second), SERVED)
    WrittenArchive(objects).assert_is(store)
    store.close()
