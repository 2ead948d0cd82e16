"""Reads everything that an archive's newest manifest names, and names each object that is not as it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..layout import MAGIC_V1, MAGIC_V2, UNIT
from .errors import ArchiveError, CorruptObject
from .fragment import decode_index, pieces_in
from .keys import decode_blocks, run_bytes
from .manifest import IDENTITY, LATEST, VERSIONS, Entry, decode_group, decode_manifest
from .objects import ObjectNotFound
from .reader import MISSING, ArchiveReader

_UNITS = np.dtype(UNIT.dtype())


@dataclass(frozen=True, slots=True)
class Flaw:
    """An object that is missing, damaged or contradicts another one, and what is wrong with it."""

    name: str
    reason: str


@dataclass(slots=True)
class VerifiedArchive:
    """What a verification has read so far. ``unlisted``: objects that the manifest does not name: they do not count,
    and are what writers that were killed left behind, or what a writer will list or delete soon."""

    fragments: int = 0
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    runs: int = 0
    unlisted: int = 0
    flaws: int = 0


def verify(reader: ArchiveReader, done: VerifiedArchive) -> Iterator[Flaw]:
    """Yield what is wrong with the archive; count in ``done`` what has been read."""
    for flaw in _flaws(reader, done):
        done.flaws += 1
        yield flaw


def _flaws(reader: ArchiveReader, done: VerifiedArchive) -> Iterator[Flaw]:
    objects, manifest = reader.objects, reader.refresh()
    try:
        reader.identity()
    except ArchiveError as error:
        yield Flaw(IDENTITY, _reason(error))
    try:
        decode_manifest(objects.get(LATEST), LATEST)
    except ObjectNotFound:
        yield Flaw(LATEST, MISSING)
    except ArchiveError as error:
        yield Flaw(LATEST, _reason(error))
    named = {IDENTITY}
    gaps = {gap.start: gap.end for gap in manifest.gaps}
    end = manifest.start
    for group in (*manifest.groups, None):
        entries = manifest.entries
        if group is not None:
            named.add(group.name)
            try:
                entries, _ = decode_group(_get(reader, group.name, group.size, group.sha256, done), group.name)
            except CorruptObject as error:
                yield Flaw(group.name, error.reason)
                end = group.end
                continue
        for entry in entries:
            end = gaps.get(end, end)
            if entry.start != end:
                yield Flaw(
                    manifest.name, f"it has neither fragment nor gap for physical offsets {end:,} to {entry.start:,}"
                )
            end = entry.end
            named |= {entry.name.log, entry.name.idx}
            yield from _flaws_of(reader, entry, done)
    for run in manifest.runs:
        named.add(run.name)
        try:
            keys = decode_blocks(_get(reader, run.name, run_bytes(run.keys), None, done), run.name)
            if (keys["hash"][1:] < keys["hash"][:-1]).any():
                raise CorruptObject(run.name, "its keys are not sorted")
            done.runs += 1
        except CorruptObject as error:
            yield Flaw(run.name, error.reason)
    done.unlisted = sum(each.name not in named and not each.name.startswith(VERSIONS) for each in objects.list())


def _get(reader: ArchiveReader, name: str, size: int, sha256: bytes | None, done: VerifiedArchive) -> bytes:
    try:
        blob = reader.objects.get(name)
    except ObjectNotFound:
        raise CorruptObject(name, MISSING) from None
    done.stored_bytes += len(blob)
    if len(blob) != size:
        raise CorruptObject(name, f"it has {len(blob):,} bytes instead of {size:,}")
    if sha256 is not None and hashlib.sha256(blob).digest() != sha256:
        raise CorruptObject(name, "its SHA-256 is not the one in the manifest")
    return blob


def _flaws_of(reader: ArchiveReader, entry: Entry, done: VerifiedArchive) -> Iterator[Flaw]:
    """Yield what is wrong with a fragment: each object's digest and contents, and whether its units fit its records."""
    log_name, idx_name = entry.name.log, entry.name.idx
    log = idx = None
    try:
        log = _get(reader, log_name, entry.log_bytes, entry.log_sha256, done)
    except CorruptObject as error:
        yield Flaw(log_name, error.reason)
    try:
        idx = decode_index(_get(reader, idx_name, entry.idx_bytes, entry.idx_sha256, done), idx_name)
        if (idx.head.start, idx.head.end, idx.head.keys) != (entry.start, entry.end, entry.keys):
            raise CorruptObject(idx_name, "it is the index of another fragment than its entry says")
    except CorruptObject as error:
        yield Flaw(idx_name, error.reason)
        return
    if log is None:
        return
    try:
        starts, raws = zip(*pieces_in(log, idx, log_name), strict=True)
    except CorruptObject as error:
        yield Flaw(log_name, error.reason)
        return
    raw = np.frombuffer(b"".join(raws), np.uint8)
    lengths = np.array([len(piece) for piece in raws], np.int64)
    begins, before = np.array(starts, np.int64), np.cumsum(lengths) - lengths
    units = np.frombuffer(idx.units, _UNITS)
    rows = np.searchsorted(begins, units["physical_offset"].astype(np.int64), "right") - 1
    at = units["physical_offset"] - begins[rows] + before[rows]
    fits = (rows >= 0) & (at >= 0) & (at + units["size"] <= len(raw)) & (at - before[rows] < lengths[rows])
    heads = raw[np.minimum(at, max(len(raw) - 8, 0))[:, None] + np.arange(8)].astype(np.uint8)
    sizes, magics = np.ascontiguousarray(heads).view(">i4").T
    fits &= (sizes == units["size"]) & ((magics == MAGIC_V1) | (magics == MAGIC_V2))
    if not fits.all():
        wrong = int(units["physical_offset"][int(fits.argmin())])
        yield Flaw(idx_name, f"it has a unit for physical offset {wrong:,}, where no such record begins")
    done.fragments += 1
    done.records += entry.records
    done.raw_bytes += entry.raw_bytes


def _reason(error: ArchiveError) -> str:
    return error.reason if isinstance(error, CorruptObject) else str(error)
