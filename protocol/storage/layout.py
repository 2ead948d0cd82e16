"""The binary layouts of the store. Each field is defined once: name, type, width in bytes, meaning.

Offsets, ``struct`` formats, NumPy types, the kernels' constants, the tables in ``broker/store/README.md`` and the
strategies of the tests are all taken from here. All integers are big-endian and signed (Java writes them). The layouts
are Apache RocketMQ's (``MessageExtEncoder``, ``ConsumeQueue``, ``IndexHeader``, ``StoreCheckpoint``, release 5.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

_STRUCT_CODE = {1: "b", 2: "h", 4: "i", 8: "q"}
_Values = TypeVar("_Values", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Field:
    """One fixed-width field: name, width in bytes, meaning, and whether it is bytes instead of an integer."""

    name: str
    width: int
    meaning: str
    is_bytes: bool = False


class Layout(Generic[_Values]):
    """A sequence of fields without gaps, taken from a named tuple's annotations ``Annotated[type, width, meaning]``.

    ``at[name]`` is a field's byte index, ``size`` the total width, ``struct`` the compiled format. ``widths`` has the
    widths of fields that differ from the annotated ones.
    """

    def __init__(self, values: type[_Values], **widths: int) -> None:
        self._make = values._make  # type: ignore[attr-defined]  # every named tuple has it, but no type says so
        self.at: dict[str, int] = {}
        fields = []
        at = 0
        for name, hint in get_type_hints(values, include_extras=True).items():
            width, meaning = hint.__metadata__
            width = widths.get(name, width)
            fields.append(Field(name, width, meaning, is_bytes=hint.__origin__ is bytes))
            self.at[name] = at
            at += width
        self.fields = tuple(fields)
        self.size = at
        self.struct = struct.Struct(
            ">" + "".join(f"{each.width}s" if each.is_bytes else _STRUCT_CODE[each.width] for each in fields)
        )

    def unpack(self, blob: Buffer, at: int = 0) -> _Values:
        """Return the fields that begin at ``at``."""
        values: _Values = self._make(self.struct.unpack_from(blob, at))
        return values

    def unpack_all(self, blob: Buffer) -> Iterator[_Values]:
        """Yield the fields of each of the records that fill ``blob``."""
        return map(self._make, self.struct.iter_unpack(blob))

    def pack(self, *values: int | bytes) -> bytes:
        """Return the bytes of the fields, in their order."""
        return self.struct.pack(*values)

    def dtype(self) -> list[tuple[str, str]]:
        """Return the NumPy type of the fields, as ``numpy.dtype`` takes it. This module must not import NumPy, because
        the client's core does without it."""
        return [(each.name, f"V{each.width}" if each.is_bytes else f">i{each.width}") for each in self.fields]


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


class RecordHead(NamedTuple):
    """Fixed head of a CommitLog record whose two hosts are IPv4.

    It is followed by the body, the topic's length (1 byte, 2 in V2) and the topic, the properties' length (2 bytes) and
    the properties: ``RecordParts`` in ``record`` has their positions.
    """

    total_size: Annotated[int, 4, "bytes of the whole record, this field included; the parts add up to it"]
    magic: Annotated[int, 4, "V1, V2 (the topic's length takes 2 bytes) or blank (the rest of the file is not used)"]
    body_crc: Annotated[int, 4, "crc32(body as stored) & 0x7FFFFFFF; 0 and unchecked if the body is empty"]
    queue_id: Annotated[int, 4, "queue of the topic"]
    flag: Annotated[int, 4, "for the application; stored unchanged"]
    queue_offset: Annotated[int, 8, "position in the ConsumeQueue, in units"]
    physical_offset: Annotated[int, 8, "position of this record in the whole CommitLog, in bytes"]
    sys_flag: Annotated[int, 4, "compression, transaction state and address family: see SysFlag"]
    born_timestamp: Annotated[int, 8, "when the producer made the message, ms since 1970 UTC"]
    born_host: Annotated[bytes, 8, "the producer's IPv4 address and port (20 bytes if sys_flag has BORN_HOST_V6)"]
    store_timestamp: Annotated[int, 8, "when the broker stored it, ms since 1970 UTC; never goes back"]
    store_host: Annotated[bytes, 8, "the broker's advertised address and port (20 bytes if sys_flag has STORE_HOST_V6)"]
    reconsume_times: Annotated[int, 4, "how often a consumer sent it back"]
    prepared_transaction_offset: Annotated[int, 8, "physical offset of the half message that this record commits"]
    body_length: Annotated[int, 4, "bytes of the body that follows"]


RECORD = Layout(RecordHead)
RECORD_HEAD_BYTES = RECORD.size
assert RECORD_HEAD_BYTES == 88

HOST_BYTES = 8
HOST_V6_BYTES = 20
IPV6_EXTRA_BYTES = HOST_V6_BYTES - HOST_BYTES
"""Additional bytes of an IPv6 host: 16 + 4 bytes instead of 4 + 4. Each moves all fields after it."""
TOPIC_LENGTH_BYTES_V1 = 1
TOPIC_LENGTH_BYTES_V2 = 2
PROPERTIES_LENGTH_BYTES = 2

ANY_HOST_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_V6_HEADS = {
    flags: Layout(
        RecordHead,
        born_host=HOST_V6_BYTES if flags & SysFlag.BORN_HOST_V6 else HOST_BYTES,
        store_host=HOST_V6_BYTES if flags & SysFlag.STORE_HOST_V6 else HOST_BYTES,
    )
    for flags in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, ANY_HOST_V6)
}
RECORD_HEAD_BYTES_MAX = _V6_HEADS[ANY_HOST_V6].size


def record_head(sys_flag: int) -> Layout[RecordHead]:
    """Return the layout of a record's head with these ``sys_flag``: the hosts are as wide as its flags say."""
    return _V6_HEADS.get(sys_flag & ANY_HOST_V6, RECORD)


RECORD_BYTES_MIN = RECORD_HEAD_BYTES + TOPIC_LENGTH_BYTES_V1 + PROPERTIES_LENGTH_BYTES
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


class QueueUnit(NamedTuple):
    """One unit of a ConsumeQueue."""

    physical_offset: Annotated[int, 8, "physical offset of the record in the CommitLog"]
    size: Annotated[int, 4, "total size of the record; 0 or less: no unit"]
    tags_code: Annotated[
        int, 8, "Java's hashCode of TAGS, 0 without tags; the deliver time in ms in SCHEDULE_TOPIC_XXXX"
    ]


UNIT = Layout(QueueUnit)
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 20

PRE_BLANK_SIZE = 0x7FFFFFFF
"""Size in a filler unit, which fills a queue's first file up to its first message."""


class IndexHeader(NamedTuple):
    """The first bytes of an IndexFile."""

    begin_timestamp: Annotated[int, 8, "store time of the first message in the file, ms"]
    end_timestamp: Annotated[int, 8, "store time of the last message, ms"]
    begin_physical_offset: Annotated[int, 8, "physical offset of the first message"]
    end_physical_offset: Annotated[int, 8, "physical offset of the last message"]
    hash_slot_count: Annotated[int, 4, "slots in use"]
    index_count: Annotated[int, 4, "entries in use + 1: entry 0 is never used"]


INDEX_HEADER = Layout(IndexHeader)
INDEX_HEADER_BYTES = INDEX_HEADER.size
assert INDEX_HEADER_BYTES == 40

INDEX_SLOT_BYTES = 4


class IndexEntry(NamedTuple):
    """One entry of an IndexFile."""

    key_hash: Annotated[int, 4, "abs(hashCode of topic#key), 0 for the smallest integer"]
    physical_offset: Annotated[int, 8, "physical offset of the record in the CommitLog"]
    seconds: Annotated[int, 4, "whole seconds since the file's begin_timestamp"]
    previous: Annotated[int, 4, "number of the previous entry in the same slot; 0: none"]


INDEX_ENTRY = Layout(IndexEntry)
INDEX_ENTRY_BYTES = INDEX_ENTRY.size
assert INDEX_ENTRY_BYTES == 20


class CheckpointTimes(NamedTuple):
    """Part of the checkpoint file that RocketMQ reads and writes."""

    physic_msg_timestamp: Annotated[int, 8, "store time of the last flushed record, ms"]
    logics_msg_timestamp: Annotated[int, 8, "store time of the last record whose ConsumeQueue unit is flushed, ms"]
    index_msg_timestamp: Annotated[int, 8, "end time of the index files that are full and flushed, ms; 0: none"]
    master_flushed_offset: Annotated[int, 8, "used by RocketMQ's replication; kept unchanged"]
    confirm_offset: Annotated[int, 8, "used by RocketMQ's replication; kept unchanged"]


CHECKPOINT = Layout(CheckpointTimes)
CHECKPOINT_FILE_BYTES = 4096

CHECKPOINT_MARK_AT = 64


class CheckpointMark(NamedTuple):
    """FlintMQ's own mark, in a part of the checkpoint file that RocketMQ does not read.

    If RocketMQ rewrites bytes 0-39, the mark's checksum becomes wrong and FlintMQ ignores the mark.
    """

    magic: Annotated[int, 4, "0x464C4D51, 'FLMQ'"]
    crc: Annotated[int, 4, "crc32 of bytes 0-39 and of the fields after this one, as a signed integer"]
    flushed_offset: Annotated[int, 8, "the CommitLog is on disk up to here"]
    dispatched_offset: Annotated[int, 8, "ConsumeQueues and index are on disk for every record up to here"]


CHECKPOINT_MARK = Layout(CheckpointMark)
CHECKPOINT_MARK_MAGIC = 0x464C4D51
