"""Calls of the produce kernel, every array fenced."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from flintmq.broker.kernels import produce as kernel

from .arrays import Fenced, fenced, room
from .produce import Batch

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
        numbers[kernel.N_BASE] += numbers[kernel.N_LIMIT]
        numbers[kernel.N_LIMIT] = file_bytes
        log = fenced(bytes([UNTOUCHED]) * file_bytes)
        self.message, self.position = kernel.produce_on(
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
        kernel.N_BODY_AT: body_at,
        kernel.N_BODY_END: body_at + len(batch.body),
        kernel.N_COUNT: batch.count,
        kernel.N_LAYOUT: batch.layout,
        kernel.N_SYS_FLAG: batch.sys_flag,
        kernel.N_COMMON_AT: prefix_end,
        kernel.N_COMMON_END: common_end,
        kernel.N_PREFIX_AT: 0,
        kernel.N_UNIQUE: 1 if batch.unique_prefix else 0,
        kernel.N_UNIQUE_FIRST: batch.unique_first,
        kernel.N_TOPIC_AT: common_end,
        kernel.N_TOPIC_END: topic_end,
        kernel.N_BORN_HOST_AT: topic_end,
        kernel.N_BORN_HOST_END: born_end,
        kernel.N_STORE_HOST_AT: born_end,
        kernel.N_STORE_HOST_END: born_end + len(batch.store_host),
        kernel.N_QUEUE_ID: batch.queue_id,
        kernel.N_QUEUE_OFFSET: batch.queue_offset,
        kernel.N_BORN_MS: batch.born_ms,
        kernel.N_STORE_MS: batch.store_ms,
        kernel.N_RECORD_MAX: batch.record_max,
        kernel.N_LIMIT: file_bytes - position,
        kernel.N_BASE: FILE_BASE + position,
        kernel.N_RECORDS_MAX: batch.records_max,
        kernel.N_CHECKSUM_BYTES: 20 if batch.checksum else 0,
        kernel.N_FLAG: batch.flag,
        kernel.N_RECONSUME_TIMES: batch.reconsume_times,
    }
    assert sorted(slots) == list(range(kernel.N_LENGTH))
    return [slots[slot] for slot in range(kernel.N_LENGTH)]


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
        plan=room(batch.count * kernel.PLAN_WIDTH, np.int64, sentinel),
        log=fenced(bytes([UNTOUCHED]) * (file_bytes - position), sentinel=sentinel),
        physical_offsets=fenced(bytes(8 * batch.count), sentinel=sentinel),
    )
    call.status, call.message, call.position = kernel.produce(
        call.frame.array,
        call.numbers.array,
        call.texts.array,
        call.plan.array,
        call.log.array,
        call.physical_offsets.array,
    )
    return call
