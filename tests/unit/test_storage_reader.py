"""The reader of a store's files needs nothing of a file system but what ``LocalFiles`` offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import UNIT, CheckpointTimes
from flintmq.protocol.storage.reader.errors import CorruptLog
from flintmq.protocol.storage.reader.files import LocalFiles
from flintmq.protocol.storage.reader.log_files import open_log
from flintmq.protocol.storage.reader.log_reader import Boundary, LogScanner, find_boundary, find_end
from flintmq.protocol.storage.reader.parts import Part
from flintmq.protocol.storage.record import Record
from flintmq.protocol.store_files import encode_checkpoint, file_name
from tests.store_reader_tools import MadeLog, make_log

STORE = Path("/nowhere/store")


class FilesInMemory(LocalFiles):
    """Files by their paths, without a file system."""

    def __init__(self, contents: dict[Path, bytes]) -> None:
        self.contents = contents
        self.opened: list[Path] = []

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        return sorted((path.name, len(held)) for path, held in self.contents.items() if path.parent == folder)

    def folders_in(self, folder: Path) -> list[str]:
        below = {path.relative_to(folder).parts for path in self.contents if path.is_relative_to(folder)}
        return sorted({parts[0] for parts in below if len(parts) > 1})

    def open(self, path: Path) -> int:
        if path not in self.contents:
            raise FileNotFoundError(path)
        self.opened.append(path)
        return len(self.opened) - 1

    def close(self, handle: int) -> None:
        assert self.opened[handle] in self.contents

    def size(self, handle: int) -> int:
        return len(self.contents[self.opened[handle]])

    def read_into(self, handle: int, buffer: memoryview, at: int) -> int:
        found = self.contents[self.opened[handle]][at : at + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def next_data(self, handle: int, at: int) -> int | None:
        return at if at < self.size(handle) else None


def made() -> MadeLog:
    return make_log([Record(b"orders", bytes(300), queue_offset=number) for number in range(50)], 4096)


def stored(log: MadeLog, **files: bytes) -> FilesInMemory:
    contents = {STORE / "commitlog" / file_name(start): bytes(held) for start, held in log.files.items()}
    return FilesInMemory(contents | {STORE / name: held for name, held in files.items()})


def offsets(files: FilesInMemory) -> list[int]:
    found: list[int] = []
    for stretch in find_end(open_log(STORE / "commitlog", STORE, files=files)).stretches:
        with stretch.file.open() as handle:
            for block in LogScanner(stretch, handle, stretch.begin, verify=True):
                found += block.records.parts[Part.PHYSICAL_OFFSET].tolist()
    return found


def test_a_log_is_read_from_another_kind_of_storage() -> None:
    log = made()
    assert offsets(stored(log)) == [record.physical_offset for record in log.records]


def test_the_checkpoint_of_another_kind_of_storage_says_where_the_log_ends() -> None:
    log = made()
    end = log.records[30].physical_offset
    checkpoint = encode_checkpoint(CheckpointTimes(0, 0, 0, 0, 0), end, end)
    assert offsets(stored(log, checkpoint=checkpoint)) == [record.physical_offset for record in log.records[:30]]


def test_places_in_the_middle_are_found_in_another_kind_of_storage() -> None:
    log = made()
    units = b"".join(UNIT.pack(record.physical_offset, len(record.encode()), 0) for record in log.records)
    queue = {f"consumequeue/orders/0/{file_name(0)}": units}
    found = open_log(STORE / "commitlog", STORE, files=stored(log, **queue))
    (file, *_), places = found.files, [record.physical_offset for record in log.records]
    with file.open() as handle:
        boundary = find_boundary(file, handle, 1000, file.end, found.queues())
    assert boundary == Boundary(min(place for place in places if place >= 1000), certain=True)
    unit = found.queues().last_unit()
    assert unit is not None
    assert unit.physical_offset == places[-1]


def test_a_missing_file_of_another_kind_of_storage_is_named() -> None:
    log = made()
    del log.files[sorted(log.files)[1]]
    with pytest.raises(CorruptLog, match="the file is missing"):
        offsets(stored(log))
