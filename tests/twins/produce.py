"""Messages of a PRODUCE frame and the records that they become, from the specification: the produce kernel's twin.

A table of msgpack's formats reads the frame; ``protocol.record`` makes the records.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import numpy as np

from flintmq.broker.kernels import produce as plan
from flintmq.protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX, SysFlag
from flintmq.protocol.storage.record import (
    COMMON_ONLY_PROPERTIES,
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    Record,
    record_size,
    unique_key,
)

from .arrays import Fenced, fenced, room

ROWS, COLUMNS, BODY, BATCH = 0, 1, 2, 3
BLANK_BYTES = 8
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
HOST_V6 = bytes(range(16)) + bytes([0, 0, 42, 159])


@dataclass
class Batch:
    """A frame's messages (``body``), and the values that PRODUCE's header and the broker add to them."""

    body: bytes
    count: int
    layout: int = ROWS
    sys_flag: int = 0
    common: bytes = b""
    unique_prefix: bytes = b""
    unique_first: int = 0
    topic: bytes = b"orders"
    queue_id: int = 3
    queue_offset: int = 1000
    born_ms: int = 1_700_000_000_000
    store_ms: int = 1_700_000_000_123
    born_host: bytes = HOST
    store_host: bytes = HOST
    record_max: int = 524_288
    records_max: int = 64 << 20
    checksum: bool = False
    flag: int = 0
    reconsume_times: int = 0


@dataclass
class Message:
    """One message: its body, its properties in stored order, its flags."""

    body: bytes
    properties: list[tuple[bytes, bytes]] = field(default_factory=list)
    sys_flag: int = 0
    flag: int = 0


class Refused(Exception):
    """The frame breaks a rule: ``status``, and the number of the message that breaks it."""

    def __init__(self, status: int, message: int) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class _Wrong(Exception):
    """A value is invalid; ``status`` is the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_LENGTHS = {
    "bin": {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"},
    "str": {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"},
    "array": {0xDC: ">H", 0xDD: ">I"},
    "map": {0xDE: ">H", 0xDF: ">I"},
}
_SHORT = {"bin": range(0), "str": range(0xA0, 0xC0), "array": range(0x90, 0xA0), "map": range(0x80, 0x90)}
_INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}


class _Reader:
    """Takes msgpack values off the front of ``rest``."""

    def __init__(self, blob: bytes) -> None:
        self.rest = blob

    def take(self, count: int) -> bytes:
        if count > len(self.rest):
            raise _Wrong(plan.TRUNCATED)
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def number(self, code: str) -> int:
        value: int = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def length(self, kind: str, other: int) -> int:
        """Return the length in a value's head. ``other``: the status if it is of another kind."""
        first = self.take(1)[0]
        if first in _SHORT[kind]:
            return first - _SHORT[kind].start
        if first not in _LENGTHS[kind]:
            raise _Wrong(other)
        return self.number(_LENGTHS[kind][first])

    def blob(self, kind: str, other: int) -> bytes:
        return self.take(self.length(kind, other))

    def integer(self) -> int:
        """Return an integer of 32 signed bits."""
        try:
            first = self.take(1)[0]
            if first <= 0x7F or first >= 0xE0:
                return int.from_bytes([first], signed=True)
            value = self.number(_INTEGERS[first])
        except (KeyError, _Wrong):
            raise _Wrong(plan.FLAG_NOT_INTEGER) from None
        if not -(2**31) <= value < 2**31:
            raise _Wrong(plan.FLAG_NOT_INTEGER)
        return value


def text_problem(blob: bytes) -> int:
    """Return OK, or the first reason from the left why the bytes cannot be the text of a property."""
    try:
        blob.decode()
        sound = len(blob)
    except UnicodeDecodeError as error:
        sound = error.start
    if b"\x01" in blob[:sound] or b"\x02" in blob[:sound]:
        return plan.HAS_SEPARATOR
    return plan.OK if sound == len(blob) else plan.NOT_UTF8


def property_problem(name: bytes, value: bytes) -> int:
    """Return OK, or the reason why a producer may not set this property."""
    if not name or not value:
        return plan.EMPTY_PROPERTY
    problem = text_problem(name) or text_problem(value)
    if problem:
        return problem
    text = name.decode()
    if text in FORBIDDEN_PROPERTIES or text.startswith(FORBIDDEN_PROPERTY_PREFIX):
        return plan.FORBIDDEN_PROPERTY
    if text == "DELAY":
        if not re.fullmatch(rb"[+-]?[0-9]{1,9}", value):
            return plan.DELAY_NOT_INTEGER
        return plan.COMMON_ONLY if int(value) > 0 else plan.OK
    return plan.COMMON_ONLY if text in COMMON_ONLY_PROPERTIES else plan.OK


def _read_row(reader: _Reader) -> Message:
    items = reader.length("array", plan.NOT_A_MESSAGE)
    if not 2 <= items <= 4:
        raise _Wrong(plan.NOT_A_MESSAGE)
    message = Message(reader.blob("bin", plan.BODY_NOT_BIN))
    for _ in range(reader.length("map", plan.PROPERTIES_NOT_MAP)):
        name = reader.blob("str", plan.PROPERTY_NOT_STR)
        value = reader.blob("str", plan.PROPERTY_NOT_STR)
        if problem := property_problem(name, value):
            raise _Wrong(problem)
        message.properties.append((name, value))
    if items > 2:
        message.sys_flag = reader.integer()
    if items > 3:
        message.flag = reader.integer()
    return message


def _read_rows(reader: _Reader, count: int) -> list[Message]:
    messages: list[Message] = []
    for number in range(count):
        try:
            messages.append(_read_row(reader))
        except _Wrong as wrong:
            raise Refused(wrong.status, number) from None
    return messages


def _read_key(reader: _Reader) -> bytes:
    """Return a key of a column; empty for nil."""
    if reader.rest[:1] == b"\xc0":
        reader.take(1)
        return b""
    key = reader.blob("str", plan.KEYS_NOT_STR)
    if problem := plan.EMPTY_PROPERTY if not key else text_problem(key):
        raise _Wrong(problem)
    return key


def _read_columns(reader: _Reader, batch: Batch) -> list[Message]:
    messages: list[Message] = []
    reading = 0
    try:
        if reader.length("array", plan.WRONG_COUNT) != batch.count:
            raise _Wrong(plan.WRONG_COUNT)
        while reading < batch.count:
            messages.append(Message(reader.blob("bin", plan.BODY_NOT_BIN), [], batch.sys_flag))
            reading += 1
        reading = 0
        if reader.length("array", plan.WRONG_COUNT) != batch.count:
            raise _Wrong(plan.WRONG_COUNT)
        while reading < batch.count:
            if key := _read_key(reader):
                messages[reading].properties.append((b"KEYS", key))
            reading += 1
    except _Wrong as wrong:
        raise Refused(wrong.status, reading) from None
    return messages


def kept_pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the properties that a RocketMQ client may set, of all that it sent."""
    pairs = [pair.partition(b"\x01")[::2] for pair in text.split(b"\x02")]
    forbidden = {name.encode() for name in (*FORBIDDEN_PROPERTIES, "POP_CK")}
    prefix = FORBIDDEN_PROPERTY_PREFIX.encode()
    return [(name, value) for name, value in pairs if name and value and name not in forbidden and name[:12] != prefix]


def _read_batch(reader: _Reader, batch: Batch) -> list[Message]:
    messages: list[Message] = []
    for number in range(batch.count):
        try:
            size, _, _, flag, body_bytes = struct.unpack(">iiiii", reader.take(20))
            body = reader.take(body_bytes if body_bytes >= 0 else len(reader.rest) + 1)
            (text_bytes,) = struct.unpack(">h", reader.take(2))
            text = reader.take(text_bytes if text_bytes >= 0 else len(reader.rest) + 1)
            if size != 22 + len(body) + len(text):
                raise _Wrong(plan.WRONG_SIZE)
            pairs = kept_pairs(text)
            for name, value in pairs:
                if problem := property_problem(name, value):
                    raise _Wrong(problem)
        except _Wrong as wrong:
            raise Refused(wrong.status, number) from None
        messages.append(Message(body, pairs, batch.sys_flag, flag))
    return messages


def read_messages(batch: Batch) -> list[Message]:
    """Return the messages of a frame, with every rule checked except the sizes. Raises ``Refused``."""
    if batch.layout == BODY:
        return [Message(batch.body, [], batch.sys_flag, batch.flag)]
    reader = _Reader(batch.body)
    if batch.layout == BATCH:
        messages = _read_batch(reader, batch)
        if reader.rest:
            raise Refused(plan.BYTES_LEFT, batch.count)
        return messages
    messages = _read_rows(reader, batch.count) if batch.layout == ROWS else _read_columns(reader, batch)
    if reader.rest:
        raise Refused(plan.BYTES_LEFT, batch.count)
    return messages


def _properties(batch: Batch, message: Message, number: int) -> bytes:
    pairs = list(message.properties)
    if batch.unique_prefix and batch.layout != BODY and b"UNIQ_KEY" not in dict(pairs):
        pairs.append((b"UNIQ_KEY", unique_key(batch.unique_prefix.decode(), batch.unique_first + number).encode()))
    return batch.common + b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)


def make_records(batch: Batch) -> list[Record]:
    """Return the records of a frame, without their physical offsets. Raises ``Refused``."""
    records = []
    total = 0
    for number, message in enumerate(read_messages(batch)):
        properties = _properties(batch, message, number)
        if len(properties) > PRODUCED_PROPERTIES_BYTES_MAX:
            raise Refused(plan.PROPERTIES_TOO_LONG, number)
        size = size_of(batch, message.body, properties)
        if size > batch.record_max:
            raise Refused(plan.RECORD_TOO_LONG, number)
        total += size
        records.append(_record(batch, message, number, properties))
    if total > batch.records_max:
        raise Refused(plan.RECORDS_TOO_LONG, 0)
    return records


def judge(batch: Batch) -> list[Record] | Refused:
    """Return the records of a frame, or the reason why it is refused."""
    try:
        return make_records(batch)
    except Refused as refused:
        return refused


def size_of(batch: Batch, body: bytes, properties: bytes) -> int:
    """Return the size of the record for a message with this body."""
    v6_hosts = (len(batch.born_host) == 20) + (len(batch.store_host) == 20)
    return record_size(len(body), len(batch.topic), len(properties) + 20 * batch.checksum, v6_hosts)


def _record(batch: Batch, message: Message, number: int, properties: bytes) -> Record:
    return Record(
        topic=batch.topic,
        body=message.body,
        properties=properties,
        queue_id=batch.queue_id,
        queue_offset=batch.queue_offset + number,
        flag=message.flag,
        sys_flag=message.sys_flag & SysFlag.FROM_PRODUCER,
        born_timestamp=batch.born_ms,
        born_host=batch.born_host,
        store_timestamp=batch.store_ms,
        store_host=batch.store_host,
        reconsume_times=batch.reconsume_times,
    )


def lay_out(
    records: list[Record], position: int, file_bytes: int, file_base: int, *, checksum: bool = False
) -> list[tuple[int, int]]:
    """Return (number of the file, position in it) for each record, and set their physical offsets.

    A record must leave room for a blank; if it does not, the next file begins.
    """
    places = []
    file = 0
    for record in records:
        size = len(record.encode(checksum=checksum))
        if position + size + BLANK_BYTES > file_bytes:
            file, position = file + 1, 0
        record.physical_offset = file_base + file * file_bytes + position
        places.append((file, position))
        position += size
    return places


FILE_BASE = 1 << 32
UNTOUCHED = 0x5C
"""Byte that fills the log before a call."""


@dataclass
class Call:
    """Arguments and result of a kernel call."""

    frame: Fenced
    numbers: Fenced
    texts: Fenced
    plan: Fenced
    log: Fenced
    physical_offsets: Fenced
    status: int = -1
    message: int = -1
    position: int = -1

    @property
    def intact(self) -> bool:
        """Return whether nothing was written beside an array or into a read-only one."""
        arrays = (self.frame, self.numbers, self.texts, self.plan, self.log, self.physical_offsets)
        return all(array.intact for array in arrays)

    @property
    def nothing_written(self) -> bool:
        """Return whether the log and the physical offsets are unchanged."""
        return self.log.bytes() == bytes([UNTOUCHED]) * len(self.log.array) and not any(self.physical_offsets.bytes())

    def resume(self, file_bytes: int) -> Fenced:
        """Call ``produce_on`` for the next file, which is returned."""
        numbers = self.numbers.array
        numbers[plan.N_BASE] += numbers[plan.N_LIMIT]
        numbers[plan.N_LIMIT] = file_bytes
        log = fenced(bytes([UNTOUCHED]) * file_bytes)
        self.message, self.position = plan.produce_on(
            self.frame.array,
            numbers,
            self.texts.array,
            self.plan.array,
            log.array,
            self.physical_offsets.array,
            self.message,
        )
        assert log.intact
        return log

    def offsets(self, count: int) -> list[int]:
        """Return the first physical offsets."""
        return list(struct.unpack(f">{count}q", self.physical_offsets.bytes()[: 8 * count]))


def _numbers(batch: Batch, body_at: int, position: int, file_bytes: int) -> list[int]:
    prefix_end = 20
    common_end = prefix_end + len(batch.common)
    topic_end = common_end + len(batch.topic)
    born_end = topic_end + len(batch.born_host)
    slots = {
        plan.N_BODY_AT: body_at,
        plan.N_BODY_END: body_at + len(batch.body),
        plan.N_COUNT: batch.count,
        plan.N_LAYOUT: batch.layout,
        plan.N_SYS_FLAG: batch.sys_flag,
        plan.N_COMMON_AT: prefix_end,
        plan.N_COMMON_END: common_end,
        plan.N_PREFIX_AT: 0,
        plan.N_UNIQUE: 1 if batch.unique_prefix else 0,
        plan.N_UNIQUE_FIRST: batch.unique_first,
        plan.N_TOPIC_AT: common_end,
        plan.N_TOPIC_END: topic_end,
        plan.N_BORN_HOST_AT: topic_end,
        plan.N_BORN_HOST_END: born_end,
        plan.N_STORE_HOST_AT: born_end,
        plan.N_STORE_HOST_END: born_end + len(batch.store_host),
        plan.N_QUEUE_ID: batch.queue_id,
        plan.N_QUEUE_OFFSET: batch.queue_offset,
        plan.N_BORN_MS: batch.born_ms,
        plan.N_STORE_MS: batch.store_ms,
        plan.N_RECORD_MAX: batch.record_max,
        plan.N_LIMIT: file_bytes - position,
        plan.N_BASE: FILE_BASE + position,
        plan.N_RECORDS_MAX: batch.records_max,
        plan.N_CHECKSUM_BYTES: 20 if batch.checksum else 0,
        plan.N_FLAG: batch.flag,
        plan.N_RECONSUME_TIMES: batch.reconsume_times,
    }
    assert sorted(slots) == list(range(plan.N_LENGTH))
    return [slots[slot] for slot in range(plan.N_LENGTH)]


def produce(
    batch: Batch, *, file_bytes: int = 4096, position: int = 0, before: bytes = b"", sentinel: int = 0xA5
) -> Call:
    """Call ``produce`` once, for ``position`` in a file. ``before``: bytes of the frame in front of the messages, its
    header."""
    texts = batch.unique_prefix.ljust(20) + batch.common + batch.topic + batch.born_host + batch.store_host
    call = Call(
        frame=fenced(before + batch.body, sentinel=sentinel),
        numbers=fenced(_numbers(batch, len(before), position, file_bytes), np.int64, sentinel),
        texts=fenced(texts, sentinel=sentinel),
        plan=room(batch.count * plan.PLAN_WIDTH, np.int64, sentinel),
        log=fenced(bytes([UNTOUCHED]) * (file_bytes - position), sentinel=sentinel),
        physical_offsets=fenced(bytes(8 * batch.count), sentinel=sentinel),
    )
    call.status, call.message, call.position = plan.produce(
        call.frame.array,
        call.numbers.array,
        call.texts.array,
        call.plan.array,
        call.log.array,
        call.physical_offsets.array,
    )
    return call
