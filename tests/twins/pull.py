"""Units and records of a pull in plain Python lists: the gather kernels' twin."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from flintmq.protocol.storage.layout import (
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    RECORD,
    RECORD_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
)

Chosen = tuple[int, int, int]
"""(physical offset, size, queue offset)."""


def choose(
    units: bytes, first_queue_offset: int, tags: Sequence[int], physical: range, count_max: int, bytes_max: int
) -> tuple[int, list[Chosen]]:
    """Return (units looked at, chosen records)."""
    chosen: list[Chosen] = []
    for number, (physical_offset, size, code) in enumerate(UNIT.unpack_all(units)):
        if size <= 0 or size == PRE_BLANK_SIZE:
            continue
        if physical_offset < physical.start or physical_offset + size > physical.stop:
            continue
        if tags and code not in tags:
            continue
        total = sum(each[1] for each in chosen)
        if chosen and total + size > bytes_max:
            return number, chosen
        chosen.append((physical_offset, size, first_queue_offset + number))
        if len(chosen) == count_max or total + size >= bytes_max:
            return number + 1, chosen
    return len(units) // UNIT_BYTES, chosen


@dataclass
class Read:
    """One read, and the records that it has to contain."""

    begin: int
    end: int
    records: list[Chosen]

    @property
    def wanted(self) -> int:
        """Return the bytes of its records."""
        return sum(size for _, size, _ in self.records)


def plan_reads(chosen: Sequence[Chosen], file_bytes: int, gap_max: int, sparse_max: int, span_max: int) -> list[Read]:
    """Return few reads that hold all chosen records, in order: each extends as far as the kernel's docstring allows."""
    reads: list[Read] = []
    for record in chosen:
        begin, end = record[0], record[0] + record[1]
        if reads:
            last = reads[-1]
            length = end - last.begin
            near = 0 <= begin - last.end <= gap_max or begin == last.end
            dense = length <= sparse_max * (last.wanted + record[1]) or length <= gap_max
            if near and dense and length <= span_max and last.begin // file_bytes == begin // file_bytes:
                last.end = end
                last.records.append(record)
                continue
        reads.append(Read(begin, end, [record]))
    return reads


def first_unsound(records: Sequence[bytes], chosen: Sequence[Chosen], queue_id: int) -> int:
    """Return the number of the first record that is not the one its unit promised; -1 if all are."""
    for number, (blob, (physical_offset, size, queue_offset)) in enumerate(zip(records, chosen, strict=True)):
        if size < RECORD_BYTES_MIN:
            return number
        head = RECORD.unpack(blob)
        if head.total_size != size or head.magic not in (MAGIC_V1, MAGIC_V2) or head.physical_offset != physical_offset:
            return number
        if queue_id >= 0 and (head.queue_id, head.queue_offset) != (queue_id, queue_offset):
            return number
    return -1


def answer_body(records: Sequence[bytes]) -> bytes:
    """Return sizes, then records."""
    return struct.pack(f">{len(records)}I", *map(len, records)) + b"".join(records)
