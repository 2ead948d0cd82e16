"""The CommitLog record in plain Python: encode, decode, check, and its properties.

The broker's kernels do the same on arrays. The client decodes with this module, and the kernels are tested against it.
"""

from __future__ import annotations

import ipaddress
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import FlintError
from .delivery import PROPERTY_RECORD_CRC
from .layout import (
    ANY_HOST_V6,
    HOST_BYTES,
    HOST_V6_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    RECORD_HEAD_BYTES,
    TOPIC_BYTES_MAX,
    TOPIC_LENGTH_BYTES_V1,
    TOPIC_LENGTH_BYTES_V2,
    RecordHead,
    SysFlag,
    record_head,
)

# ---- ``__CRC32#``: the checksum over a whole record, header and properties included.
#
# An option in RocketMQ (``CommitLog.DefaultAppendMessageCallback``, ``MessageDecoder.createCrc32``) and here,
# it occupies exactly the last 20 bytes of a record, as its last property: the name, ``\x01``, ten decimal
# digits, the *least significant first*, and ``\x02``. The digits are the CRC-32 of all bytes before those 20,
# without its sign bit. The sizes in the record include them.
#
# A rewritten record must not keep its old checksum, but RocketMQ keeps it while the option is off. So a
# checksum is only meaningful if you know who wrote the record, and that the option was on.

Buffer = bytes | bytearray | memoryview

RECORD_CRC_PREFIX = PROPERTY_RECORD_CRC.encode() + b"\x01"
RECORD_CRC_DIGITS = 10
RECORD_CRC_BYTES = len(RECORD_CRC_PREFIX) + RECORD_CRC_DIGITS + 1
assert RECORD_CRC_BYTES == 20

PROPERTIES_WITH_CRC_MAX = PROPERTIES_BYTES_MAX - RECORD_CRC_BYTES
"""Maximum size of a record's other properties, each with its ``\\x02``, if it is to have a checksum. A record of
RocketMQ's with more is rewritten without one."""


def record_crc(record: Buffer) -> int:
    """Return the checksum of a whole record with room for it: the CRC of all bytes except the last 20."""
    return zlib.crc32(memoryview(record)[: len(record) - RECORD_CRC_BYTES]) & 0x7FFFFFFF


def record_crc_property(crc: int) -> bytes:
    """Return the 20 bytes of the property with this checksum."""
    return RECORD_CRC_PREFIX + f"{crc:0{RECORD_CRC_DIGITS}}"[::-1].encode() + b"\x02"


def without_record_crc(properties: bytes) -> bytes:
    """Return the properties without ``__CRC32#``, wherever it is."""
    *pairs, rest = properties.split(b"\x02")
    kept = [pair + b"\x02" for pair in pairs if not _is_record_crc(pair)]
    return b"".join(kept) + (b"" if _is_record_crc(rest) else rest)


def _is_record_crc(pair: bytes) -> bool:
    return pair.partition(b"\x01")[0] == PROPERTY_RECORD_CRC.encode()


def record_crc_problem(record: Buffer, properties_bytes: int) -> str:
    """Return what is wrong with the checksum of a record that must have one; empty if it is correct.

    ``record``: exactly its bytes, whose parts add up; ``properties_bytes``: the length of its properties according to
    the record. A record whose other properties leave no room for a checksum needs none.
    """
    if properties_bytes < RECORD_CRC_BYTES or bytes(record[-RECORD_CRC_BYTES : -RECORD_CRC_DIGITS - 1]) != (
        RECORD_CRC_PREFIX
    ):
        return "" if properties_bytes > PROPERTIES_WITH_CRC_MAX else f"it has no {PROPERTY_RECORD_CRC}"
    expected, held = record_crc_property(record_crc(record)), bytes(record[-RECORD_CRC_BYTES:])
    if held == expected:
        return ""
    shown = held[-RECORD_CRC_DIGITS - 1 : -1].decode("ascii", "replace")
    return f"its {PROPERTY_RECORD_CRC} is {shown!r}, expected {expected[-RECORD_CRC_DIGITS - 1 : -1].decode()!r}"


PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_DELAY = "DELAY"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
KEY_SEPARATOR = " "

FORBIDDEN_PROPERTIES = (
    "INNER_NUM",
    "INNER_BASE",
    "DUP_INFO",
    "REAL_TOPIC",
    "REAL_QID",
    "__CRC32#",
    "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY",
    "TRANSACTION_CHECK_TIMES",
)
"""Properties that only a broker may set: set by a producer, they would make a reader of the log fail or misroute."""

PROPERTY_POP_CHECK_POINT = "POP_CK"
"""Handle by which a RocketMQ client acknowledges a message that it popped; brokers set it in answers only."""

FORBIDDEN_PROPERTY_PREFIX = "INNER_MULTI_"
"""Prefix of further forbidden properties."""

COMMON_ONLY_PROPERTIES = ("TRAN_MSG", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""Properties that ask for a delayed or transactional delivery (a DELAY above 0 does too). All messages of a frame take
the same route, so these properties must be in the frame's ``common`` and are refused in a single message."""

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_SIZE_AND_MAGIC = struct.Struct(">ii")
_HOST_V4 = struct.Struct(f">{HOST_BYTES - 4}si")
_HOST_V6 = struct.Struct(f">{HOST_V6_BYTES - 4}si")
_SYS_FLAG_AT = RECORD.at["sys_flag"]


class CorruptRecord(FlintError):
    """Bytes that are not a valid record; the message says which check failed, and where."""


def body_crc(body: Buffer) -> int:
    """Return the checksum of a record's stored body: CRC-32 without its sign bit (RocketMQ's ``UtilAll.crc32``)."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_properties(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """Return ``name \\x01 value \\x02`` for each pair, in order, as UTF-8. The caller has checked names and values."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return "".join([f"{name}\x01{value}\x02" for name, value in pairs]).encode()


def decode_properties(blob: Buffer) -> dict[str, str]:
    """Return the pairs of a properties field, with or without the last ``\\x02``.

    The value begins after the first ``\\x01``. Pairs without a name or a value are ignored. If a name occurs twice, the
    last value wins (RocketMQ's ``MessageDecoder.string2messageProperties``). Bytes that are not UTF-8 become U+FFFD.
    """
    properties: dict[str, str] = {}
    for pair in str(blob, "utf-8", "replace").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def split_keys(keys: str | None) -> tuple[str, ...]:
    """Return the non-empty keys of a KEYS property."""
    if not keys:
        return ()
    return tuple([key for key in keys.split(KEY_SEPARATOR) if key]) if KEY_SEPARATOR in keys else (keys,)


def encode_host(host: str, port: int) -> bytes:
    """Return an address as in a record: 4 or 16 address bytes, then the port as i32."""
    packed = ipaddress.ip_address(host.partition("%")[0]).packed
    return packed + _I32.pack(port)


def decode_host(blob: Buffer) -> tuple[str, int]:
    """Return host and port from the 8 or 20 bytes that ``encode_host`` makes."""
    if len(blob) == _HOST_V4.size:
        packed, port = _HOST_V4.unpack(blob)
        return str(ipaddress.IPv4Address(packed)), port
    packed, port = _HOST_V6.unpack(blob)
    return str(ipaddress.IPv6Address(packed)), port


@dataclass(slots=True)
class Record:
    """One CommitLog record, all fields decoded. Hosts are the stored bytes (8 or 20); times are ms since 1970 UTC."""

    topic: bytes
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(HOST_BYTES)
    store_timestamp: int = 0
    store_host: bytes = bytes(HOST_BYTES)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None

    def property_map(self) -> dict[str, str]:
        """Return the properties as a dict, as ``decode_properties`` does."""
        return decode_properties(self.properties)

    def encode(self, *, checksum: bool = False) -> bytes:
        """Return the record's bytes: V2 if the topic is too long for V1, address-family bits by the hosts' lengths.

        With ``checksum``, a new ``__CRC32#`` over the whole record replaces any old one, unless the properties leave no
        room for it (``protocol.record_crc``).
        """
        if not checksum:
            return self._encode(self.properties)
        properties = without_record_crc(self.properties)
        unended = properties and not properties.endswith(PROPERTY_SEPARATOR)
        ended = properties + PROPERTY_SEPARATOR if unended else properties
        if len(ended) > PROPERTIES_WITH_CRC_MAX:
            return self._encode(properties)
        blob = self._encode(ended + bytes(RECORD_CRC_BYTES))
        return blob[:-RECORD_CRC_BYTES] + record_crc_property(record_crc(blob))

    def _encode(self, properties: bytes) -> bytes:
        sys_flag = self.sys_flag & ~ANY_HOST_V6
        if len(self.born_host) == HOST_V6_BYTES:
            sys_flag |= SysFlag.BORN_HOST_V6
        if len(self.store_host) == HOST_V6_BYTES:
            sys_flag |= SysFlag.STORE_HOST_V6
        v2 = len(self.topic) > TOPIC_BYTES_MAX
        crc = body_crc(self.body) if self.body_crc is None else self.body_crc
        layout = record_head(sys_flag)
        tail = b"".join(
            [
                self.body,
                struct.pack(">h" if v2 else ">b", len(self.topic)),
                self.topic,
                _I16.pack(len(properties)),
                properties,
            ]
        )
        head = RecordHead(
            total_size=layout.size + len(tail),
            magic=MAGIC_V2 if v2 else MAGIC_V1,
            body_crc=crc,
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            sys_flag=sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            store_timestamp=self.store_timestamp,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            body_length=len(self.body),
        )
        return layout.pack(*head) + tail


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, v6_hosts: int = 0) -> int:
    """Return the total bytes of a record with these parts; ``v6_hosts``: number of its two hosts that are IPv6."""
    topic_length_bytes = TOPIC_LENGTH_BYTES_V2 if topic_bytes > TOPIC_BYTES_MAX else TOPIC_LENGTH_BYTES_V1
    head_bytes = RECORD_HEAD_BYTES + v6_hosts * IPV6_EXTRA_BYTES
    return head_bytes + body_bytes + topic_length_bytes + topic_bytes + PROPERTIES_LENGTH_BYTES + properties_bytes


def check_record_crc(blob: Buffer, at: int = 0) -> None:
    """Check the ``__CRC32#`` of the record that begins at ``at``, which must have one.

    Raises ``CorruptRecord`` if it is missing or wrong, or if the record's parts do not add up. Only call this if you
    know who wrote the record: RocketMQ may leave an old checksum in a record that it rewrote.
    """
    parts = locate_record(blob, at)
    problem = record_crc_problem(memoryview(blob)[at : parts.end], parts.end - parts.properties_at)
    if problem:
        raise CorruptRecord(f"record at {at}: {problem}")


class RecordParts(NamedTuple):
    """A record's head, with hosts as wide as its flags say, and the positions of its variable parts in the buffer.

    The length of the topic is before ``topic_at``, that of the properties before ``properties_at``.
    """

    head: RecordHead
    body_at: int
    body_end: int
    topic_at: int
    topic_end: int
    properties_at: int
    end: int


def unpack_head(blob: Buffer, at: int = 0) -> RecordHead:
    """Return the unchecked head at ``at``. The buffer must contain it: ``RECORD_HEAD_BYTES_MAX`` bytes or a record."""
    sys_flag: int = _I32.unpack_from(blob, at + _SYS_FLAG_AT)[0]
    return record_head(sys_flag).unpack(blob, at)


def locate_record(blob: Buffer, at: int = 0) -> RecordParts:
    """Find the parts of the record that begins at ``at``.

    Raises ``CorruptRecord`` if the magic or a length is wrong, or if the parts do not add up to the record's size. The
    kernel ``locate`` and the scans of ``client.spark`` do the same for many records.
    """
    room = len(blob) - at
    if room < RECORD_BYTES_MIN:
        raise CorruptRecord(f"only {room} bytes at {at}; a record has at least {RECORD_BYTES_MIN}")
    total_size, magic = _SIZE_AND_MAGIC.unpack_from(blob, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"no record at {at}: magic {magic & 0xFFFFFFFF:#010x}")
    if not RECORD_BYTES_MIN <= total_size <= room:
        raise CorruptRecord(f"record at {at} claims {total_size} bytes, but only {room} are left")
    layout = record_head(_I32.unpack_from(blob, at + _SYS_FLAG_AT)[0])
    body_at, end = at + layout.size, at + total_size
    topic_length_bytes = TOPIC_LENGTH_BYTES_V1 if magic == MAGIC_V1 else TOPIC_LENGTH_BYTES_V2
    if body_at + topic_length_bytes + PROPERTIES_LENGTH_BYTES > end:
        raise CorruptRecord(f"record at {at} claims {total_size} bytes, too few for its own head")
    head = layout.unpack(blob, at)
    body_end = body_at + head.body_length
    topic_at = body_end + topic_length_bytes
    if head.body_length < 0 or topic_at + PROPERTIES_LENGTH_BYTES > end:
        raise CorruptRecord(f"record at {at}: a body of {head.body_length} bytes does not fit its {total_size} bytes")
    topic_length = int.from_bytes(blob[body_end:topic_at], "big", signed=True)
    topic_end = topic_at + topic_length
    properties_at = topic_end + PROPERTIES_LENGTH_BYTES
    if topic_length < 0 or properties_at > end:
        raise CorruptRecord(f"record at {at}: a topic of {topic_length} bytes does not fit its {total_size} bytes")
    properties_length: int = _I16.unpack_from(blob, topic_end)[0]
    if properties_length < 0 or properties_at + properties_length != end:
        raise CorruptRecord(
            f"record at {at}: its parts add up to {properties_at + properties_length - at} bytes, "
            f"but its head says {total_size}"
        )
    return RecordParts(head, body_at, body_end, topic_at, topic_end, properties_at, end)


def decode_record(blob: Buffer, at: int = 0, *, check_crc: bool = True) -> Record:
    """Decode and check the record that begins at ``at``.

    Raises ``CorruptRecord`` if a length, the magic or (with ``check_crc``) the body's checksum is wrong. The caller
    compares the physical offset, because only it knows where the bytes came from.
    """
    parts = locate_record(blob, at)
    head = parts.head
    body = bytes(blob[parts.body_at : parts.body_end])
    if check_crc and body and body_crc(body) != head.body_crc:
        raise CorruptRecord(f"record at {at}: body checksum is {body_crc(body):#010x}, expected {head.body_crc:#010x}")
    return Record(
        topic=bytes(blob[parts.topic_at : parts.topic_end]),
        body=body,
        properties=bytes(blob[parts.properties_at : parts.end]),
        queue_id=head.queue_id,
        queue_offset=head.queue_offset,
        physical_offset=head.physical_offset,
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=head.born_host,
        store_timestamp=head.store_timestamp,
        store_host=head.store_host,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
        body_crc=head.body_crc,
    )


# ---- The two forms of a message id.
#
# The producer makes a *unique key* (property UNIQ_KEY): 32 hex digits, in RocketMQ's form
# ``ip 4 | pid 2 | loader hash 4 | ms since the month began 4 | counter 2`` (``MessageClientIDSetter``). FlintMQ's
# producers use the same 10-byte prefix, and fill the rest with a 48-bit counter that starts at the time part shifted by
# 16 bits. So a million messages in one second still get different keys, and RocketMQ's tools still read the time.
#
# The broker makes an *offset id*: advertised address and physical offset, upper-case hex, 32 digits (56 for
# IPv6).

UNIQUE_PREFIX_BYTES = 10
UNIQUE_PREFIX_DIGITS = 2 * UNIQUE_PREFIX_BYTES
UNIQUE_COUNTER_MAX = 2**48
"""The 48-bit counter wraps here."""

ID_DIGITS = (32, 56)
_PREFIX = struct.Struct(">4sHI")
_OFFSET = struct.Struct(">q")


def unique_prefix(address: bytes, pid: int, seed: bytes) -> str:
    """Return 20 hex digits: 4 bytes of address, 2 of process id, 4 of a hash of ``seed``, which distinguishes the
    producers of one process."""
    return _PREFIX.pack(address[:4].ljust(4, b"\0"), pid & 0xFFFF, zlib.crc32(seed)).hex().upper()


def unique_counter_start(now_seconds: float) -> int:
    """Return the first 48-bit counter of a producer created at ``now_seconds`` (seconds since 1970 UTC)."""
    now = time.localtime(now_seconds)
    month_start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return (int((now_seconds - month_start) * 1000) << 16) % UNIQUE_COUNTER_MAX


def unique_key(prefix: str, counter: int) -> str:
    """Return the unique key that the broker's kernel writes for this prefix and counter."""
    return f"{prefix}{counter % UNIQUE_COUNTER_MAX:012X}"


def offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at ``physical_offset``; ``store_host``: 8 or 20 bytes, as in the record."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def offset_ids(store_host: bytes, physical_offsets: bytes | bytearray) -> str:
    """Return the ids of the records at ``physical_offsets`` (count × i64), separated by commas."""
    size = len(store_host) + _OFFSET.size
    offsets = range(0, len(physical_offsets), _OFFSET.size)
    blob = b"".join([store_host + physical_offsets[at : at + _OFFSET.size] for at in offsets])
    return blob.hex(",", size).upper()


def parse_offset_id(message_id: str) -> tuple[tuple[str, int], int] | None:
    """Return ``((host, port), physical_offset)`` of an offset id, or None if the text cannot be one.

    A unique key also has 32 or 56 digits: only the log can tell, by having a record at that offset or not.
    """
    if len(message_id) not in ID_DIGITS:
        return None
    try:
        blob = bytes.fromhex(message_id)
    except ValueError:
        return None
    if 2 * len(blob) != len(message_id):  # fromhex skips white space
        return None
    physical_offset: int = _OFFSET.unpack_from(blob, len(blob) - 8)[0]
    if physical_offset < 0:
        return None
    return decode_host(blob[:-8]), physical_offset
