"""Stored messages: lazy decoding, checks, and records written by Apache RocketMQ."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from flintmq.client import Batch, CorruptMessage, Found, RemoteProtocolError, StoredMessage
from flintmq.client.core.consume.batch import EVERYTHING, TagFilter, parse_tags
from flintmq.protocol.storage.layout import RECORD, SysFlag
from flintmq.protocol.storage.record import Record, encode_host, encode_properties, offset_id
from tests.store_tools import ROCKETMQ_ARCHIVE

BORN_MS = 1_795_284_332_954


def record(body: bytes = b"body", /, **fields: Any) -> Record:
    properties = {"KEYS": "a b", "TAGS": "eu", "UNIQ_KEY": "7F00000155A7382098906AE109820000", "source": "web"}
    given = {
        "topic": b"orders",
        "properties": encode_properties(properties),
        "queue_id": 2,
        "queue_offset": 17,
        "physical_offset": 4242,
        "born_timestamp": BORN_MS,
        "store_timestamp": BORN_MS + 5,
        "born_host": encode_host("10.0.0.1", 5000),
        "store_host": encode_host("10.0.0.2", 10911),
        **fields,
    }
    return Record(body=body, **given)


def batch_of(*records: bytes, tags: TagFilter = EVERYTHING) -> Batch:
    body = struct.pack(f">{len(records)}I", *map(len, records)) + b"".join(records)
    return Batch("orders", 2, body, len(records), next_offset=20, min_offset=0, max_offset=30, tags=tags)


def only(blob: bytes) -> StoredMessage:
    (message,) = batch_of(blob).messages
    return message


V6_HOSTS = {"born_host": encode_host("::1", 5), "store_host": encode_host("2001:db8::1", 6)}
HOSTS = [{}, V6_HOSTS, {"born_host": V6_HOSTS["born_host"]}, {"store_host": V6_HOSTS["store_host"]}]


class TestParts:
    @pytest.mark.parametrize("hosts", HOSTS)
    @pytest.mark.parametrize("topic", [b"orders", b"%RETRY%" + b"x" * 200])
    def test_every_part_equals_what_was_stored(self, hosts: dict[str, bytes], topic: bytes) -> None:
        stored = record(topic=topic, flag=7, reconsume_times=3, **hosts)
        message = only(stored.encode())
        assert message.body == b"body"
        assert (message.keys, message.tags) == (("a", "b"), "eu")
        assert dict(message.properties) == stored.property_map()
        assert dict(message.user_properties) == {"source": "web"}
        assert (message.queue, message.queue_offset, message.physical_offset) == (2, 17, 4242)
        assert message.message_id == "7F00000155A7382098906AE109820000"
        assert message.offset_id == offset_id(stored.store_host, 4242)
        assert message.born_at == datetime(2026, 11, 21, 18, 5, 32, 954000, tzinfo=UTC)
        assert message.stored_at == datetime(2026, 11, 21, 18, 5, 32, 959000, tzinfo=UTC)
        assert (message.flag, message.reconsume_times) == (7, 3)
        assert message.born_host == (("::1", 5) if len(stored.born_host) == 20 else ("10.0.0.1", 5000))
        assert message.stored_host == (("2001:db8::1", 6) if len(stored.store_host) == 20 else ("10.0.0.2", 10911))
        assert bytes(message.record) == stored.encode()

    def test_a_message_without_properties_has_empty_parts(self) -> None:
        message = only(record(b"", properties=b"").encode())
        assert (message.body, message.keys, message.tags, dict(message.properties)) == (b"", (), None, {})
        assert message.sharding_key is None
        assert message.message_id == message.offset_id == "0A0000020000" + "2A9F" + f"{4242:016X}"

    def test_the_brokers_record_checksum_is_not_a_property_of_the_message(self) -> None:
        message = only(record(properties=b"KEYS\x01a\x02source\x01web\x02").encode(checksum=True))
        assert dict(message.properties) == {"KEYS": "a", "source": "web"}
        assert dict(message.user_properties) == {"source": "web"}

    def test_properties_without_the_last_separator_are_read(self) -> None:
        assert only(record(properties=b"KEYS\x01a\x02TAGS\x01eu").encode()).tags == "eu"

    def test_properties_cannot_be_changed(self) -> None:
        with pytest.raises(TypeError):
            only(record().encode()).properties["TAGS"] = "x"  # type: ignore[index]  # the assignment must fail

    def test_a_message_found_by_id_knows_its_topic(self) -> None:
        blob = record().encode()
        found = Found("", struct.pack(">I", len(blob)) + blob, 1, None, 0)
        assert found[0].topic == "orders"

    def test_a_message_can_be_pickled_alone(self) -> None:
        first, second = batch_of(record(b"x" * 5000).encode(), record(b"second").encode()).messages
        assert first.body
        pickled = pickle.dumps(second)
        assert len(pickled) < 1000
        assert (pickle.loads(pickled).body, pickle.loads(pickled).keys) == (b"second", ("a", "b"))

    @pytest.mark.parametrize("kind", [0, SysFlag.COMPRESSION_ZLIB])
    def test_a_compressed_body_is_decompressed(self, kind: int) -> None:
        message = only(record(zlib.compress(b"z" * 9000), sys_flag=SysFlag.COMPRESSED | kind).encode())
        assert message.body == b"z" * 9000


class TestBatch:
    @pytest.mark.parametrize("size", [1, 100, 6000])
    def test_bodies_are_those_of_the_messages(self, size: int) -> None:
        bodies = [bytes([number % 256]) * (size + number % 5) for number in range(100)]
        batch = batch_of(*(record(body).encode() for body in bodies))
        assert batch.bodies() == bodies == [message.body for message in batch.messages]
        assert all(type(body) is bytes for body in batch.bodies())
        assert (len(batch), bool(batch), len(list(batch))) == (100, True, 100)

    @pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300])
    @pytest.mark.parametrize("size", [0, 100, 6000])
    def test_a_stream_has_the_messages_of_the_batch(self, count: int, size: int) -> None:
        blobs = [record(bytes([number % 256]) * size, queue_offset=number).encode() for number in range(count)]
        read = [(message.queue_offset, message.body, message.keys) for message in batch_of(*blobs).stream()]
        assert read == [(number, bytes([number % 256]) * size, ("a", "b")) for number in range(count)]

    def test_an_empty_batch(self) -> None:
        batch = batch_of()
        assert (batch.bodies(), list(batch.messages), len(batch), bool(batch), batch.sizes) == ([], [], 0, False, ())
        assert (batch.next_offset, batch.min_offset, batch.max_offset) == (20, 0, 30)

    def test_the_raw_records_are_available(self) -> None:
        blobs = [record(b"a").encode(), record(b"bb").encode()]
        batch = batch_of(*blobs)
        assert bytes(batch.raw) == b"".join(blobs)
        assert batch.sizes == tuple(map(len, blobs))

    def test_messages_whose_tag_matches_only_by_hash_are_dropped(self) -> None:
        # "Aa" and "BB" have the same Java hash, so the broker delivers both.
        blobs = [
            record(tag.encode(), properties=encode_properties({"TAGS": tag})).encode() for tag in ("Aa", "BB", "Aa")
        ]
        batch = batch_of(*blobs, tags=parse_tags("Aa"))
        assert [message.tags for message in batch.messages] == ["Aa", "Aa"]
        assert batch.bodies() == [b"Aa", b"Aa"]
        assert (len(batch), len(batch.sizes)) == (2, 3)

    @pytest.mark.parametrize(
        ("body", "count"),
        [
            (b"", 1),
            (b"\0\0", 1),
            (struct.pack(">I", 200) + bytes(100), 1),
            (struct.pack(">I", 50) + bytes(50), 1),
            (bytes(100), 0),
            (struct.pack(">II", 100, 2**32 - 1) + bytes(200), 2),
        ],
    )
    def test_sizes_that_do_not_match_the_body_are_refused(self, body: bytes, count: int) -> None:
        with pytest.raises(RemoteProtocolError):
            Batch("t", 0, body, count, next_offset=0, min_offset=0, max_offset=0)


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda blob: blob[:at] + bytes([blob[at] ^ 0x40]) + blob[at + 1 :]


class TestDamage:
    @pytest.mark.parametrize("hosts", HOSTS)
    def test_a_message_with_a_wrong_body_checksum_is_named(self, hosts: dict[str, bytes]) -> None:
        blob = record(b"precious" * 10, **hosts).encode()
        damaged = flip(blob.index(b"precious") + 3)(blob)
        batch = batch_of(record().encode(), damaged, record().encode())
        for read in (lambda: batch.messages[1].body, batch.bodies):
            with pytest.raises(CorruptMessage, match="offset 17 of queue 2 of topic 'orders'") as raised:
                read()
            error = raised.value
            assert (error.topic, error.queue, error.queue_offset, error.physical_offset) == ("orders", 2, 17, 4242)
        assert (batch.messages[0].body, batch.messages[2].body) == (b"body", b"body")

    def test_a_damaged_message_of_a_stream_is_one_among_sound_ones(self) -> None:
        blob = record(b"precious").encode()
        before, damaged, after = batch_of(blob, flip(blob.index(b"precious") + 3)(blob), blob).stream()
        assert (before.body, after.body) == (b"precious", b"precious")
        with pytest.raises(CorruptMessage):
            damaged.body  # noqa: B018

    @pytest.mark.parametrize("field", ["magic", "body_length", "total_size"])
    def test_a_record_with_an_inconsistent_head_is_corrupt(self, field: str) -> None:
        message = only(flip(RECORD.at[field])(record(b"").encode()))
        with pytest.raises(CorruptMessage):
            message.properties  # noqa: B018

    def test_a_message_whose_body_does_not_decompress_is_named(self) -> None:
        message = only(record(b"not zlib", sys_flag=SysFlag.COMPRESSED).encode())
        with pytest.raises(CorruptMessage, match="does not decompress"):
            message.body  # noqa: B018

    def test_the_error_can_be_pickled(self) -> None:
        error = CorruptMessage("why", topic="t", queue=1, queue_offset=2, physical_offset=3)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.queue_offset) == (str(error), 2)


@pytest.fixture(scope="module")
def messages() -> list[StoredMessage]:
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        content = archive.extractfile("store-pristine/commitlog/00000000000000000000")
        assert content is not None
        log = b"".join(content.read(1 << 16) for _ in range(16))
    blobs = []
    at = 0
    while (size := struct.unpack_from(">i", log, at)[0]) > 0:
        blobs.append(log[at : at + size])
        at += size
    body = struct.pack(f">{len(blobs)}I", *map(len, blobs)) + b"".join(blobs)
    return list(Found("", body, len(blobs), None, 0))


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        content = archive.extractfile("expected.jsonl")
        assert content is not None
        return [json.loads(line) for line in content]


class TestGolden:
    """Records that Apache RocketMQ wrote are read with the same contents as by its own consumer."""

    def test_every_message_equals_what_was_sent(
        self, messages: list[StoredMessage], expected: list[dict[str, Any]]
    ) -> None:
        compat = [message for message in messages if message.topic == "CompatTopic"]
        by_offset_id = {message.offset_id: message for message in compat}
        by_id = {message.message_id: message for message in compat}  # messages of one batch share their id
        visible = [row for row in expected if row["visible"]]
        assert len(by_offset_id) == len(visible) == 500
        for row in visible:
            message = by_offset_id[row["offsetMsgId"]] if row["offsetMsgId"] else by_id[row["msgId"]]
            assert hashlib.sha1(message.body).hexdigest() == row["sha1"]
            assert len(message.body) == row["bodyLen"]
            assert " ".join(message.keys) == (row["keys"] or "")
            assert message.tags == row["tags"]
            assert message.flag == row["flag"]
            assert message.queue == row["queueId"]
            if row["userProp"] is not None:
                assert row["userProp"] in message.user_properties.values()
            if row["offsetMsgId"] is not None:
                assert message.queue_offset == row["queueOffset"]

    def test_all_bodies_in_one_pass_equal_the_single_bodies(self, messages: list[StoredMessage]) -> None:
        blobs = [bytes(message.record) for message in messages]
        assert batch_of(*blobs).bodies() == [message.body for message in messages]
