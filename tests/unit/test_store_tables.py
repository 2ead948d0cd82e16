"""The JSON tables: RocketMQ's dialect, backups, and the unknown entries that FlintMQ keeps."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import CorruptFile, TopicConfig
from flintmq.broker.store.files.json_table import ConfigFile, next_data_version, parse_table
from flintmq.broker.store.tables.offset_tables import ConsumerOffsetTable, DelayOffsetTable
from flintmq.broker.store.tables.topic_table import TopicTable
from flintmq.protocol.checked_json import CHECKSUM_KEY, encode_checked
from tests.store_tools import UnsyncedFiles, assert_holds, kill, open_store, plain, put, reopen

ROCKETMQ_OFFSETS = (
    '{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":1700000000000},'
    '"groupTopicMap":{},"offsetTable":{"CompatTopic@CompatGroup":{0:60,1:65 ,-1:7},"a\\"{1:2}@g":{ 10 :3}}}'
)
"""As fastjson writes it: integer keys without quotes. One key looks like a table itself."""
ROCKETMQ_TOPICS = """{
\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
\t"topicConfigTable":{
\t\t"orders":{"attributes":{"+message.type":"NORMAL"},"order":true,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"orders","topicSysFlag":3,"writeQueueNums":7}
\t}
}"""


def config_file(folder: Path, text: str | None, backup: str | None = None) -> ConfigFile:
    """Return a table with this content."""
    for name, content in (("table.json", text), ("table.json.bak", backup)):
        if content is not None:
            (folder / name).write_text(content, encoding="utf-8")
    return ConfigFile(UnsyncedFiles(), folder / "table.json")


def as_it_is(table: dict[str, Any]) -> dict[str, Any]:
    return table


def test_integer_keys_are_read_with_and_without_quotes_and_text_is_left_alone() -> None:
    table = parse_table(ROCKETMQ_OFFSETS)
    assert table["offsetTable"] == {"CompatTopic@CompatGroup": {"0": 60, "1": 65, "-1": 7}, 'a"{1:2}@g': {"10": 3}}
    assert parse_table(json.dumps(table)) == table


@pytest.mark.parametrize("text", ["[1]", "{", '{"a":1}}', "nothing", "\x00\x00", '{"a":' * 100_000, "\ud800"])
def test_an_invalid_table_is_read_from_the_backup(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert config_file(tmp_path, None, '{"a":{1:2}}').load(as_it_is) == {"a": {"1": 2}}


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_file_is_no_empty_table(tmp_path: Path, text: str) -> None:
    for backup in (None, "", "{"):
        with pytest.raises(CorruptFile, match=r"table\.json cannot be read: ValueError: it is empty"):
            config_file(tmp_path, text, backup).load(as_it_is)
    assert config_file(tmp_path, text, '{"a":1}').load(as_it_is) == {"a": 1}


def test_a_missing_table_is_read_from_the_backup_or_is_empty(tmp_path: Path) -> None:
    assert config_file(tmp_path, None).load(as_it_is) == {}
    assert config_file(tmp_path, None, '{"a":1}').load(as_it_is) == {"a": 1}


@pytest.mark.parametrize("table", [{}, {"a": {}}, {"a@b": {"0": 17, "1": -3}, "é": [1, None, 2.5, "\x7f\n"]}])
def test_a_table_comes_back_and_no_changed_bit_of_it_passes(table: dict[str, Any]) -> None:
    blob = encode_checked(table).encode()
    assert parse_table(blob.decode()) == table
    assert set(json.loads(blob)) == {*table, CHECKSUM_KEY}
    for bit in range(8 * len(blob)):
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            read = parse_table(changed.decode())
        except ValueError:
            continue
        # Only white space or the name of the checksum itself may have changed.
        assert {key: read.get(key) for key in table} == table, changed


def test_removing_the_checksum_allows_a_change_by_hand(tmp_path: Path) -> None:
    file = config_file(tmp_path, None)
    file.save({"a": 17})
    text = file.path.read_text().replace("17", "18")
    file.path.write_text(text)
    with pytest.raises(CorruptFile, match=f"changed after it was written.*remove {CHECKSUM_KEY}"):
        file.load(as_it_is)
    table = json.loads(text)
    del table[CHECKSUM_KEY]
    file.path.write_text(json.dumps(table))
    assert file.load(as_it_is) == {"a": 18}


def test_a_broken_file_never_becomes_the_backup(tmp_path: Path) -> None:
    file = config_file(tmp_path, "broken", '{"a":1}')
    file.load(as_it_is)
    file.save({"a": 2})
    assert parse_table((tmp_path / "table.json.bak").read_text()) == {"a": 1}
    file.save({"a": 3})
    assert parse_table((tmp_path / "table.json").read_text()) == {"a": 3}
    assert parse_table((tmp_path / "table.json.bak").read_text()) == {"a": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json", "table.json.bak"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TopicTable, '{"topicConfigTable":5}'),
        (TopicTable, '{"topicConfigTable":{"a":5}}'),
        (TopicTable, '{"topicConfigTable":{"a":{"perm":"x"}}}'),
        (ConsumerOffsetTable, '{"offsetTable":{"a@b":[1]}}'),
        (ConsumerOffsetTable, '{"offsetTable":{"a@b":{"x":1}}}'),
        (ConsumerOffsetTable, '{"offsetTable":{"a@b":{"0":Infinity}}}'),
        (DelayOffsetTable, '{"offsetTable":{"1":null}}'),
    ],
)
def test_a_table_of_another_shape_counts_as_broken(tmp_path: Path, kind: Any, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(CorruptFile, match=r"table\.json cannot be read"):
        kind(UnsyncedFiles(), tmp_path / "table.json").load()
    (tmp_path / "table.json.bak").write_text("{}")
    kind(UnsyncedFiles(), tmp_path / "table.json").load()


def test_topics_keep_rocketmqs_other_fields(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(ROCKETMQ_TOPICS)
    topics = TopicTable(UnsyncedFiles(), tmp_path / "topics.json")
    topics.load()
    config = topics.get("orders")
    assert config is not None
    assert (config.read_queues, config.write_queues, config.queues, config.perm, config.order) == (8, 7, 8, 6, True)
    topics.put(TopicConfig("orders", 9, 9))
    topics.put(TopicConfig("bills", 4, 4, perm=4))
    topics.persist()
    table = json.loads((tmp_path / "topics.json").read_text())
    assert table["dataVersion"]["counter"] == 3
    assert table["topicConfigTable"]["orders"] == {
        "attributes": {"+message.type": "NORMAL"},
        "order": False,
        "perm": 6,
        "readQueueNums": 9,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 3,
        "writeQueueNums": 9,
    }
    assert table["topicConfigTable"]["bills"] == {
        "attributes": {},
        "order": False,
        "perm": 4,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "bills",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    again = TopicTable(UnsyncedFiles(), tmp_path / "topics.json")
    again.load()
    assert [(each.name, each.writable, each.readable) for each in again] == [
        ("orders", True, True),
        ("bills", False, True),
    ]


def test_consumer_offsets_keep_rocketmqs_other_fields(tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_text(ROCKETMQ_OFFSETS)
    offsets = ConsumerOffsetTable(UnsyncedFiles(), tmp_path / "offsets.json")
    offsets.load()
    assert offsets.committed("CompatGroup", "CompatTopic") == {0: 60, 1: 65, -1: 7}
    assert offsets.committed("nobody", "CompatTopic") == {}
    assert not offsets.dirty
    offsets.commit("CompatGroup", "CompatTopic", 3, 9)
    assert offsets.dirty
    offsets.persist()
    assert not offsets.dirty
    table = json.loads((tmp_path / "offsets.json").read_text())
    assert table["offsetTable"]["CompatTopic@CompatGroup"] == {"-1": 7, "0": 60, "1": 65, "3": 9}
    assert (table["groupTopicMap"], table["dataVersion"]["counter"]) == ({}, 5)


@pytest.mark.parametrize("before", [None, 5, {"counter": "x"}, {"counter": None}, {}])
def test_an_invalid_version_begins_at_one(before: Any) -> None:
    assert next_data_version(before)["counter"] == 1


def test_lost_topics_are_found_again_in_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sent = put(store, "orders", 2, plain(3)) + put(store, "bills", 0, plain(3))
    store.close()
    for path in (store.path / "config").iterdir():
        path.unlink()
    store = open_store(tmp_path / "store")
    assert {config.name: config.queues for config in store.topics} == {"bills": 1, "orders": 3}
    assert_holds(store, sent)
    assert "bills" in (store.path / "config" / "topics.json").read_text()
    store.close()


def test_progress_beyond_the_end_of_a_queue_is_taken_back_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "orders", 0, plain(10))
    store.consumer_offsets.commit("group", "orders", 0, 12)
    store.consumer_offsets.commit("group", "orders", 1, 1)
    store.consumer_offsets.commit("group", "gone", 0, 5)
    store.consumer_offsets.commit("other", "orders", 0, 10)
    store.consumer_offsets.persist()
    delay = store.path / "config" / "delayOffset.json"
    delay.write_text('{"dataVersion":{"counter":1},"offsetTable":{1:17,2:0}}')
    kill(store)
    store, report = reopen(tmp_path / "store")
    assert not report.clean
    for number in range(2):
        assert store.consumer_offsets.committed("group", "orders") == {0: 10, 1: 0}
        assert store.consumer_offsets.committed("group", "gone") == {0: 0}
        assert store.consumer_offsets.committed("other", "orders") == {0: 10}
        assert json.loads(delay.read_text())["offsetTable"] == {"1": 0, "2": 0}
        if number == 0:
            kill(store)
            store = open_store(tmp_path / "store")
    store.close()


def test_everything_that_is_committed_is_listed_by_group(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(UnsyncedFiles(), tmp_path / "consumerOffset.json")
    table.load()
    table.commit("late", "orders", 1, 5)
    table.commit("late", "orders", 0, 7)
    table.commit("early", "orders", 0, 3)
    assert table.all_committed() == [("early", "orders", 0, 3), ("late", "orders", 0, 7), ("late", "orders", 1, 5)]


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"a": {}},
        {"offsetTable": {"t@g": {"0": 1, "1": 2}, "t@h|ü": {}}, "dataVersion": {"counter": 1}},
        {"a": {"b": {"c": {"d": [1, None, "x", 1.5, True]}}}, "l": [{"a": 1}], "s": 'q"\\\u20ac'},
        {"numbers": {1: "one"}},
    ],
    ids=["nothing", "an empty table", "offsets", "nested", "keys that are not strings"],
)
def test_the_checksum_is_that_of_the_table_as_json_writes_it(table: dict[str, Any]) -> None:
    said = json.loads(encode_checked(table))[CHECKSUM_KEY]
    assert said == f"{zlib.crc32(json.dumps(table).encode()):08x}"
