"""Finding messages by key and by id."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flintmq.broker.store import KeySearch, MessageStore, QueryResult
from flintmq.protocol.errors import InvalidParameter, MessageNotFound, TopicNotExist
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from flintmq.protocol.storage.javahash import index_key_hash, java_hash
from flintmq.protocol.storage.layout import INDEX_HEADER
from flintmq.protocol.storage.record import Record, decode_record, offset_id
from tests.store_tools import (
    FOREVER,
    HOST,
    SMALL,
    Message,
    append,
    assert_found,
    dispatch,
    find,
    index_files,
    make_batch,
    make_topic,
    open_store,
    overwrite,
    plain,
    put,
    sent_of,
    split_answer,
)

ENTRIES = SMALL.index_entries - 1
"""How many entries an index file holds."""
PREFIX = b"7F0000010000ABCDEF01"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


def records_of(found: QueryResult) -> list[Record]:
    return [decode_record(blob) for blob in split_answer(found.body, found.count)]


def offsets_of(found: list[Record]) -> list[int]:
    return [record.physical_offset for record in found]


def test_every_key_finds_its_messages_newest_first(store: MessageStore) -> None:
    sent = []
    for number in range(120):
        keys = (f"order-{number}", f"customer-{number % 7}", "all", "all")
        sent += append(store, "orders", number % 4, [Message(b"%d" % number, keys=keys)])
    dispatch(store)
    assert_found(store, sent)
    assert find(store, "orders", "order-120") == []


def test_unique_keys_are_keys_too(store: MessageStore) -> None:
    messages = plain(5)
    config = make_topic(store, "orders")
    batch = make_batch(messages, unique_prefix=PREFIX, unique_first=0xFFFFFFFE)
    sent = sent_of(store.append(config, 0, batch), "orders", 0, messages)
    dispatch(store)
    for number, each in enumerate(sent):
        unique = PREFIX.decode() + f"{0xFFFFFFFE + number:012X}"
        assert offsets_of(find(store, "orders", unique)) == [each.physical_offset]
        for topic in ("orders", ""):
            assert offsets_of(records_of(store.view(unique, topic, False))) == [each.physical_offset]
    assert_found(store, sent)


def test_colliding_hashes_never_show(store: MessageStore) -> None:
    assert index_key_hash("orders", "Aa") == index_key_hash("orders", "BB")
    assert index_key_hash("Aa", "key") == index_key_hash("BB", "key")
    sent = put(store, "orders", 0, [Message(b"1", keys=("Aa",)), Message(b"2", keys=("BB",))] * 3)
    sent += put(store, "Aa", 0, [Message(b"3", keys=("key",))])
    sent += put(store, "BB", 0, [Message(b"4", keys=("key",)), Message(b"5", keys=("key",))])
    assert_found(store, sent)


def test_a_property_that_only_looks_like_the_key_does_not_match(store: MessageStore) -> None:
    put(store, "orders", 0, [Message(b"key", tags="key", properties=(("name", "key"), ("key", "x")))])
    put(store, "orders", 0, [Message(b"", keys=("key-1",)), Message(b"", keys=("a-key",))])
    assert find(store, "orders", "key") == []


def test_full_index_files_roll_and_chains_continue_after_them(store: MessageStore) -> None:
    sent = put(store, "orders", 0, [Message(b"x", keys=("all", f"k{number}")) for number in range(2 * ENTRIES)])
    files = index_files(store.path)
    headers = [INDEX_HEADER.unpack(content) for content in files]
    assert [header[5] for header in headers] == [SMALL.index_entries] * 4
    names = [path.name for path in sorted((store.path / "index").iterdir())]
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert len(set(names)) == 4
    assert_found(store, sent)
    more = put(store, "orders", 0, [Message(b"y", keys=("all",))])
    assert len(index_files(store.path)) == 5
    assert_found(store, [*sent, *more])


@pytest.mark.parametrize("page", [1, 2, 63, 64, 1000])
def test_pages_follow_each_other_without_a_gap_or_a_repetition(store: MessageStore, page: int) -> None:
    sent = put(store, "orders", 0, [Message(b"x", keys=("all", f"k{number}", "Aa", "BB")) for number in range(150)])
    for key in ("all", "Aa"):
        seen: list[int] = []
        cursor = ""
        while True:
            found = store.query(KeySearch("orders", key, max_count=page, cursor=cursor), hot=False)
            assert found.count <= min(page, 64)
            seen += offsets_of(records_of(found))
            cursor = found.cursor
            if not cursor:
                break
        assert seen == [each.physical_offset for each in reversed(sent)]


def test_a_page_continues_after_the_last_despite_new_messages(store: MessageStore) -> None:
    sent = put(store, "orders", 0, [Message(b"x", keys=("all",))] * 10)
    first = store.query(KeySearch("orders", "all", max_count=4), hot=False)
    put(store, "orders", 0, [Message(b"y", keys=("all",))] * 300)
    rest = store.query(KeySearch("orders", "all", cursor=first.cursor), hot=False)
    assert offsets_of(records_of(rest)) == [each.physical_offset for each in reversed(sent[:6])]


@pytest.mark.parametrize(
    "cursor", ["x", "20250101000000000", ":1:2", "20250101000000000:-1:2", "2025010100000000x:1:2"]
)
def test_an_invalid_cursor_is_refused(store: MessageStore, cursor: str) -> None:
    make_topic(store, "orders")
    with pytest.raises(InvalidParameter, match="is not a cursor"):
        store.query(KeySearch("orders", "k", max_count=4, cursor=cursor), hot=False)


def test_a_time_range_is_exact_to_the_millisecond_in_every_index_file(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = 1_700_000_000_000
    times: list[int] = []
    for number in range(2 * ENTRIES):
        # Long silences too, some of them just where an index file begins.
        step = 3_600_000 if number in (50, ENTRIES, ENTRIES + 1) else 250
        times.append((times[-1] if times else begin) + step)
        monkeypatch.setattr("time.time_ns", lambda at=times[-1]: at * 1_000_000)
        append(store, "orders", 0, [Message(b"x", keys=("all",))])
    monkeypatch.undo()
    dispatch(store)
    assert len(index_files(store.path)) == 2
    borders = [*times[45:55], *times[ENTRIES - 3 : ENTRIES + 4], times[0], times[-1]]
    for low, high in zip(borders, [*borders[3:], *borders[:3]], strict=True):
        for first, last in ((low, high), (low + 1, high - 1), (low - 1, high + 1), (0, high), (low, FOREVER)):
            seen: list[int] = []
            cursor = ""
            while True:
                found = store.query(KeySearch("orders", "all", first, last, cursor=cursor), hot=False)
                seen += [record.store_timestamp for record in records_of(found)]
                cursor = found.cursor
                if not cursor:
                    break
            assert seen == [time for time in reversed(times) if first <= time <= last]


def test_undispatched_messages_are_not_found_and_the_response_has_the_backlog(store: MessageStore) -> None:
    put(store, "orders", 0, plain(1))
    appended = append(store, "orders", 0, plain(1, first=1))
    found = store.query(KeySearch("orders", "key-1", max_count=10), hot=False)
    assert (found.count, found.index_behind_bytes) == (0, store.write_offset - appended[0].physical_offset)
    dispatch(store)
    assert store.query(KeySearch("orders", "key-1", max_count=10), hot=False).index_behind_bytes == 0
    assert len(find(store, "orders", "key-1")) == 1


def test_a_query_for_a_topic_that_is_not_there_is_an_error(store: MessageStore) -> None:
    with pytest.raises(TopicNotExist):
        store.query(KeySearch("bills", "k", max_count=1), hot=False)


def test_an_offset_id_shows_the_record_that_begins_there_and_nothing_else(store: MessageStore) -> None:
    sent = put(store, "orders", 0, plain(3))
    other_host = struct.pack(">4si", b"\x0a\0\0\1", 99)
    for each in sent:
        for host in (HOST, other_host):
            found = records_of(store.view(offset_id(host, each.physical_offset), "", False))
            assert offsets_of(found) == [each.physical_offset]
    for offset in (1, sent[1].physical_offset - 1, store.write_offset, 2**62, 2**63 - 1):
        with pytest.raises(MessageNotFound):
            store.view(offset_id(HOST, offset), "", False)
    make_topic(store, "bills")
    with pytest.raises(MessageNotFound):
        store.view(offset_id(HOST, 0), "bills", False)
    with pytest.raises(TopicNotExist):
        store.view(offset_id(HOST, 0), "nowhere", False)


def test_under_sync_flush_nothing_is_shown_before_it_is_on_disk(store: MessageStore) -> None:
    sent = append(store, "orders", 0, plain(1))
    identity = offset_id(HOST, sent[0].physical_offset)
    with pytest.raises(MessageNotFound):
        store.view(identity, "orders", False)
    assert store.dispatchable_offset == 0
    dispatch(store)
    assert store.dispatchable_offset == store.write_offset
    assert store.view(identity, "orders", False).count == 1


def test_a_record_inside_of_a_body_is_no_message(store: MessageStore) -> None:
    inner = Record(topic=b"orders", body=b"forged", properties=b"KEYS\x01forged\x02", physical_offset=88)
    put(store, "orders", 0, [Message(inner.encode())])
    log = next((store.path / "commitlog").iterdir()).read_bytes()
    at = log.index(b"forged") - 88
    forged = dataclasses.replace(inner, physical_offset=at)
    sent = put(store, "orders", 0, [Message(forged.encode())])
    at += sent[0].physical_offset
    with pytest.raises(MessageNotFound):
        store.view(offset_id(HOST, at), "", False)
    assert find(store, "orders", "forged") == []


def test_a_duplicate_entry_shows_its_message_once(store: MessageStore) -> None:
    sent = put(store, "orders", 0, [Message(b"x", keys=("twice",))])
    key_hash = index_key_hash("orders", "twice")
    keys = np.array([key_hash, sent[0].physical_offset, sent[0].store_ms], np.int64)
    list(store.index.put(keys, 1))
    assert offsets_of(find(store, "orders", "twice")) == [0]


def test_a_record_that_damage_made_unreadable_is_counted_and_said(store: MessageStore) -> None:
    sent = put(store, "orders", 0, plain(3))
    overwrite(store.path / "commitlog" / f"{0:020d}", sent[1].physical_offset, bytes(60))
    found = store.query(KeySearch("orders", "key-1", max_count=10), hot=False)
    assert (found.count, found.damaged) == (0, 1)
    found = store.query(KeySearch("orders", "key-2", max_count=10), hot=False)
    assert (found.count, found.damaged) == (1, 0)
    for topic in ("orders", ""):
        with pytest.raises(MessageNotFound, match="the log is damaged where it should be"):
            store.view("key-1", topic, False)


@pytest.mark.parametrize(
    "key", ["é", "日本", "😀", "\uffff", "a" * 15_000, "€😀" * 2_000], ids=lambda key: f"{key[:2]}-{len(key)}"
)
def test_a_message_is_found_by_a_key_of_any_characters(store: MessageStore, key: str) -> None:
    put(store, "orders", 0, [Message(b"x", keys=(key,))])
    assert [record.body for record in find(store, "orders", key)] == [b"x"]
    assert find(store, "orders", key + "b") == []


@pytest.mark.skipif(INTERPRETED, reason="kernels that are not compiled are no faster than Python")
def test_a_long_key_is_not_hashed_character_by_character(store: MessageStore) -> None:
    """A start looks each open transaction up by its id: 20,000 ids of 15,000 characters took a minute."""
    put(store, "orders", 0, [Message(b"x", keys=("other",))])
    key = "k" * 32_000

    def seconds(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(10):
            begin = time.thread_time()
            call()
            taken.append(time.thread_time() - begin)
        return min(taken)

    assert seconds(lambda: find(store, "orders", key)) < seconds(lambda: java_hash(key)) / 3
