"""The fixed-width layouts of the store. Each field is defined once: name, width in bytes, meaning.

Offsets, ``struct`` formats, the kernels' constants, the tables in ``broker/store/README.md`` and the strategies of the
tests are all taken from here. All integers are big-endian and signed (Java writes them). The layouts are Apache
RocketMQ's (``MessageExtEncoder``, ``ConsumeQueue``, ``IndexHeader``, ``StoreCheckpoint``, release 5.3.3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_STRUCT_CODE = {1: "b", 2: "h", 4: "i", 8: "q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One fixed-width field: name, width in bytes, meaning."""

    name: str
    width: int
    meaning: str


class Layout:
    """A sequence of fields without gaps.

    ``at[name]`` is a field's byte index, ``size`` the total width. In ``format``, a field whose width is not that of an
    integer is bytes.
    """

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self.at: dict[str, int] = {}
        at = 0
        for field in fields:
            self.at[field.name] = at
            at += field.width
        self.size = at

    def format(self, *bytes_fields: str) -> str:
        """Return the ``struct`` format of all fields; the named ones are bytes instead of integers."""
        return ">" + "".join(
            f"{field.width}s"
            if field.name in bytes_fields or field.width not in _STRUCT_CODE
            else _STRUCT_CODE[field.width]
            for field in self.fields
        )


RECORD = Layout(
    Field("total_size", 4, "bytes of the whole record, this field included; the parts add up to it"),
    Field("magic", 4, "V1, V2 (the topic's length takes 2 bytes) or blank (the rest of the file is not used)"),
    Field("body_crc", 4, "crc32(body as stored) & 0x7FFFFFFF; 0 and unchecked if the body is empty"),
    Field("queue_id", 4, "queue of the topic"),
    Field("flag", 4, "for the application; stored unchanged"),
    Field("queue_offset", 8, "position in the ConsumeQueue, in units"),
    Field("physical_offset", 8, "position of this record in the whole CommitLog, in bytes"),
    Field("sys_flag", 4, "compression, transaction state and address family: see SysFlag"),
    Field("born_timestamp", 8, "when the producer made the message, ms since 1970 UTC"),
    Field("born_host", 8, "the producer's IPv4 address and port (20 bytes if sys_flag has BORN_HOST_V6)"),
    Field("store_timestamp", 8, "when the broker stored it, ms since 1970 UTC; never goes back"),
    Field("store_host", 8, "the broker's advertised address and port (20 bytes if sys_flag has STORE_HOST_V6)"),
    Field("reconsume_times", 4, "how often a consumer sent it back"),
    Field("prepared_transaction_offset", 8, "physical offset of the half message that this record commits"),
    Field("body_length", 4, "bytes of the body that follows"),
)
"""Fixed head of a CommitLog record whose two hosts are IPv4. It is followed by the body, the topic's length (1 byte, 2
in V2) and the topic, the properties' length (2 bytes) and the properties."""

RECORD_HEAD_BYTES = RECORD.size
assert RECORD_HEAD_BYTES == 88

RECORD_STRUCT = struct.Struct(RECORD.format("born_host", "store_host"))
assert RECORD_STRUCT.size == RECORD_HEAD_BYTES

IPV6_EXTRA_BYTES = 12
"""Additional bytes of an IPv6 host: 16 + 4 bytes instead of 4 + 4."""

RECORD_BYTES_MIN = RECORD_HEAD_BYTES + 1 + 2
"""Size of a record with IPv4 hosts and without body, topic and properties."""

BLANK_BYTES_MIN = 8
"""Size of a blank's head: the number of bytes left in the file, and the blank magic."""

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

PROPERTIES_BYTES_MAX = 32767
PRODUCED_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - 1024
"""Maximum properties of a produced message; the rest is reserved for retry, delay and the checksum."""
TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 120


class SysFlag:
    """Bits of a record's ``sys_flag``."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_MASK = 0xC
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_MASK = 0x700
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    FROM_PRODUCER = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
    """Bits that a producer may set; the broker drops the others."""


UNIT = Layout(
    Field("physical_offset", 8, "physical offset of the record in the CommitLog"),
    Field("size", 4, "total size of the record; 0 or less: no unit"),
    Field("tags_code", 8, "Java's hashCode of TAGS, 0 without tags; the deliver time in ms in SCHEDULE_TOPIC_XXXX"),
)
"""One unit of a ConsumeQueue."""

UNIT_BYTES = UNIT.size
UNIT_STRUCT = struct.Struct(UNIT.format())
assert UNIT_BYTES == UNIT_STRUCT.size == 20

PRE_BLANK_SIZE = 0x7FFFFFFF
"""Size in a filler unit, which fills a queue's first file up to its first message."""

INDEX_HEADER = Layout(
    Field("begin_timestamp", 8, "store time of the first message in the file, ms"),
    Field("end_timestamp", 8, "store time of the last message, ms"),
    Field("begin_physical_offset", 8, "physical offset of the first message"),
    Field("end_physical_offset", 8, "physical offset of the last message"),
    Field("hash_slot_count", 4, "slots in use"),
    Field("index_count", 4, "entries in use + 1: entry 0 is never used"),
)
INDEX_HEADER_BYTES = INDEX_HEADER.size
INDEX_HEADER_STRUCT = struct.Struct(INDEX_HEADER.format())
assert INDEX_HEADER_BYTES == INDEX_HEADER_STRUCT.size == 40

INDEX_SLOT_BYTES = 4

INDEX_ENTRY = Layout(
    Field("key_hash", 4, "abs(hashCode of topic#key), 0 for the smallest integer"),
    Field("physical_offset", 8, "physical offset of the record in the CommitLog"),
    Field("seconds", 4, "whole seconds since the file's begin_timestamp"),
    Field("previous", 4, "number of the previous entry in the same slot; 0: none"),
)
INDEX_ENTRY_BYTES = INDEX_ENTRY.size
INDEX_ENTRY_STRUCT = struct.Struct(INDEX_ENTRY.format())
assert INDEX_ENTRY_BYTES == INDEX_ENTRY_STRUCT.size == 20

CHECKPOINT = Layout(
    Field("physic_msg_timestamp", 8, "store time of the last flushed record, ms"),
    Field("logics_msg_timestamp", 8, "store time of the last record whose ConsumeQueue unit is flushed, ms"),
    Field("index_msg_timestamp", 8, "end time of the index files that are full and flushed, ms; 0: none"),
    Field("master_flushed_offset", 8, "used by RocketMQ's replication; kept unchanged"),
    Field("confirm_offset", 8, "used by RocketMQ's replication; kept unchanged"),
)
"""Part of the checkpoint file that RocketMQ reads and writes."""
CHECKPOINT_STRUCT = struct.Struct(CHECKPOINT.format())
CHECKPOINT_FILE_BYTES = 4096

CHECKPOINT_MARK_AT = 64
CHECKPOINT_MARK = Layout(
    Field("magic", 4, "0x464C4D51, 'FLMQ'"),
    Field("crc", 4, "crc32 of bytes 0-39 and of the fields after this one, as a signed integer"),
    Field("flushed_offset", 8, "the CommitLog is on disk up to here"),
    Field("dispatched_offset", 8, "ConsumeQueues and index are on disk for every record up to here"),
)
"""FlintMQ's own mark, in a part of the file that RocketMQ does not read. If RocketMQ rewrites bytes 0-39, the mark's
checksum becomes wrong and FlintMQ ignores the mark."""
CHECKPOINT_MARK_STRUCT = struct.Struct(CHECKPOINT_MARK.format())
CHECKPOINT_MARK_MAGIC = 0x464C4D51
