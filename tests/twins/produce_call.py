"""Calls of the produce kernel, every array fenced."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from flintmq.broker.kernels import produce as kernel
from flintmq.broker.kernels import produce_plan

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
        numbers[produce_plan.N_BASE] += numbers[produce_plan.N_LIMIT]
        numbers[produce_plan.N_LIMIT] = file_bytes
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
        produce_plan.N_BODY_AT: body_at,
        produce_plan.N_BODY_END: body_at + len(batch.body),
        produce_plan.N_COUNT: batch.count,
        produce_plan.N_LAYOUT: batch.layout,
        produce_plan.N_SYS_FLAG: batch.sys_flag,
        produce_plan.N_COMMON_AT: prefix_end,
        produce_plan.N_COMMON_END: common_end,
        produce_plan.N_PREFIX_AT: 0,
        produce_plan.N_UNIQUE: 1 if batch.unique_prefix else 0,
        produce_plan.N_UNIQUE_FIRST: batch.unique_first,
        produce_plan.N_TOPIC_AT: common_end,
        produce_plan.N_TOPIC_END: topic_end,
        produce_plan.N_BORN_HOST_AT: topic_end,
        produce_plan.N_BORN_HOST_END: born_end,
        produce_plan.N_STORE_HOST_AT: born_end,
        produce_plan.N_STORE_HOST_END: born_end + len(batch.store_host),
        produce_plan.N_QUEUE_ID: batch.queue_id,
        produce_plan.N_QUEUE_OFFSET: batch.queue_offset,
        produce_plan.N_BORN_MS: batch.born_ms,
        produce_plan.N_STORE_MS: batch.store_ms,
        produce_plan.N_RECORD_MAX: batch.record_max,
        produce_plan.N_LIMIT: file_bytes - position,
        produce_plan.N_BASE: FILE_BASE + position,
        produce_plan.N_RECORDS_MAX: batch.records_max,
        produce_plan.N_CHECKSUM_BYTES: 20 if batch.checksum else 0,
        produce_plan.N_FLAG: batch.flag,
        produce_plan.N_RECONSUME_TIMES: batch.reconsume_times,
    }
    assert sorted(slots) == list(range(produce_plan.N_LENGTH))
    return [slots[slot] for slot in range(produce_plan.N_LENGTH)]


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
        plan=room(batch.count * produce_plan.PLAN_WIDTH, np.int64, sentinel),
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
