"""An archive as the log of a store: its fragments are read like files, without a broker and without local files."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ....protocol.errors import FlintError
from ....protocol.storage.archive.errors import CorruptObject
from ....protocol.storage.archive.manifest import Entry
from ....protocol.storage.archive.objects import Objects
from ....protocol.storage.archive.reader import ArchiveReader, Fragment
from ....protocol.storage.reader.errors import SKIP_HINT, CorruptLog, DataLoss, OnDamage
from ....protocol.storage.reader.files import LocalFiles
from ....protocol.storage.reader.log_files import LogFile
from ....protocol.storage.reader.log_reader import LogRange
from ....protocol.storage.reader.records import TopicFilter
from ..errors import InvalidOption
from .options import StoreReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ..decoder import Decoder

logger = logging.getLogger(__name__)


def open_archive(url: str) -> ArchiveReader:
    """Return the archive at a URL; the caller closes it."""
    return ArchiveReader(Objects(url))


def check_archived_topics(names: tuple[str, ...], reader: ArchiveReader) -> None:
    """Raise ``InvalidOption`` for a topic of which the archive has no message."""
    known = set(reader.manifest.topics)
    for group in reversed(reader.manifest.groups):
        if known.issuperset(names):
            return
        known.update(reader.group(group)[1])
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidOption(f"no message of topic {name!r} is in the archive {reader.objects.url}{meant}")


def plan_archive(reader: ArchiveReader, options: StoreReadOptions) -> list[list[Entry]]:
    """Return the fragments of each partition, from the manifest alone: those that may have a message of the options'
    topics, times and offsets. Gaps are reported as damage if the read would go over them."""
    manifest = reader.manifest
    begin, end = options.starting_physical_offset or 0, options.ending_physical_offset
    if options.starting_physical_offset is not None and begin < manifest.start:
        raise DataLoss(
            f'option("startingPhysicalOffset", "{begin}"): the archive {reader.objects.url} begins at '
            f"{manifest.start:,}. Begin there, or leave the option out"
        )
    wanted = TopicFilter(options.topics, options.pattern).wants
    partitions: list[list[Entry]] = []
    filled = 0
    for entry, _ in reader.entries(begin, end, since_ms=options.starting_ms, until_ms=options.ending_ms, topics=wanted):
        if not partitions or filled + entry.raw_bytes > options.partition_bytes:
            partitions.append([])
            filled = 0
        partitions[-1].append(entry)
        filled += entry.raw_bytes
    _check_gaps(reader, partitions, options.on_damage)
    return partitions


def _check_gaps(reader: ArchiveReader, partitions: list[list[Entry]], on_damage: OnDamage) -> None:
    """Report what the archive lacks between the first and the last fragment of a read."""
    if not partitions:
        return
    begin, end = partitions[0][0].start, partitions[-1][-1].end
    for gap in reader.manifest.gaps:
        if begin < gap.start < end:
            reason = f"the archive lacks the log up to {gap.end:,}: {gap.reason}"
            on_damage(CorruptLog(Path(reader.objects.url), 0, gap.start, reason, f"To read the rest: {SKIP_HINT}"))


def archived_batches(
    reader: ArchiveReader,
    entries: Iterable[Entry],
    decoder: Decoder,
    options: StoreReadOptions,
    on_skip: Callable[[FlintError], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of fragments, in the log's order.

    ``on_skip`` is called with each damage that is skipped. Damage of an object leaves out the rest of its fragment.
    """
    from .partition_reader import PartitionReader  # it loads what only tasks of Spark need

    for entry in entries:
        try:
            yield from PartitionReader(archived_ranges(reader.fragment(entry)), decoder, options, on_skip).batches()
        except CorruptObject as error:
            if options.fail_on_corruption:
                raise
            logger.warning("skipped the rest of a fragment: %s", error)
            if on_skip is not None:
                on_skip(error)


def archived_ranges(fragment: Fragment) -> list[LogRange]:
    """Return the stretches of a fragment, as files that the store reader reads."""
    path, quarantined = Path(fragment.entry.name.log), tuple(fragment.head.quarantined)
    return [
        LogRange(LogFile(path, begin, end, quarantined, _Stretch(fragment, begin, end)), begin, end)
        for begin, end in fragment.stretches()
    ]


class _Stretch(LocalFiles):
    """A stretch of a fragment as a file, whose first byte is at ``start`` of the log."""

    def __init__(self, fragment: Fragment, start: int, end: int) -> None:
        self._fragment = fragment
        self._start = start
        self._end = end

    def open(self, path: Path) -> int:
        return -1

    def close(self, handle: int) -> None:
        pass

    def size(self, handle: int) -> int:
        return self._end - self._start

    def read_into(self, handle: int, buffer: memoryview, at: int) -> int:
        begin = self._start + at
        count = max(0, min(len(buffer), self._end - begin))
        if count:
            self._fragment.read_into(buffer[:count], begin, ahead=True)
        return count

    def next_data(self, handle: int, at: int) -> int | None:
        return at
