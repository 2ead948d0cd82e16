"""Turns the selected records of a partition into record batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ....protocol.errors import FlintError
from ....protocol.storage.reader.errors import SKIP_HINT, CorruptLog
from ....protocol.storage.reader.log_reader import Block, LogRange, LogScanner, next_record, why_unsound
from ....protocol.storage.reader.parts import SOUND, Ints, Part, Rows
from ....protocol.storage.reader.records import ScannedRecords, TopicFilter, scan
from ...errors import CorruptMessage
from ..decoder import Decoder
from ..records import RecordBlock
from .options import StoreReadOptions

BATCH_ROWS_MIN = 16_384
BATCH_BYTES_MIN = 4 * 1024 * 1024
"""Smaller blocks are collected into a batch of this size: a small batch costs Spark as much as a large one."""
_LOGGED_MAX = 20
_HELP = f"Restore the file from a backup, or {SKIP_HINT}"
logger = logging.getLogger(__name__)


class PartitionReader:
    """Reads one partition; iterate ``batches()`` once. ``on_skip`` is called with each damage that is skipped.

    Afterwards ``skipped`` and ``skipped_bytes`` count the damage that was skipped (``failOnCorruption=false``).
    """

    def __init__(
        self,
        stretches: Sequence[LogRange],
        decoder: Decoder,
        options: StoreReadOptions,
        on_skip: Callable[[FlintError], None] | None = None,
    ) -> None:
        self.skipped = 0
        self.skipped_bytes = 0
        self._stretches = stretches
        self._options = options
        self._decoder = decoder
        self._on_skip = on_skip
        self._topics = TopicFilter(options.topics, options.pattern)
        self._logged = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, in the log's order. Raises ``CorruptLog`` and ``DataLoss``."""
        collected = _Collected()
        for stretch in self._stretches:
            for block in self._blocks(stretch):
                if len(block) < BATCH_ROWS_MIN and int(block.sizes.sum()) < BATCH_BYTES_MIN:
                    collected.add(block)
                    if collected.count < BATCH_ROWS_MIN and collected.size < BATCH_BYTES_MIN:
                        continue
                    block = collected.take()
                elif collected.count:
                    yield from self._decode(collected.take())
                yield from self._decode(block)
        if collected.count:
            yield from self._decode(collected.take())
        if self.skipped_bytes:
            logger.warning("skipped %d damaged places, %d bytes", self.skipped, self.skipped_bytes)

    # ---- which records

    def _blocks(self, stretch: LogRange) -> Iterator[ScannedRecords]:
        """Yield the selected records of a stretch, verified if the options ask for it."""
        options = self._options
        with stretch.file.open() as fd:
            at: int | None = stretch.begin
            while at is not None and at < stretch.end:
                walk = LogScanner(stretch, fd, at, verify=options.verify_checksums)
                for block in walk:
                    wanted = block.records.select(self._wanted(block.records, stretch))
                    # Checking bodies in the walk's own pass is cheaper, unless most of them belong to other topics.
                    walk.verify = options.verify_checksums and 2 * len(wanted) > len(block)
                    if len(wanted):
                        yield self._verified(stretch, Block(wanted, block.verified))
                if walk.damage is None:
                    return
                at = self._behind(walk.damage, stretch, fd)

    def _wanted(self, block: ScannedRecords, stretch: LogRange) -> Rows:
        options, stored_ms = self._options, block.parts[Part.STORED_MS]
        rows = self._topics.rows(block)
        for begin, end in stretch.file.quarantined:
            rows &= (block.parts[Part.PHYSICAL_OFFSET] < begin) | (block.parts[Part.PHYSICAL_OFFSET] >= end)
        if options.starting_ms is not None:
            rows &= stored_ms >= options.starting_ms
        if options.ending_ms is not None:
            rows &= stored_ms < options.ending_ms
        if options.starting_physical_offset is not None:
            rows &= block.parts[Part.PHYSICAL_OFFSET] >= options.starting_physical_offset
        if options.ending_physical_offset is not None:
            rows &= block.parts[Part.PHYSICAL_OFFSET] < options.ending_physical_offset
        return rows

    # ---- damage

    def _verified(self, stretch: LogRange, block: Block) -> ScannedRecords:
        """Return the block without records whose bodies are damaged."""
        records = block.records
        if block.verified or not self._options.verify_checksums:
            return records
        if scan(records.blob, records.starts, records.sizes, verify=True)[1] == SOUND:
            return records
        sound = np.ones(len(records), np.bool_)
        for row, physical_offset in enumerate(records.parts[Part.PHYSICAL_OFFSET].tolist()):
            reason = why_unsound(records.record(row), physical_offset, check_crc=True)
            if reason is not None:
                sound[row] = False
                self._skip(stretch.file.damaged(physical_offset, reason, _HELP), int(records.sizes[row]))
        return records.select(sound)

    def _behind(self, damage: CorruptLog, stretch: LogRange, fd: int) -> int | None:
        """Return the beginning of the stretch's next sound record, or None without one."""
        if self._options.fail_on_corruption:
            raise damage
        at = next_record(stretch.file, fd, damage.physical_offset + 1, stretch.end)
        self._skip(damage, (stretch.end if at is None else at) - damage.physical_offset)
        return at

    def _skip(self, damage: CorruptLog, size: int) -> None:
        if self._options.fail_on_corruption:
            raise damage
        if self._on_skip is not None:
            self._on_skip(damage)
        self.skipped += 1
        self.skipped_bytes += size
        self._logged += 1
        if self._logged <= _LOGGED_MAX:
            logger.warning("skipped %d bytes: %s", size, damage)

    # ---- batches

    def _decode(self, block: ScannedRecords) -> Iterator[pa.RecordBatch]:
        def damaged(error: CorruptMessage) -> None:
            file = next(each.file for each in self._stretches if each.begin <= error.physical_offset < each.end)
            size = int(block.sizes[block.parts[Part.PHYSICAL_OFFSET] == error.physical_offset].sum())
            self._skip(file.damaged(error.physical_offset, error.reason, _HELP), size)

        return self._decoder.batches(RecordBlock.of(block), None, damaged)


class _Collected:
    """Copies of the records of several blocks."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._sizes: list[Ints] = []
        self.count = 0
        self.size = 0

    def add(self, block: ScannedRecords) -> None:
        blob = block.blob
        ends = (block.starts + block.sizes).tolist()
        self._pieces += [bytes(blob[start:end]) for start, end in zip(block.starts.tolist(), ends, strict=True)]
        self._sizes.append(block.sizes)
        self.count += len(block)
        self.size += int(block.sizes.sum())

    def take(self) -> ScannedRecords:
        """Return all added records as one block, and start again empty."""
        sizes = np.concatenate(self._sizes)
        starts = np.cumsum(sizes) - sizes
        blob = b"".join(self._pieces)
        block = ScannedRecords(blob, starts, sizes, scan(blob, starts, sizes, verify=False)[0])
        self.__init__()  # type: ignore[misc]  # resets the block
        return block
