"""CommitLogs built in memory for tests of the store source: any records, any file size, and a plain scan to compare
with."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flintmq.client.arrow.decoder import Decoder
from flintmq.client.arrow.store_reader.find_log import find_log
from flintmq.client.arrow.store_reader.options import StoreReadOptions
from flintmq.client.arrow.store_reader.partition_reader import PartitionReader
from flintmq.client.arrow.store_reader.plan import plan
from flintmq.client.spark.columns import offered
from flintmq.protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK, RECORD_BYTES_MIN
from flintmq.protocol.storage.reader.log_reader import LogRange, find_end
from flintmq.protocol.storage.record import Record, decode_record

COLUMNS = offered(properties=True, headers=True)


@dataclass
class MadeLog:
    """Bytes of each file by its first offset, the records with their offsets, and the end of the last."""

    files: dict[int, bytearray]
    records: list[Record] = field(default_factory=list)
    end: int = 0

    def write(self, folder: Path) -> Path:
        """Write the files to a commitlog folder, created if necessary; return the store's folder."""
        commitlog = folder / "commitlog"
        commitlog.mkdir(parents=True, exist_ok=True)
        for start, content in self.files.items():
            (commitlog / f"{start:020d}").write_bytes(content)
        return folder

    def place(self, physical_offset: int) -> tuple[int, int]:
        """Return the file that holds an offset, and the position in it."""
        start = max(start for start in self.files if start <= physical_offset)
        return start, physical_offset - start


def make_log(records: Iterable[Record], file_bytes: int, *, first_start: int = 0) -> MadeLog:
    """Build consecutive records in files of this size, each with its physical offset set; zeros fill the end."""
    log = MadeLog({first_start: bytearray()}, end=first_start)
    start = first_start
    for record in records:
        size = len(record.encode())
        assert size + BLANK_BYTES_MIN <= file_bytes, "the record is longer than a file"
        left = file_bytes - len(log.files[start])
        if size + BLANK_BYTES_MIN > left:
            log.files[start] += struct.pack(">ii", left, MAGIC_BLANK) + bytes(left - BLANK_BYTES_MIN)
            start += file_bytes
            log.files[start] = bytearray()
        placed = dataclasses.replace(record, physical_offset=start + len(log.files[start]))
        blob = placed.encode()
        log.files[start] += blob
        log.records.append(decode_record(blob))
        log.end = placed.physical_offset + len(blob)
    log.files[start] += bytes(file_bytes - len(log.files[start]))
    return log


def plain_walk(log: MadeLog) -> Iterator[int]:
    """Return the physical offset of every record, found one by one."""
    for start, content in log.files.items():
        at = 0
        while at + RECORD_BYTES_MIN <= len(content):
            size, magic = struct.unpack_from(">ii", content, at)
            if magic in (0, MAGIC_BLANK):
                break
            assert decode_record(content, at).physical_offset == start + at
            yield start + at
            at += size


def forge(physical_offset: int, count: int, *, topic: bytes = b"forged", body: bytes = b"not a message") -> bytes:
    """Return complete records for a body at this offset; they claim the places where they are."""
    blob = b""
    for number in range(count):
        forged = Record(topic, body, queue_offset=number, physical_offset=physical_offset + len(blob))
        blob += forged.encode()
    return blob


def plan_of(path: Path | str, **options: Any) -> list[list[LogRange]]:
    """Return the partitions of a read with these ``StoreReadOptions``."""
    wanted = StoreReadOptions(str(path), **options)
    return plan(find_end(find_log(wanted.path, wanted.on_damage), wanted.on_damage), wanted)


def read_rows(path: Path | str, **options: Any) -> list[dict[str, Any]]:
    """Return all rows of a read, partition by partition."""
    wanted = StoreReadOptions(str(path), **options)
    rows: list[dict[str, Any]] = []
    for stretches in plan_of(path, **options):
        for batch in PartitionReader(stretches, Decoder(COLUMNS), wanted).batches():
            rows += batch.to_pylist()
    return rows


def read_offsets(path: Path | str, **options: Any) -> list[int]:
    """Return the physical offsets of all rows of a read."""
    return [row["physical_offset"] for row in read_rows(path, **options)]
