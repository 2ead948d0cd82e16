"""Many stored records in one buffer, and their parts as Arrow arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...protocol.ids import offset_id
from ...protocol.layout import IPV6_EXTRA_BYTES, RECORD, RECORD_HEAD_BYTES, RECORD_STRUCT, SysFlag
from ...protocol.record import CorruptRecord, decode_record
from ..core.compression import DecompressionFailed, decompress
from ..errors import CorruptMessage
from .scan import SOUND, Blob, Ints, Part, Rows, scan_records
from .slices import BLOB_BYTES_MAX, slices

_STORE_HOST_AT = RECORD.at["store_host"]
_STORE_HOST_BYTES = 8


class RecordBlock:
    """Records of ``sizes[i]`` bytes at ``starts[i]`` of ``blob``, ascending and within it.

    Raises ``CorruptMessage`` for the first that is damaged; ``verify``: the checksum of its body counts too.
    ``parts[Part.X]`` has a number for each record. ``topic`` is what errors call the topic.
    """

    def __init__(self, blob: Blob, starts: Ints, sizes: Ints, *, topic: str = "", verify: bool = True) -> None:
        if len(blob) > BLOB_BYTES_MAX:
            raise ValueError(f"a block of {len(blob)} bytes; at most {BLOB_BYTES_MAX}")
        self.blob = blob
        self.starts = starts
        self.sizes = sizes
        self.topic = topic
        self.parts, damaged = scan_records(blob, starts, sizes, verify=verify)
        if damaged != SOUND:
            raise self._damage(damaged)

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, rows: Rows) -> RecordBlock:
        """The records for which ``rows`` is true, as a block over the same buffer."""
        if rows.all():
            return self
        chosen = object.__new__(RecordBlock)
        chosen.blob = self.blob
        chosen.topic = self.topic
        chosen.starts = self.starts[rows]
        chosen.sizes = self.sizes[rows]
        chosen.parts = self.parts[:, rows]
        return chosen

    # ---- parts as Arrow arrays

    def bodies(self) -> pa.BinaryArray:
        """The bodies, decompressed. Raises ``CorruptMessage`` for one that cannot be."""
        stored = slices(self.blob, self.parts[Part.BODY_AT], self.parts[Part.BODY_END])
        compressed = np.flatnonzero(self.parts[Part.SYS_FLAG] & SysFlag.COMPRESSED)
        if not len(compressed):
            return stored
        bodies: list[bytes] = stored.to_pylist()
        for row in compressed.tolist():
            try:
                bodies[row] = decompress(bodies[row], int(self.parts[Part.SYS_FLAG, row]))
            except DecompressionFailed as error:
                raise self._corrupt(row, str(error)) from None
        return pa.array(bodies, pa.binary())

    def topics(self) -> pa.BinaryArray:
        """The topics, as bytes."""
        return slices(self.blob, self.parts[Part.TOPIC_AT], self.parts[Part.TOPIC_END])

    def properties(self) -> pa.BinaryArray:
        """The properties as they are stored."""
        return slices(self.blob, self.parts[Part.PROPERTIES_AT], self.parts[Part.PROPERTIES_END])

    def property_values(self, at: Part, end: Part) -> pa.BinaryArray:
        """The values of one of the properties that the scan looked for, null where there is none."""
        return slices(self.blob, self.parts[at], self.parts[end])

    def offset_id(self, row: int) -> str:
        """Where a record lies: the broker's advertised address and the physical offset, in hex."""
        sys_flag = int(self.parts[Part.SYS_FLAG, row])
        at = int(self.starts[row]) + _STORE_HOST_AT + (IPV6_EXTRA_BYTES if sys_flag & SysFlag.BORN_HOST_V6 else 0)
        end = at + _STORE_HOST_BYTES + (IPV6_EXTRA_BYTES if sys_flag & SysFlag.STORE_HOST_V6 else 0)
        return offset_id(bytes(self.blob[at:end]), int(self.parts[Part.PHYSICAL_OFFSET, row]))

    # ---- what is wrong

    def record(self, row: int) -> memoryview:
        """The bytes of one record."""
        start = int(self.starts[row])
        return memoryview(self.blob)[start : start + int(self.sizes[row])]

    def _damage(self, row: int) -> CorruptMessage:
        record = self.record(row)
        try:
            decode_record(record)
        except CorruptRecord as error:
            return self._corrupt(row, str(error))
        return self._corrupt(row, f"its {len(record)} bytes do not fit the size that it says it has")

    def _corrupt(self, row: int, reason: str) -> CorruptMessage:
        head = RECORD_STRUCT.unpack(bytes(self.record(row)[:RECORD_HEAD_BYTES]).ljust(RECORD_HEAD_BYTES, b"\0"))
        return CorruptMessage(reason, topic=self.topic, queue=head[3], queue_offset=head[5], physical_offset=head[6])
