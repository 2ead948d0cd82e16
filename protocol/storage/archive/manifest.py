"""The manifest: which fragments the archive has, in the order of the log. Encode and decode.

A version of the manifest is an object that is created once and never changed; whoever creates version N + 1 has taken
part in the archive's history, everybody else has not. It holds the newest entries; older ones are in groups of
``GROUP_ENTRIES``, which the version lists. ``manifest/LATEST`` holds a copy of the newest version, or of the one before
it: a reader asks for it and for the version after it.

Ranges of the log that no entry covers are gaps; each is listed with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ...checked_json import CHECKSUM_KEY, encode_checked, take_checksum
from .checked import Bytes, known_format, pack_checked, unpack_checked
from .errors import CorruptObject
from .fragment import FragmentName
from .keys import HASH_MAX
from .objects import IDENTITY as IDENTITY

FORMAT = 1
GROUP_ENTRIES = 1_024
"""Entries of a group."""
LATEST = "manifest/LATEST"
VERSIONS = "manifest/"
GROUPS = "groups/"
KEY_RUNS = "keys/"
_MAGIC = b"FLINTMFT"
_GROUP_MAGIC = b"FLINTGRP"


def version_name(version: int) -> str:
    """Return the name of a version of the manifest."""
    return f"{VERSIONS}{version:020d}.mft"


# ---- archive.json ----


@dataclass(frozen=True, slots=True)
class Identity:
    """Content of ``archive.json``: whose history this is.

    ``store_id``: of the store that the archive continues; ``set``: name of its replica set, or empty;
    ``file_bytes``: size of its CommitLog files; ``created_ms``: ms since 1970 UTC.
    """

    store_id: str
    set: str
    file_bytes: int
    created_ms: int


def encode_identity(identity: Identity) -> bytes:
    """Return the bytes of ``archive.json``: JSON, with a checksum as its last key."""
    values = {each.name: getattr(identity, each.name) for each in fields(identity)}
    return encode_checked({"format": FORMAT, **values}).encode()


def decode_identity(blob: Bytes) -> Identity:
    """Return the archive's identity. Raises ``CorruptObject`` or ``UnknownFormat``."""
    try:
        values = json.loads(bytes(blob))
        if not isinstance(values, dict) or CHECKSUM_KEY not in values:
            raise ValueError(f"it is not a map with {CHECKSUM_KEY}")
        take_checksum(values)
    except ValueError as error:
        raise CorruptObject(IDENTITY, str(error)) from None
    with known_format(IDENTITY):
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        return Identity(*(values[each.name] for each in fields(Identity)))


# ---- entries ----


class Entry(NamedTuple):
    """A fragment, as the manifest lists it.

    ``start``, ``end``, ``epoch``, ``rand``: see ``FragmentName``; ``raw_bytes``: bytes of the log in it; ``log_bytes``,
    ``idx_bytes``, ``log_sha256``, ``idx_sha256``: sizes and digests of its two objects; ``join_crc``: CRC-32 of its
    last ``JOIN_BYTES`` of the log, or of all if it has fewer; ``first_ms``, ``last_ms``: store times of its first and
    its last message, ms since 1970 UTC; ``records``, ``keys``: how many there are; ``topics``: its topics as a bitmap
    over the list beside the entries, bit 0 of byte 0 first.
    """

    start: int
    end: int
    epoch: int
    rand: str
    raw_bytes: int
    log_bytes: int
    idx_bytes: int
    log_sha256: bytes
    idx_sha256: bytes
    join_crc: int
    first_ms: int
    last_ms: int
    records: int
    keys: int
    topics: bytes

    @property
    def name(self) -> FragmentName:
        """Name of the fragment."""
        return FragmentName(self.epoch, self.start, self.end, self.rand)


JOIN_BYTES = 64 * 1024
"""Bytes at a fragment's end by which a writer finds out whether its log is the one that was archived."""


def topic_bits(names: Sequence[str], table: list[str]) -> bytes:
    """Return the bitmap of topics over ``table``, to which unknown ones are added."""
    bits = 0
    for name in names:
        if name not in table:
            table.append(name)
        bits |= 1 << table.index(name)
    return bits.to_bytes(-(-len(table) // 8), "little")


def topics_in(bits: bytes, table: Sequence[str]) -> list[str]:
    """Return the topics of a bitmap."""
    return [
        name for number, name in enumerate(table) if number // 8 < len(bits) and bits[number // 8] >> number % 8 & 1
    ]


class Group(NamedTuple):
    """A group of older entries, as the manifest lists it; the sums and bounds are those of its entries."""

    name: str
    size: int
    sha256: bytes
    entries: int
    start: int
    end: int
    raw_bytes: int
    log_bytes: int
    idx_bytes: int
    first_ms: int
    last_ms: int
    records: int


class KeyRun(NamedTuple):
    """A merged run of keys, as the manifest lists it. It covers the fragments in ``[start, end)``.

    A long one is in several objects, each with the hashes from ``first_hash`` to ``last_hash``.
    """

    name: str
    level: int
    start: int
    end: int
    keys: int
    first_ms: int
    last_ms: int
    first_hash: int = 0
    last_hash: int = HASH_MAX


class ArchiveGap(NamedTuple):
    """A range of the log that the archive lacks, and why: for a person."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """A version of the manifest.

    ``epoch``: that of its writer; ``writer``: random id of the writing process; ``created_ms``: ms since 1970 UTC;
    ``topics``: list that the bitmaps of ``entries`` number; ``start``: physical offset at which the archive begins.
    """

    version: int
    store_id: str
    epoch: int
    writer: str
    created_ms: int
    start: int
    topics: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    runs: list[KeyRun] = field(default_factory=list)
    gaps: list[ArchiveGap] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the object."""
        return version_name(self.version)

    @property
    def end(self) -> int:
        """Physical offset below which the log is archived, or missing from the archive for good."""
        newest: tuple[Group | Entry | ArchiveGap, ...] = (*self.groups[-1:], *self.entries[-1:], *self.gaps[-1:])
        return max((each.end for each in newest), default=self.start)

    def totals(self) -> tuple[int, int, int, int]:
        """Return the fragments, the bytes of the log in them, the bytes of their objects, and their records."""
        listed: tuple[Group | Entry, ...] = (*self.groups, *self.entries)
        return (
            sum(group.entries for group in self.groups) + len(self.entries),
            sum(each.raw_bytes for each in listed),
            sum(each.log_bytes + each.idx_bytes for each in listed),
            sum(each.records for each in listed),
        )

    def next(self, **changes: Any) -> ArchiveManifest:
        """Return the version after this one, with these changes."""
        return replace(self, version=self.version + 1, **changes)


_LISTS: dict[str, Any] = {"groups": Group, "entries": Entry, "runs": KeyRun, "gaps": ArchiveGap}


def encode_manifest(manifest: ArchiveManifest) -> bytes:
    """Return the bytes of a version: a map of ``checked``, with the magic ``FLINTMFT``."""
    values = {each.name: getattr(manifest, each.name) for each in fields(manifest)}
    return pack_checked(_MAGIC, {"format": FORMAT, **values})


def decode_manifest(blob: Bytes, name: str) -> ArchiveManifest:
    """Return a version. Raises ``CorruptObject`` or ``UnknownFormat``."""
    values = unpack_checked(blob, _MAGIC, name)
    with known_format(name):
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        held = {each.name: values[each.name] for each in fields(ArchiveManifest)}
        held |= {part: [kind(*row) for row in held[part]] for part, kind in _LISTS.items()}
        return ArchiveManifest(**held)


# ---- groups ----


def group_name(entries: Sequence[Entry], rand: str) -> str:
    """Return the name of the group of these entries; ``rand``: 16 random hex digits."""
    return f"{GROUPS}{entries[0].start:020d}-{entries[-1].end:020d}-{rand}.mft"


def encode_group(entries: Sequence[Entry], topics: Sequence[str]) -> bytes:
    """Return the bytes of a group: a map of ``checked``, with the magic ``FLINTGRP``. ``topics``: the bitmaps' list."""
    return pack_checked(_GROUP_MAGIC, {"format": FORMAT, "topics": list(topics), "entries": list(entries)})


def decode_group(blob: Bytes, name: str) -> tuple[list[Entry], list[str]]:
    """Return the entries of a group, and the list of topics that their bitmaps number.

    Raises ``CorruptObject`` or ``UnknownFormat``.
    """
    values = unpack_checked(blob, _GROUP_MAGIC, name)
    with known_format(name):
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        return [Entry(*row) for row in values["entries"]], list(values["topics"])


def overlapping(entries: Sequence[Entry], begin: int, end: int) -> Iterator[Entry]:
    """Yield the entries that have a part of ``[begin, end)``."""
    return (entry for entry in entries if entry.start < end and entry.end > begin)


def find_newest(get: Callable[[str], bytes], names: Callable[[], Iterable[str]]) -> ArchiveManifest | None:
    """Return the newest version of the manifest; None if there is none yet.

    ``get``: returns the content of an object, raises ``KeyError`` if there is none; ``names``: yields the names of all
    versions, asked only if ``LATEST`` is missing or damaged. Two requests, if no writer is at work. Raises
    ``CorruptObject`` or ``UnknownFormat``, and what the functions raise.
    """
    newest: ArchiveManifest | None = None
    try:
        newest = decode_manifest(get(LATEST), LATEST)
    except (KeyError, CorruptObject):
        newest = _newest_listed(get, names())
    while newest is not None:
        # A writer that was killed has written a version and not its copy; one that was paused has put an old copy over
        # a newer one.
        name = version_name(newest.version + 1)
        try:
            newest = decode_manifest(get(name), name)
        except KeyError:
            break
    return newest


def _newest_listed(get: Callable[[str], bytes], names: Iterable[str]) -> ArchiveManifest | None:
    """Return the newest version in the list; None if it has none."""
    name = max((each for each in names if each != LATEST), default="")
    return decode_manifest(get(name), name) if name else None
