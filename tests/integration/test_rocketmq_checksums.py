"""Apache RocketMQ itself checks records, with and without FlintMQ's checksums, and FlintMQ checks RocketMQ's.

Optional, see ``test_rocketmq_accepts``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.layout import RECORD
from flintmq.protocol.storage.record import check_record_crc
from tests.integration.rocketmq.harness import Message, RocketMQ, Writer, lost_its_tail, read_flint
from tests.integration.rocketmq.writer import SETTINGS
from tests.integration.test_rocketmq_accepts import (
    append_with,
    assert_same,
    by_position,
    classes,
    open_flint,
    rocketmq,
    writer,
)
from tests.tools_runs import findings

__all__ = ["classes", "rocketmq", "writer"]
pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

ON: dict[str, Any] = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
NAME = "__CRC32#"


def without(messages: list[Message]) -> list[Message]:
    """Return the messages without their checksum, which covers the record."""
    return [
        {**each, "properties": {name: value for name, value in each["properties"].items() if name != NAME}}
        for each in messages
    ]


def test_each_finds_the_others_checksums_right(
    writer: Callable[..., Writer], rocketmq: Callable[..., RocketMQ], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", 30, "--checksum")
    written.finish()
    assert findings(store) == []

    running = rocketmq(store, **ON)
    assert running.opened == {"min": 0, "max": written.end}
    theirs = append_with(running, 40, 0)
    _, read = running.read()
    assert_same(without(read), [*written.acknowledged, *without(theirs)])
    running.close()
    log = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    for message in theirs:
        check_record_crc(log, message["physical_offset"])

    flint = MessageStore(store, SETTINGS)
    assert flint.open().truncated_bytes == 0
    assert flint.state.checksummed.at(written.end - 1)[0]
    assert not flint.state.checksummed.at(written.end)[0]
    flint.close()
    assert findings(store) == []


def test_rocketmq_sees_a_changed_header_by_it(
    writer: Callable[..., Writer], rocketmq: Callable[..., RocketMQ], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", 5, "--checksum")
    written.finish()
    at = written.acknowledged[-3]["physical_offset"]
    path = store / "commitlog" / f"{at // SETTINGS.commitlog_file_bytes * SETTINGS.commitlog_file_bytes:020d}"
    log = bytearray(path.read_bytes())
    log[at % SETTINGS.commitlog_file_bytes + RECORD.at["flag"]] ^= 1
    path.write_bytes(log)
    assert {(each.kind, each.physical_offset) for each in findings(store)} == {("record-crc", at)}
    running = rocketmq(store, **ON)
    assert running.opened == {"min": 0, "max": at}  # where RocketMQ cuts the log
    running.close()


def test_a_torn_message_that_rocketmq_accepts_is_cut(
    writer: Callable[..., Writer], rocketmq: Callable[..., RocketMQ], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = writer(store, "--rounds", 5)
    written.finish()
    messages = written.acknowledged
    newest = max((each for each in messages if each["properties"]), key=by_position)
    at, end = newest["physical_offset"], written.end
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(at)
        (size,) = struct.unpack(">i", log.read(4))
        log.seek(at)
        torn = bytearray(log.read(size))
        struct.pack_into(">q", torn, RECORD.at["queue_offset"], newest["queue_offset"] + 1)
        struct.pack_into(">q", torn, RECORD.at["physical_offset"], end)
        torn[-8:] = bytes(8)
        log.seek(end)
        log.write(torn)
    (store / "abort").touch()

    running = rocketmq(store)
    _, read = running.read()
    assert [each["physical_offset"] for each in read if each not in messages] == [end]
    running.close()
    assert lost_its_tail(store, end)

    flint = open_flint(store)
    assert flint.write_offset == end
    assert_same(read_flint(flint), messages)
    flint.close()
