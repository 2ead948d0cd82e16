"""Stored records → Arrow record batches. Decodes only the requested columns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.storage.delivery import PROPERTY_RECORD_CRC
from ...protocol.storage.layout import SysFlag
from ...protocol.storage.reader.parts import Ints, Part
from ...protocol.storage.record import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from ..errors import CorruptMessage, InvalidArgument, InvalidArgumentType
from .records import RecordBlock
from .slices import property_pairs

# ---- The columns of messages, with their types in Arrow.


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type and its meaning."""

    name: str
    arrow: pa.DataType
    meaning: str


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_UTC_MICROS = pa.timestamp("us", tz="UTC")

COLUMNS = (
    Column("topic", pa.string(), "the topic"),
    Column("queue", pa.int32(), "the queue of the topic"),
    Column("queue_offset", pa.int64(), "the message's number in the queue"),
    Column("physical_offset", pa.int64(), "the record's position in the CommitLog, in bytes"),
    Column("body", pa.binary(), "the body, decompressed, its checksum verified"),
    Column("tags", pa.string(), "the tag; null without one"),
    Column("keys", pa.list_(pa.field("element", pa.string())), "the keys; empty without any"),
    Column("message_id", pa.string(), "the unique key, or the offset id if there is none"),
    Column("born_at", _UTC_MICROS, "when the producer created it"),
    Column("stored_at", _UTC_MICROS, "when the broker stored it"),
    Column("reconsume_times", pa.int32(), "how often a consumer sent it back"),
)
"""The columns without options, in this order."""

PROPERTIES = Column("properties", pa.map_(pa.string(), pa.string()), "all properties, by RocketMQ's names")
HEADERS = Column(
    "headers",
    pa.list_(pa.field("element", _HEADER)),
    "the producer's own properties, in the shape of the Kafka source's headers",
)
ALL_COLUMNS = {column.name: column for column in (*COLUMNS, PROPERTIES, HEADERS)}


def chosen(names: Iterable[str] | None, offered: Mapping[str, Column] = ALL_COLUMNS) -> tuple[Column, ...]:
    """Return the columns with these names, in their order; None: all of ``COLUMNS``. Raises ``InvalidArgument``."""
    if names is None:
        return COLUMNS
    if isinstance(names, str):
        raise InvalidArgumentType(f"columns must be several names, not the str {names!r}; use ({names!r},)")
    wanted = list(names)
    for name in wanted:
        if name not in offered:
            near = difflib.get_close_matches(str(name), offered, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidArgument(f"columns has {name!r}{meant}; messages have {', '.join(offered)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidArgument(f"columns is {wanted}; it must name at least one column, and none twice")
    return tuple(offered[name] for name in wanted)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


COMPRESSED_BYTES_MAX = 1024 * 1024
"""Compressed bytes to decompress for one batch; the bodies may become many times longer."""
_OWN_PROPERTIES = (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_SHARDING_KEY)
_RECORD_CRC = PROPERTY_RECORD_CRC.encode()
_MICROS_A_MILLI = 1000
_DAMAGED_TIME_MS = (1 << 63) // _MICROS_A_MILLI


class Decoder:
    """Converts records to record batches of the given columns, in their order; every batch has ``schema``."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.schema = arrow_schema(columns)
        self._names = tuple(column.name for column in columns)

    def batch(self, block: RecordBlock, topic: str | None = None) -> pa.RecordBatch:
        """Return a batch with one row per record. ``topic``: the topic of all records, None to read it from each.

        Raises ``CorruptMessage`` for the first body that cannot be decompressed.
        """
        return pa.RecordBatch.from_arrays(self._arrays(block, topic), schema=self.schema)

    def _arrays(self, block: RecordBlock, topic: str | None) -> list[pa.Array]:
        values = _Values(block, topic)
        return [_MAKERS[name](values) for name in self._names]

    def batches(
        self, block: RecordBlock, topic: str | None, damaged: Callable[[CorruptMessage], None]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records as batches, none for no records: one, or several if bodies must be decompressed, so that
        memory stays bounded. ``damaged`` is called with each body that cannot be, and may raise; it is left out."""
        compressed = (block.parts[Part.SYS_FLAG] & SysFlag.COMPRESSED) != 0
        if not compressed.any():
            if len(block):
                yield self.batch(block, topic)
            return
        pieces = np.cumsum(np.where(compressed, block.sizes, 0)) // COMPRESSED_BYTES_MAX
        for number in np.unique(pieces).tolist():
            yield from self._decompressed(block.select(pieces == number), topic, damaged)

    def _decompressed(
        self, block: RecordBlock, topic: str | None, damaged: Callable[[CorruptMessage], None]
    ) -> Iterator[pa.RecordBatch]:
        while len(block):
            try:
                yield self.batch(block, topic)
                return
            except CorruptMessage as error:
                damaged(error)
                block = block.select(block.parts[Part.PHYSICAL_OFFSET] != error.physical_offset)


class _Values:
    """The columns of one block; values that several of them need are computed once."""

    def __init__(self, block: RecordBlock, topic: str | None) -> None:
        self.block = block
        self._topic = topic

    def topic(self) -> pa.Array:
        if self._topic is None:
            return text(self.block.topics())
        name = self._topic.encode()
        offsets = np.arange(len(self.block) + 1, dtype=np.int32) * np.int32(len(name))
        return pa.Array.from_buffers(
            pa.string(), len(self.block), [None, pa.py_buffer(offsets), pa.py_buffer(name * len(self.block))]
        )

    def tags(self) -> pa.Array:
        return text(self.block.property_values(Part.TAGS_AT, Part.TAGS_END))

    def keys(self) -> pa.Array:
        return split(text(self.block.property_values(Part.KEYS_AT, Part.KEYS_END)))

    def message_id(self) -> pa.Array:
        ids = text(self.block.property_values(Part.UNIQ_KEY_AT, Part.UNIQ_KEY_END))
        if not ids.null_count:
            return ids
        lacking = ids.is_null()
        rows = self.block.select(lacking.to_numpy(zero_copy_only=False))
        return pc.replace_with_mask(ids, lacking, rows.offset_ids())

    def properties(self) -> pa.Array:
        names, values, rows = self._shown_pairs
        return pa.MapArray.from_arrays(self._bounds(rows), text(names), text(values))

    def headers(self) -> pa.Array:
        names, values, rows = self._shown_pairs
        own = pc.invert(pc.is_in(names, pa.array([name.encode() for name in _OWN_PROPERTIES], pa.binary())))
        kept = pa.StructArray.from_arrays([text(names.filter(own)), values.filter(own)], ["key", "value"])
        bounds = self._bounds(rows[own.to_numpy(zero_copy_only=False)])
        return pa.ListArray.from_arrays(bounds, kept, type=pa.list_(pa.field("element", kept.type)))

    @cached_property
    def _shown_pairs(self) -> tuple[pa.BinaryArray, pa.BinaryArray, Ints]:
        """Names, values and records of all properties except the record's checksum."""
        names, values, rows = property_pairs(self.block.properties())
        shown = pc.not_equal(names, pa.scalar(_RECORD_CRC, pa.binary()))
        if shown.false_count:
            names, values = names.filter(shown), values.filter(shown)
            rows = rows[shown.to_numpy(zero_copy_only=False)]
        return names, values, rows

    def _bounds(self, rows: Any) -> pa.Array:
        """Return the start of each record's entries; ``rows`` has the record of each entry."""
        counts = np.bincount(rows, minlength=len(self.block))
        return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _integers(part: Part, dtype: type[np.integer[Any]]) -> Callable[[_Values], pa.Array]:
    return lambda values: pa.array(values.block.parts[part].astype(dtype, copy=False))


_MAKERS: dict[str, Callable[[_Values], pa.Array]] = {
    "topic": _Values.topic,
    "queue": _integers(Part.QUEUE, np.int32),
    "queue_offset": _integers(Part.QUEUE_OFFSET, np.int64),
    "physical_offset": _integers(Part.PHYSICAL_OFFSET, np.int64),
    "body": lambda values: values.block.bodies(),
    "tags": _Values.tags,
    "keys": _Values.keys,
    "message_id": _Values.message_id,
    "born_at": lambda values: timestamps(values.block.parts[Part.BORN_MS]),
    "stored_at": lambda values: timestamps(values.block.parts[Part.STORED_MS]),
    "reconsume_times": _integers(Part.RECONSUME_TIMES, np.int32),
    "properties": _Values.properties,
    "headers": _Values.headers,
}


def timestamps(millis: Ints) -> pa.TimestampArray:
    """Convert ms since 1970 UTC to Spark's timestamps; a damaged one beyond Spark's range becomes null."""
    values = millis
    beyond = (values < -_DAMAGED_TIME_MS) | (values >= _DAMAGED_TIME_MS)
    if beyond.any():
        values = np.where(beyond, 0, values)
        return pa.array(values * _MICROS_A_MILLI, pa.timestamp("us", tz="UTC"), mask=beyond)
    return pa.array(values * _MICROS_A_MILLI).cast(pa.timestamp("us", tz="UTC"))


def text(values: pa.BinaryArray) -> pa.StringArray:
    """Convert bytes to UTF-8; invalid bytes become U+FFFD, as in the client."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()], pa.string())


def split(keys: pa.StringArray) -> pa.ListArray:
    """Split ``KEYS`` properties at each space into lists of keys without empty ones; null becomes an empty list."""
    list_type = pa.list_(pa.field("element", pa.string()))
    present = keys.drop_null()
    _, _, data = keys.buffers()
    if data is None or KEY_SEPARATOR.encode() not in memoryview(data).tobytes():
        counts = np.ones(len(keys), np.int32) if not keys.null_count else keys.is_valid().to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), present, type=list_type)
    parts = pc.split_pattern(pc.fill_null(keys, ""), KEY_SEPARATOR)
    flat = parts.flatten()
    kept = pc.not_equal(flat, "")
    before = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))])
    bounds = before[parts.offsets.to_numpy()].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), flat.filter(kept), type=list_type)
