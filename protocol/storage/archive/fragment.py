"""A fragment of the archive: whole records of the CommitLog, verbatim, and their index. Encode and decode.

**Records**, ``….log``: frames, one after the other, nothing else. A frame is a range of the log of at most
``FRAME_BYTES`` as it is, or that as one Zstandard frame that states its content's size. Frames are independent, and may
begin and end in the middle of a record. Between two frames the log has nothing that counts: the blank at the end of one
of its files, or records that the archive's own retention removed. A record's position in the log never changes.

**Index**, ``….idx``::

    head            a map of ``checked``, with the magic ``FLINTIDX``: see ``IndexHead``
    frames          rows of ``LogFrame``
    queues          rows of ``QueueRun``
    units           the ConsumeQueue units of each row of ``queues``, 20 bytes each, as RocketMQ writes them
    keys            a run of ``keys``

The head says where each part begins, counted from the end of the head, its length, and its CRC-32. A reader
that needs only a part reads the head, then the range of the part; units have a checksum for each row of ``queues``,
keys one for each block. All integers are big-endian.
"""

from __future__ import annotations

import functools
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ..layout import UNIT_BYTES, Layout
from .checked import Bytes, checked_end, known_format, pack_checked, unpack_checked
from .errors import ArchiveError, CorruptObject
from .keys import Entries, decode_blocks, encode_run, run_bytes

FORMAT = 1
FRAGMENT_BYTES = 64 * 1024 * 1024
"""Bytes of records from which on a fragment takes no further one."""
FRAME_BYTES = 1024 * 1024
"""Maximum number of bytes of the log in a frame."""

Compression = Literal["zstd", "none"]
COMPRESSIONS = get_args(Compression)

# ---- names ----

_NAME = re.compile(r"log/(\d{10})/(\d{20})-(\d{20})-([0-9a-f]{16})\.(log|idx)\Z", re.ASCII)


class FragmentName(NamedTuple):
    """A fragment's name: the epoch of its writer, its range in the log, and 16 random hex digits, so that no writer
    ever overwrites another's fragment."""

    epoch: int
    start: int
    end: int
    rand: str

    @property
    def log(self) -> str:
        """Name of the object with the records, relative to the archive's prefix."""
        return f"log/{self.epoch:010d}/{self.start:020d}-{self.end:020d}-{self.rand}.log"

    @property
    def idx(self) -> str:
        """Name of the object with the index."""
        return self.log[: -len("log")] + "idx"


def parse_name(name: str) -> FragmentName | None:
    """Return what the name of a fragment's object says; None if it is none."""
    match = _NAME.match(name)
    return FragmentName(int(match[1]), int(match[2]), int(match[3]), match[4]) if match else None


# ---- layouts ----


class LogFrame(NamedTuple):
    """A frame: the range of the log that it covers, and where it is in the object."""

    physical_offset: Annotated[int, 8, "position of its first byte in the whole log"]
    raw_bytes: Annotated[int, 4, "bytes of the log that it holds"]
    at: Annotated[int, 8, "its first byte in the object"]
    stored_bytes: Annotated[int, 4, "its size in the object"]
    crc: Annotated[int, 4, "CRC-32 of the frame as it is stored"]


class QueueRun(NamedTuple):
    """Units of a queue with consecutive queue offsets. A queue has several rows if the fragment lacks some of it."""

    topic: Annotated[int, 4, "number of the topic in the head's list"]
    queue_id: Annotated[int, 4, "queue of the topic"]
    first: Annotated[int, 8, "queue offset of the first unit"]
    length: Annotated[int, 4, "number of units"]
    units_at: Annotated[int, 8, "first byte of the units, counted from the first unit of the fragment"]
    first_ms: Annotated[int, 8, "store time of the first message, ms since 1970 UTC"]
    last_ms: Annotated[int, 8, "store time of the last message"]
    crc: Annotated[int, 4, "CRC-32 of the units"]


FRAME = Layout(LogFrame)
QUEUE_RUN = Layout(QueueRun)
FRAME_DTYPE = np.dtype(FRAME.dtype())
QUEUE_RUN_DTYPE = np.dtype(QUEUE_RUN.dtype())
Rows = npt.NDArray[np.void]

_MAGIC = b"FLINTIDX"


def signed(crc: int) -> int:
    """Return a CRC-32 as the layouts have it, whose integers are signed."""
    return crc - (1 << 32) if crc >> 31 else crc


# ---- the index ----


class IndexPart(NamedTuple):
    """A part of the index: begin, counted from the end of the head, length, CRC-32."""

    at: int
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class IndexHead:
    """The head of an index, and where its parts are.

    ``start``, ``end``: range of the log; ``topics``: those that ``QueueRun.topic`` numbers; ``quarantined``: ranges of
    the log with tombstones for messages that were lost, which are not delivered; ``parts_at``: end of the head;
    ``records``, ``keys``: how many there are.
    """

    start: int
    end: int
    compression: Compression
    topics: list[str]
    quarantined: list[tuple[int, int]]
    records: int
    keys: int
    parts: dict[str, IndexPart]
    parts_at: int

    def range_of(self, part: str) -> tuple[int, int]:
        """Return begin and end of a part (``frames``, ``queues``, ``units``, ``keys``) in the object."""
        at, size, _ = self.parts[part]
        return self.parts_at + at, self.parts_at + at + size


@dataclass(frozen=True, slots=True)
class FragmentIndex:
    """A whole index in memory: the head and its parts."""

    head: IndexHead
    frames: Rows
    queues: Rows
    units: Bytes
    keys: Entries

    def units_of(self, row: int) -> Bytes:
        """Return the units of a row of ``queues``."""
        run = self.queues[row]
        at = int(run["units_at"])
        return memoryview(self.units)[at : at + int(run["length"]) * UNIT_BYTES]


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """Units of one queue with consecutive queue offsets, for ``encode_index``."""

    topic: str
    queue_id: int
    first: int
    units: bytes
    first_ms: int
    last_ms: int


_PARTS = ("frames", "queues", "units", "keys")


def encode_index(
    start: int,
    end: int,
    compression: Compression,
    frames: list[LogFrame],
    queues: list[QueueUnits],
    keys: Entries,
    records: int,
    quarantined: list[tuple[int, int]],
) -> bytes:
    """Return the index of the fragment ``[start, end)``. ``keys``: sorted, as ``keys.sorted_entries`` returns them."""
    topics = sorted({each.topic for each in queues})
    number_of = {topic: number for number, topic in enumerate(topics)}
    rows, at = [], 0
    for each in queues:
        rows.append(
            QUEUE_RUN.pack(
                number_of[each.topic],
                each.queue_id,
                each.first,
                len(each.units) // UNIT_BYTES,
                at,
                each.first_ms,
                each.last_ms,
                signed(zlib.crc32(each.units)),
            )
        )
        at += len(each.units)
    blobs = (
        b"".join(FRAME.pack(*frame) for frame in frames),
        b"".join(rows),
        b"".join(each.units for each in queues),
        encode_run(keys),
    )
    parts, at = {}, 0
    for name, blob in zip(_PARTS, blobs, strict=True):
        parts[name] = [at, len(blob), zlib.crc32(blob)]
        at += len(blob)
    head = pack_checked(
        _MAGIC,
        {
            "format": FORMAT,
            "start": start,
            "end": end,
            "compression": compression,
            "topics": topics,
            "quarantined": quarantined,
            "records": records,
            "keys": len(keys),
            "parts": parts,
        },
    )
    return b"".join((head, *blobs))


def head_end(prefix: Bytes, name: str) -> int:
    """Return how many bytes of an index the head takes with its checksum: that many ``decode_head`` needs.

    ``prefix``: at least its first 12 bytes. Raises ``CorruptObject``, also if the object is shorter than that.
    """
    return checked_end(prefix, _MAGIC, name)


def decode_head(blob: Bytes, name: str) -> IndexHead:
    """Return the head of an index. ``blob``: at least its first ``head_end`` bytes.

    Raises ``CorruptObject`` or ``UnknownFormat``.
    """
    fields = unpack_checked(blob, _MAGIC, name)
    with known_format(name):
        if fields["format"] != FORMAT or fields["compression"] not in COMPRESSIONS:
            raise ValueError(fields["format"])
        return IndexHead(
            fields["start"],
            fields["end"],
            fields["compression"],
            fields["topics"],
            [(begin, stop) for begin, stop in fields["quarantined"]],
            fields["records"],
            fields["keys"],
            {part: IndexPart(*fields["parts"][part]) for part in _PARTS},
            head_end(blob, name),
        )


def decode_index(blob: Bytes, name: str) -> FragmentIndex:
    """Return a whole index. Raises ``CorruptObject`` for damage anywhere in it, or ``UnknownFormat``."""
    head = decode_head(blob, name)
    held = {part: decode_part(memoryview(blob)[slice(*head.range_of(part))], head, part, name) for part in _PARTS[:3]}
    begin, end = head.range_of("keys")
    return FragmentIndex(
        head,
        np.frombuffer(held["frames"], FRAME_DTYPE),
        np.frombuffer(held["queues"], QUEUE_RUN_DTYPE),
        held["units"],
        decode_keys(memoryview(blob)[begin:end], head, name),
    )


def decode_part(blob: Bytes, head: IndexHead, part: str, name: str) -> Bytes:
    """Return the bytes of a part after a check of its length and checksum. Raises ``CorruptObject``."""
    _, size, crc = head.parts[part]
    if len(blob) != size or zlib.crc32(blob) != crc:
        raise CorruptObject(name, f"its {part} are cut short or have a wrong checksum")
    return blob


def decode_keys(blob: Bytes, head: IndexHead, name: str) -> Entries:
    """Return all keys of a fragment from the bytes of that part. Raises ``CorruptObject``."""
    if len(blob) != run_bytes(head.keys):
        raise CorruptObject(name, f"its keys take {len(blob):,} bytes instead of {run_bytes(head.keys):,}")
    return decode_blocks(blob, name)


def check_units(units: Bytes, run: Any, name: str) -> None:
    """Check the units of one row of ``queues`` that were read alone. Raises ``CorruptObject``."""
    if len(units) != int(run["length"]) * UNIT_BYTES or signed(zlib.crc32(units)) != int(run["crc"]):
        raise CorruptObject(name, f"the units from queue offset {int(run['first'])} on have a wrong checksum")


# ---- frames ----


def encode_frames(
    pieces: Sequence[tuple[int, Bytes]], compression: Compression, level: int = 1
) -> tuple[bytearray, list[LogFrame]]:
    """Return the object with the records of a fragment, and its frames.

    ``pieces``: (physical offset, bytes) of ranges of the log in ascending order. Raises ``CompressionMissing``.
    """
    compress = _zstd_compressor(level) if compression == "zstd" else None
    stored, frames, at = bytearray(), [], 0
    for physical_offset, piece in pieces:
        view = memoryview(piece)
        for begin in range(0, len(view), FRAME_BYTES):
            raw = view[begin : begin + FRAME_BYTES]
            blob = raw if compress is None else compress(raw)
            frames.append(LogFrame(physical_offset + begin, len(raw), at, len(blob), signed(zlib.crc32(blob))))
            stored += blob
            at += len(blob)
    return stored, frames


def decode_frame(blob: Bytes, frame: Any, compression: Compression, name: str) -> Bytes:
    """Return the bytes of the log in a frame.

    ``blob``: exactly the frame as it is stored; ``frame``: its row of ``frames``; ``name``: that of the object. Raises
    ``CorruptObject``, or ``CompressionMissing``. Never allocates more than the frame's row says.
    """
    where = f"the frame at physical offset {int(frame['physical_offset']):,}"
    raw_bytes = int(frame["raw_bytes"])
    if len(blob) != int(frame["stored_bytes"]) or signed(zlib.crc32(blob)) != int(frame["crc"]):
        raise CorruptObject(name, f"{where} is cut short or has a wrong checksum")
    if compression == "none":
        raw = blob
    else:
        try:
            raw = _zstd_decompress(blob, raw_bytes)
        except _zstd_error() as error:
            raise CorruptObject(name, f"{where} cannot be decompressed: {error}") from None
    if len(raw) != raw_bytes:
        raise CorruptObject(name, f"{where} has {len(raw):,} bytes instead of {raw_bytes:,}")
    return raw


def frames_of(frames: Rows, begin: int, end: int) -> Rows:
    """Return the rows of the frames that hold bytes of the log in ``[begin, end)``."""
    starts = frames["physical_offset"]
    overlap = (starts < end) & (starts + frames["raw_bytes"] > begin)
    chosen: Rows = frames[overlap]
    return chosen


def stored_range(frames: Rows) -> tuple[int, int]:
    """Return the range of the object in which adjacent frames, at least one, are stored."""
    first, last = frames[0], frames[-1]
    return int(first["at"]), int(last["at"]) + int(last["stored_bytes"])


def pieces_in(blob: Bytes, index: FragmentIndex, name: str) -> Iterator[tuple[int, Bytes]]:
    """Yield (physical offset, bytes) of each frame of the whole object ``blob``. Raises as ``decode_frame`` does."""
    view = memoryview(blob)
    for frame in index.frames:
        at = int(frame["at"])
        stored = view[at : at + int(frame["stored_bytes"])]
        yield int(frame["physical_offset"]), decode_frame(stored, frame, index.head.compression, name)


# ---- Zstandard ----

_STANDARD = sys.version_info >= (3, 14)


class CompressionMissing(ArchiveError):
    """The archive is compressed, or is to be, and the library for that is not installed."""


@functools.cache
def _zstd() -> Any:
    try:
        if _STANDARD:
            from compression import zstd as library
        else:
            import zstandard as library
    except ImportError:
        raise CompressionMissing(
            "Zstandard needs a Python with the module compression.zstd, and this one was built without it"
            if _STANDARD
            else "Zstandard needs the package zstandard, which is not installed: pip install 'flintmq[archive]'"
        ) from None
    return library


def check_compression(compression: Compression) -> None:
    """Raise ``CompressionMissing`` if fragments cannot be compressed so."""
    if compression == "zstd":
        _zstd()


def _zstd_compressor(level: int) -> Any:
    library = _zstd()
    # One for each call: compressors are not for several threads at once.
    return functools.partial(library.compress, level=level) if _STANDARD else library.ZstdCompressor(level).compress


def _zstd_decompress(blob: Bytes, raw_bytes: int) -> bytes:
    library = _zstd()
    if _STANDARD:
        raw: bytes = library.ZstdDecompressor().decompress(blob, max_length=raw_bytes)
    else:
        if library.frame_content_size(blob) != raw_bytes:
            raise library.ZstdError("it states another size")
        raw = library.ZstdDecompressor().decompress(blob)
    return raw


def _zstd_error() -> Any:
    return _zstd().ZstdError
