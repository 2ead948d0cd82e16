"""``plan-clean`` reports what retention would delete, and deletes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from flintmq.broker.background.services import Disk
from flintmq.broker.config import RetentionSection
from flintmq.broker.store import MessageStore
from flintmq.broker.store.retention import HALF_TOPIC
from flintmq.broker.tools.plan_clean import as_json, as_text, plan_clean
from flintmq.protocol.errors import ConfigurationError
from tests.store_tools import SMALL, open_store, plain, put, tree

ROOMY = Disk(used_bytes=10, free_bytes=1 << 40)
FULL = Disk(used_bytes=9 << 30, free_bytes=1 << 29)
EVERY_HOUR = RetentionSection(delete_when=";".join(f"{hour:02}" for hour in range(24)), file_reserved_hours=1)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    store = open_store(tmp_path / "store")
    number = 0
    while len(store.commitlog.queue.files) < 5:
        if len(store.commitlog.queue.files) == 2 and store.topics.get(HALF_TOPIC) is None:
            put(store, HALF_TOPIC, 0, plain(1))
        put(store, "orders", number % 2, plain(8, size=60_000, first=8 * number))
        number += 1
    return store


def test_the_plan_lists_files_to_delete_and_reasons_to_keep_the_rest(store: MessageStore) -> None:
    store.close()
    before = tree(store.path)
    now = time.time() + 2 * 3600
    plan = plan_clean(store.path, EVERY_HOUR, now=now, disk=ROOMY)
    assert [verdict.goes for verdict in plan.verdicts] == [True, False, False, False]
    assert [verdict.file.path.name for verdict in plan.going] == [f"{0:020d}"]
    assert plan.verdicts[1].reason == "kept: it contains a message that is of an open transaction"
    assert plan.verdicts[2].reason == f"kept: it follows {SMALL.commitlog_file_bytes:020d}"
    shown = as_text(plan, now)
    assert shown[-1] == "1 of 5 CommitLog files would go, 4 MB"
    assert "goes  00000000000000000000  4 MB  2.0 h old" in shown[1]
    assert tree(store.path) == before


def test_it_looks_at_the_store_of_a_running_broker(store: MessageStore) -> None:
    plan = plan_clean(store.path, EVERY_HOUR, disk=FULL)
    assert [verdict.goes for verdict in plan.verdicts] == [True, False, False, False]
    assert plan.refuses
    assert "95 % in use" in as_text(plan, time.time())[0]
    store.close()


def test_retention_follows_the_plan(store: MessageStore) -> None:
    store.consumer_offsets.commit("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 1)
    store.consumer_offsets.persist()
    plan = plan_clean(store.path, EVERY_HOUR, now=time.time() + 7200, disk=ROOMY)
    assert len(plan.going) == 4
    store.expire(len(plan.going))
    assert list((store.path / "commitlog").iterdir()) == [plan.last]
    store.close()


def test_as_json_it_is_an_object_a_line(store: MessageStore) -> None:
    store.close()
    rows = [json.loads(line) for line in as_json(plan_clean(store.path, EVERY_HOUR, disk=FULL))]
    assert rows[0] == {"disk_used_percent": 94.7, "disk_free_bytes": 1 << 29, "refuses": True}
    assert [row["goes"] for row in rows[1:]] == [True, False, False, False, False]
    assert rows[1]["bytes"] == SMALL.commitlog_file_bytes


def test_a_store_with_one_file_keeps_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(3))
    store.close()
    plan = plan_clean(store.path, EVERY_HOUR, now=time.time() + 9e6, disk=FULL)
    assert plan.verdicts == []
    assert as_text(plan, time.time())[-1] == "0 of 1 CommitLog files would go, 0 MB"


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a store"):
        plan_clean(tmp_path, EVERY_HOUR)
