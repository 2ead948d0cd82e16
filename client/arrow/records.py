"""Many stored records in one buffer, with their parts as Arrow arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...protocol.storage.arrays.record_positions import gather
from ...protocol.storage.layout import IPV6_EXTRA_BYTES, RECORD, RECORD_HEAD_BYTES, RecordHead, SysFlag
from ...protocol.storage.reader.parts import SOUND, Blob, Ints, Part
from ...protocol.storage.reader.records import ScannedRecords, scan
from ...protocol.storage.record import CorruptRecord, decode_record
from ..core.compression import DecompressionFailed, decompress
from ..errors import CompressionUnavailable, CorruptMessage
from .slices import BLOB_BYTES_MAX, slices

_STORE_HOST_AT = RECORD.at["store_host"]
_HOST_BYTES = 8


class RecordBlock(ScannedRecords):
    """Records whose parts become Arrow arrays.

    Raises ``CorruptMessage`` for the first damaged one; with ``verify`` a wrong body checksum counts as damage.
    ``topic`` is the topic's name in errors.
    """

    def __init__(self, blob: Blob, starts: Ints, sizes: Ints, *, topic: str = "", verify: bool = True) -> None:
        if len(blob) > BLOB_BYTES_MAX:
            raise ValueError(f"a block of {len(blob)} bytes; at most {BLOB_BYTES_MAX}")
        parts, damaged = scan(blob, starts, sizes, verify=verify)
        super().__init__(blob, starts, sizes, parts)
        self.topic = topic
        if damaged != SOUND:
            raise self._damage(damaged)

    @classmethod
    def of(cls, records: ScannedRecords, topic: str = "") -> RecordBlock:
        """Return records that are known to be sound."""
        block = object.__new__(cls)
        ScannedRecords.__init__(block, records.blob, records.starts, records.sizes, records.parts)
        block.topic = topic
        return block

    @classmethod
    def without_damaged(
        cls, blob: Blob, starts: Ints, sizes: Ints, *, topic: str = ""
    ) -> tuple[RecordBlock, list[CorruptMessage]]:
        """Return the sound records, and the damage of each of the others."""
        damage: list[CorruptMessage] = []
        while True:
            parts, damaged = scan(blob, starts, sizes, verify=True)
            block = cls.of(ScannedRecords(blob, starts, sizes, parts), topic)
            if damaged == SOUND:
                return block, damage
            damage.append(block._damage(damaged))
            starts, sizes = np.delete(starts, damaged), np.delete(sizes, damaged)

    # ---- parts as Arrow arrays

    def bodies(self) -> pa.BinaryArray:
        """Return the decompressed bodies. Raises ``CorruptMessage`` for one that cannot be decompressed."""
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
            except CompressionUnavailable as error:
                head = self._head(row)
                topic = self.topic or self.topics()[row].as_py().decode("utf-8", "replace")
                raise CompressionUnavailable(
                    f"message at offset {head.queue_offset} of queue {head.queue_id} of topic {topic!r} cannot be "
                    f"read: {error}"
                ) from None
        return pa.array(bodies, pa.binary())

    def topics(self) -> pa.BinaryArray:
        """Return the topics, as bytes."""
        return slices(self.blob, self.parts[Part.TOPIC_AT], self.parts[Part.TOPIC_END])

    def properties(self) -> pa.BinaryArray:
        """Return the properties as they are stored."""
        return slices(self.blob, self.parts[Part.PROPERTIES_AT], self.parts[Part.PROPERTIES_END])

    def property_values(self, at: Part, end: Part) -> pa.BinaryArray:
        """Return the values of one of the properties that the scan looks for, null for records without it."""
        return slices(self.blob, self.parts[at], self.parts[end])

    def offset_ids(self) -> pa.StringArray:
        """Return each record's offset id: the broker's advertised address and the physical offset, in hex, as
        ``flintmq.protocol.storage.record.offset_id`` writes it."""
        born_v6, store_v6 = (
            (self.parts[Part.SYS_FLAG] & flag) != 0 for flag in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6)
        )
        host_at = self.starts + _STORE_HOST_AT + born_v6 * np.int64(IPV6_EXTRA_BYTES)
        ids = np.empty(len(self), object)
        for is_v6, host_bytes in ((False, _HOST_BYTES), (True, _HOST_BYTES + IPV6_EXTRA_BYTES)):
            rows = np.flatnonzero(store_v6 == is_v6)
            raw = np.empty(len(rows), [("host", f"V{host_bytes}"), ("offset", ">i8")])
            raw["host"] = gather(self.blob, host_at[rows], f"V{host_bytes}", host_bytes)
            raw["offset"] = self.parts[Part.PHYSICAL_OFFSET, rows]
            digits = raw.tobytes().hex().upper()
            step = 2 * raw.itemsize
            ids[rows] = [digits[at : at + step] for at in range(0, len(digits), step)]
        return pa.array(ids, pa.string())

    # ---- damage

    def _damage(self, row: int) -> CorruptMessage:
        record = self.record(row)
        try:
            decode_record(record)
        except CorruptRecord as error:
            return self._corrupt(row, str(error))
        return self._corrupt(row, f"its {len(record)} bytes do not match the size in its head")

    def _corrupt(self, row: int, reason: str) -> CorruptMessage:
        head = self._head(row)
        return CorruptMessage(
            reason,
            topic=self.topic,
            queue=head.queue_id,
            queue_offset=head.queue_offset,
            physical_offset=head.physical_offset,
        )

    def _head(self, row: int) -> RecordHead:
        return RECORD.unpack(bytes(self.record(row)[:RECORD_HEAD_BYTES]).ljust(RECORD_HEAD_BYTES, b"\0"))
