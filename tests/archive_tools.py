"""Archives made of any records, by the format alone: any size of fragments, groups of entries, merged runs, gaps."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from flintmq.protocol.storage.archive.fragment import Compression, FragmentName, QueueUnits, encode_frames, encode_index
from flintmq.protocol.storage.archive.keys import Entries, encode_run, key_hash, sorted_entries
from flintmq.protocol.storage.archive.manifest import (
    IDENTITY,
    JOIN_BYTES,
    LATEST,
    ArchiveGap,
    ArchiveManifest,
    Entry,
    Group,
    Identity,
    KeyRun,
    encode_group,
    encode_identity,
    encode_manifest,
    group_name,
    topic_bits,
)
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.javahash import tags_code
from flintmq.protocol.storage.layout import UNIT
from flintmq.protocol.storage.record import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Record,
    encode_properties,
    split_keys,
)


@dataclass
class MadeArchive:
    """What was put into an archive. ``cuts``: the records of each fragment; ``keys``: the entries of its run."""

    objects: Objects
    manifest: ArchiveManifest
    cuts: list[list[Record]] = field(default_factory=list)
    keys: list[Entries] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All records, in the log's order."""
        return [record for cut in self.cuts for record in cut]


def placed(records: Iterable[Record], *, start: int = 0, hole_after: int = 0) -> list[Record]:
    """Return records with their physical offsets, one after the other. After each ``hole_after``-th one the log has a
    hole, as at the end of a file."""
    found = []
    for number, record in enumerate(records, 1):
        found.append(dataclasses.replace(record, physical_offset=start))
        start += len(record.encode()) + (100 if hole_after and number % hole_after == 0 else 0)
    return found


def orders(count: int, *, topics: Sequence[bytes] = (b"orders", b"payments"), size: int = 300) -> list[Record]:
    """Return records of topics in turns, stored a second apart, each with a key of its own and one of ten others."""
    return [
        Record(
            topics[number % len(topics)],
            b"%08d" % number + bytes(size),
            encode_properties({"KEYS": f"k{number} shared-{number % 10}", "UNIQ_KEY": f"id-{number}"}),
            queue_id=number // len(topics) % 2,
            queue_offset=number // len(topics) // 2,
            store_timestamp=1_700_000_000_000 + 1_000 * number,
        )
        for number in range(count)
    ]


def make_archive(
    objects: Objects,
    records: Sequence[Record],
    *,
    per_fragment: int = 10,
    per_group: int = 0,
    merged: int = 0,
    compression: Compression = "zstd",
    gaps: Sequence[ArchiveGap] = (),
) -> MadeArchive:
    """Write an archive of records that have their physical offsets.

    ``per_fragment``: records of a fragment; ``per_group``: entries of a group, 0 for no groups; ``merged``: the first
    so many fragments have one merged run of keys.
    """
    topics: list[str] = []
    made = MadeArchive(objects, ArchiveManifest(1, "store", 0, "test", 1, records[0].physical_offset if records else 0))
    entries = []
    cuts = [list(records[at : at + per_fragment]) for at in range(0, len(records), per_fragment)]
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        last = cut[-1]
        end = last.physical_offset + len(last.encode()) if following is None else following[0].physical_offset
        if any(gap.start < end <= gap.end for gap in gaps):
            end = last.physical_offset + len(last.encode())
        entries.append(_write_fragment(made, cut, end, topics, compression))
    runs = [_write_run(made, entries[:merged])] if merged else []
    groups, kept = [], entries
    while per_group and len(kept) >= per_group:
        groups.append(_write_group(objects, kept[:per_group], topics))
        kept = kept[per_group:]
    made.manifest = made.manifest.next(topics=topics, groups=groups, entries=kept, runs=runs, gaps=list(gaps))
    objects.create(IDENTITY, encode_identity(Identity("store", "", 1 << 20, 1)))
    publish(objects, made.manifest)
    return made


def publish(objects: Objects, manifest: ArchiveManifest) -> None:
    """Write a version of the manifest, and the copy of it."""
    objects.create(manifest.name, encode_manifest(manifest))
    objects.put(LATEST, encode_manifest(manifest))


def keys_of(record: Record) -> list[str]:
    """Return UNIQ_KEY and the KEYS of a record."""
    properties = record.property_map()
    unique = properties.get(PROPERTY_UNIQ_KEY)
    return [*([unique] if unique else []), *split_keys(properties.get(PROPERTY_KEYS))]


def pieces_of(cut: Sequence[Record]) -> list[tuple[int, bytes]]:
    """Return the adjacent records of a cut as pieces of the log."""
    pieces: list[tuple[int, bytes]] = []
    for record in cut:
        blob = record.encode()
        if pieces and pieces[-1][0] + len(pieces[-1][1]) == record.physical_offset:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + blob
        else:
            pieces.append((record.physical_offset, blob))
    return pieces


def _write_fragment(
    made: MadeArchive, cut: list[Record], end: int, topics: list[str], compression: Compression
) -> Entry:
    pieces = pieces_of(cut)
    log, frames = encode_frames(pieces, compression)
    pairs = [
        (key_hash(record.topic.decode(), key), record.physical_offset) for record in cut for key in keys_of(record)
    ]
    keys = sorted_entries(
        np.array([pair[0] for pair in pairs], np.uint64), np.array([pair[1] for pair in pairs], np.int64)
    )
    queues = _queues_of(cut)
    name = FragmentName(0, cut[0].physical_offset, end, f"{len(made.cuts):016x}")
    idx = encode_index(name.start, end, compression, frames, queues, keys, len(cut), [])
    made.objects.create(name.log, log)
    made.objects.create(name.idx, idx)
    made.cuts.append(cut)
    made.keys.append(keys)
    raw = b"".join(blob for _, blob in pieces)
    return Entry(
        *(name.start, end, 0, name.rand, len(raw), len(log), len(idx)),
        *(hashlib.sha256(log).digest(), hashlib.sha256(idx).digest(), zlib.crc32(raw[-JOIN_BYTES:])),
        *(cut[0].store_timestamp, cut[-1].store_timestamp, len(cut), len(keys)),
        topic_bits(sorted({each.topic for each in queues}), topics),
    )


def _queues_of(cut: list[Record]) -> list[QueueUnits]:
    by_queue: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in cut:
        by_queue[record.topic.decode(), record.queue_id].append(record)
    found = []
    for (topic, queue_id), held in sorted(by_queue.items()):
        breaks = [at for at, (one, next_) in enumerate(pairwise(held), 1) if next_.queue_offset != one.queue_offset + 1]
        for begin, end in pairwise([0, *breaks, len(held)]):
            run = held[begin:end]
            found.append(
                QueueUnits(
                    topic,
                    queue_id,
                    run[0].queue_offset,
                    b"".join(map(_unit, run)),
                    run[0].store_timestamp,
                    run[-1].store_timestamp,
                )
            )
    return found


def _unit(record: Record) -> bytes:
    return UNIT.pack(record.physical_offset, len(record.encode()), tags_code(record.property_map().get(PROPERTY_TAGS)))


def _write_run(made: MadeArchive, entries: Sequence[Entry]) -> KeyRun:
    held = np.concatenate(made.keys[: len(entries)])
    merged = sorted_entries(held["hash"].astype(np.uint64), held["physical_offset"].astype(np.int64))
    first, last = entries[0], entries[-1]
    run = KeyRun("keys/1/a.run", 1, first.start, last.end, len(merged), first.first_ms, last.last_ms)
    made.objects.create(run.name, encode_run(merged))
    return run


def _write_group(objects: Objects, entries: list[Entry], topics: list[str]) -> Group:
    blob = encode_group(entries, topics)
    name = group_name(entries, "0" * 16)
    objects.create(name, blob)
    return Group(
        *(name, len(blob), hashlib.sha256(blob).digest(), len(entries), entries[0].start, entries[-1].end),
        *(sum(each.raw_bytes for each in entries), sum(each.log_bytes for each in entries)),
        *(sum(each.idx_bytes for each in entries), entries[0].first_ms, entries[-1].last_ms),
        sum(each.records for each in entries),
    )
