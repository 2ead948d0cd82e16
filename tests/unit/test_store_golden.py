"""FlintMQ serves a whole store of Apache RocketMQ 5.3.3, and rebuilds it byte for byte from its log alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import MessageStore, PullSelection, RecoveryReport, StoreSettings
from flintmq.broker.store.files.file_system import Files
from flintmq.protocol.errors import OffsetOutOfRange
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, decode_record, split_keys
from tests.store_tools import UnsyncedFiles, find, pull_all, put, split_answer, unpack_rocketmq
from tests.store_tools import plain as plain_messages

TOPIC = "CompatTopic"
PAGE = 4096
DERIVED = ("consumequeue", "index", "checkpoint", "config")
CHANGED = {"checkpoint"}
"""What FlintMQ writes of RocketMQ's files when it serves a store without a new message."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpack_rocketmq(tmp_path_factory.mktemp("golden"))
    assert sum(path.stat().st_blocks for path in folder.rglob("*")) * 512 < 16 * 1024 * 1024, "the files are not sparse"
    return folder


@pytest.fixture(scope="module")
def expected(pristine: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (pristine / "expected.jsonl").read_text().splitlines()]


def copy_sparse(source: Path, target: Path) -> Path:
    """Copy the file; holes stay holes."""
    for path in sorted(source.rglob("*")):
        to = target / path.relative_to(source)
        if path.is_dir():
            to.mkdir(parents=True)
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as file:
            for at, page in pages(path).items():
                file.seek(at)
                file.write(page)
            file.truncate(path.stat().st_size)
    return target


def pages(path: Path) -> dict[int, bytes]:
    """Return the file's nonzero pages by position."""
    found = {}
    fd = os.open(path, os.O_RDONLY)
    try:
        for begin, end in Files().data_ranges(fd, 0, os.fstat(fd).st_size):
            for at in range(begin - begin % PAGE, end, PAGE):
                page = os.pread(fd, PAGE, at)
                if any(page):
                    found[at] = page
    finally:
        os.close(fd)
    return found


def content(path: Path) -> dict[str, tuple[int, dict[int, bytes]]]:
    """Return size and pages of every file below ``path``."""
    return {
        str(each.relative_to(path)): (each.stat().st_size, pages(each)) for each in path.rglob("*") if each.is_file()
    }


def serve(path: Path) -> tuple[MessageStore, RecoveryReport]:
    """Open the store with RocketMQ's own file sizes."""
    store = MessageStore(path, StoreSettings(), files=UnsyncedFiles())
    return store, store.open()


def body_of(record: Record) -> bytes:
    """Return the body as a consumer sees it."""
    return zlib.decompress(record.body) if record.sys_flag & SysFlag.COMPRESSED else record.body


def records_by_offset(store: MessageStore, topic: str) -> dict[int, Record]:
    """Return every message of a topic by its physical offset."""
    queues = range(len(store.queue_reads.topic_stats(topic, hot=False)))
    return {record.physical_offset: record for queue in queues for record in pull_all(store, topic, queue)}


def assert_complete(store: MessageStore, expected: list[dict[str, Any]]) -> None:
    """Check that exactly RocketMQ's visible messages are delivered with their contents, and found by key and by id."""
    visible = [sent for sent in expected if sent["visible"]]
    records = records_by_offset(store, TOPIC)
    assert len(records) == len(visible) == 500
    assert Counter(hashlib.sha1(body_of(record)).hexdigest() for record in records.values()) == Counter(
        sent["sha1"] for sent in visible
    )
    by_unique: dict[str, list[Record]] = {}
    for record in records.values():
        by_unique.setdefault(record.property_map()["UNIQ_KEY"], []).append(record)
    for sent in expected:
        if not sent["visible"]:
            assert find(store, TOPIC, sent["msgId"]) == [], "a message that was rolled back is found"
            continue
        if sent["offsetMsgId"] is not None:
            found = store.view(sent["offsetMsgId"], "", False)
            record = decode_record(split_answer(found.body, found.count)[0])
            assert record == records[record.physical_offset]
        else:
            (record,) = by_unique[sent["msgId"]]
        properties = record.property_map()
        assert hashlib.sha1(body_of(record)).hexdigest() == sent["sha1"]
        assert (len(body_of(record)), record.flag) == (sent["bodyLen"], sent["flag"])
        assert (properties.get("KEYS"), properties.get("TAGS")) == (sent["keys"], sent["tags"])
        if sent["queueOffset"] is not None:
            assert (record.queue_id, record.queue_offset) == (sent["queueId"], sent["queueOffset"])
        assert record in find(store, TOPIC, properties["UNIQ_KEY"])
        for key in split_keys(sent["keys"]):
            assert record in find(store, TOPIC, key)
        assert store.view(properties["UNIQ_KEY"], TOPIC, False).count == 1


def assert_dense(store: MessageStore) -> None:
    """Check that every queue of every topic has consecutive offsets from 0 to its number of messages."""
    for config in store.topics:
        for queue, low, high, last_ms in store.queue_reads.topic_stats(config.name, hot=False):
            offsets = [record.queue_offset for record in pull_all(store, config.name, queue)]
            assert (low, offsets, last_ms >= 0) == (0, list(range(high)), high > 0)
            with pytest.raises(OffsetOutOfRange):
                store.pulls.pull(config.name, queue, high + 1, PullSelection(1, 1000), hot=False)


@pytest.fixture
def golden(pristine: Path, tmp_path: Path) -> Iterator[Path]:
    yield copy_sparse(pristine / "store-pristine", tmp_path / "store")
    shutil.rmtree(tmp_path / "store")


def test_it_is_served_as_it_is_and_left_as_it_was(golden: Path, expected: list[dict[str, Any]]) -> None:
    before = content(golden)
    store, report = serve(golden)
    assert (report.clean, report.truncated_bytes, report.rebuilt, report.messages_checked) == (True, 0, [], 552)
    assert_complete(store, expected)
    assert_dense(store)
    store.close()
    after = content(golden)
    assert {name.split("/")[0] for name in after if name not in before} == {"flintmq"}
    for name, (size, held) in before.items():
        if name not in CHANGED:
            assert after[name] == (size, held), name
    store, report = serve(golden)
    assert store.consumer_offsets.committed("CompatGroup", TOPIC) == {0: 60, 1: 65, 2: 60, 3: 65}
    assert (report.clean, report.rebuilt, report.messages_recovered) == (True, [], 0)
    sent = put(store, TOPIC, 0, plain_messages(3))
    assert [each.queue_offset for each in sent] == list(range(sent[0].queue_offset, sent[0].queue_offset + 3))
    assert len(records_by_offset(store, TOPIC)) == 503
    store.close()


@pytest.mark.parametrize("lost", [DERIVED, ("consumequeue",), ("index",), ("checkpoint",), ("index", "checkpoint")])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_lost_files_are_rebuilt_byte_for_byte(
    golden: Path, expected: list[dict[str, Any]], lost: tuple[str, ...], stopped: bool
) -> None:
    before = content(golden)
    for name in lost:
        if (golden / name).is_dir():
            shutil.rmtree(golden / name)
        else:
            (golden / name).unlink()
    if not stopped:
        (golden / "abort").write_text("1")
    store, report = serve(golden)
    assert (report.clean, report.truncated_bytes) == (stopped, 0)
    assert bool(report.rebuilt) == ("index" in lost)
    if lost != ("checkpoint",):
        assert report.messages_recovered == 552
    if lost == DERIVED:
        assert report.messages_recovered == 552
        assert store.topics.get(TOPIC) is not None
        assert_complete(store, expected)
        assert_dense(store)
    else:
        assert len(records_by_offset(store, TOPIC)) == 500
    store.close()
    after = content(golden)
    for name, held in before.items():
        if name.startswith(("consumequeue/", "commitlog/")):
            assert after[name] == held, name
    assert {name for name in after if name.startswith("consumequeue/")} == {
        name for name in before if name.startswith("consumequeue/")
    }
    indexes = [[held for name, held in each.items() if name.startswith("index/")] for each in (before, after)]
    assert indexes[0] == indexes[1]


def test_a_torn_last_record_is_cut_as_rocketmq_does(golden: Path) -> None:
    log = golden / "commitlog" / "00000000000000000000"
    (golden / "abort").write_text("1")
    end = max(pages(log)) + PAGE
    with log.open("r+b") as file:
        file.seek(end - PAGE)
        tail = file.read(PAGE).rstrip(b"\0")
        end = end - PAGE + len(tail)
        file.seek(end - 10)
        file.write(bytes(10))
    store, report = serve(golden)
    assert report.messages_checked == 551
    assert store.write_offset + report.truncated_bytes == end - 10
    assert max(pages(log)) < end - PAGE or not any(pages(log)[end - end % PAGE][store.write_offset % PAGE :])
    assert_dense(store)
    store.close()
