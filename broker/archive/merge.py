"""Merging of small fragments: a quiet broker writes one every few seconds, and a reader wants few.

Fragments are of sizes: full ones are left alone, and sixteen adjacent ones of a smaller size become one, so each byte
is written again once or twice. Positions in the log do not change. Readers that hold an older version of the manifest
go on with the old objects, which are deleted an hour later.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from ...protocol.storage.archive.errors import CorruptObject
from ...protocol.storage.archive.fragment import FRAGMENT_BYTES, Compression, FragmentName, decode_index, pieces_in
from ...protocol.storage.archive.manifest import Entry
from ...protocol.storage.archive.objects import Objects
from .cutter import Cutter
from .lineage import NewFragment, random_hex

MERGED = 16
"""Fragments that become one."""
SIZES = (FRAGMENT_BYTES // 2, FRAGMENT_BYTES // 32, FRAGMENT_BYTES // 512, 0)
"""Least bytes of the log in a fragment of each size, the full one first."""


def size_of(entry: Entry) -> int:
    """Return the number of a fragment's size; 0: it is full."""
    return next(number for number, least in enumerate(SIZES) if entry.raw_bytes >= least)


def next_merge(entries: Sequence[Entry]) -> list[Entry]:
    """Return adjacent entries that are to become one fragment; none if there are not enough small ones.

    They are sixteen of one size, or as many as make a full one, and those between them that are even smaller.
    """
    for size in range(len(SIZES) - 1, 0, -1):
        run: list[Entry] = []
        raw_bytes = of_size = 0
        for entry in entries:
            if size_of(entry) < size or (run and run[-1].end != entry.start):
                run, raw_bytes, of_size = [], 0, 0
            if size_of(entry) < size:
                continue
            if raw_bytes + entry.raw_bytes > FRAGMENT_BYTES:
                if raw_bytes >= SIZES[0] and len(run) > 1:
                    return run
                run, raw_bytes, of_size = [], 0, 0
            run.append(entry)
            raw_bytes += entry.raw_bytes
            of_size += size_of(entry) == size
            if of_size == MERGED:
                return run
    return []


def merged(objects: Objects, old: Sequence[Entry], cutter: Cutter, epoch: int, compression: Compression) -> NewFragment:
    """Return the fragment that holds what the old ones hold; it is not written yet.

    Raises ``CorruptObject`` if one of them is damaged, and ``ObjectError``.
    """
    pieces: list[tuple[int, bytes]] = []
    quarantined: list[tuple[int, int]] = []
    for entry in old:
        log = _whole(objects, entry.name.log, entry.log_sha256)
        index = decode_index(_whole(objects, entry.name.idx, entry.idx_sha256), entry.name.idx)
        quarantined += index.head.quarantined
        pieces += [(at, bytes(raw)) for at, raw in pieces_in(log, index, entry.name.log)]
    cut = cutter.derive(old[0].start, old[-1].end, _joined(pieces))
    blobs = cut.encode(compression, sorted(set(quarantined)))
    return NewFragment(cut, FragmentName(epoch, cut.start, cut.end, random_hex()), *blobs)


def _whole(objects: Objects, name: str, sha256: bytes) -> bytes:
    blob = objects.get(name)
    if hashlib.sha256(blob).digest() != sha256:
        raise CorruptObject(name, "it is not what its entry in the manifest says")
    return blob


def _joined(pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return adjacent pieces as one: a record may lie in two."""
    ends = [0, *itertools.accumulate(len(piece) for _, piece in pieces)]
    starts = [at - end for (at, _), end in zip(pieces, ends, strict=False)]
    joined = []
    for _, group in itertools.groupby(range(len(pieces)), key=starts.__getitem__):
        numbers = list(group)
        joined.append((pieces[numbers[0]][0], b"".join(pieces[number][1] for number in numbers)))
    return joined
