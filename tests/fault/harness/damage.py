"""Damage to a stopped broker's files: which messages it touches, and whether the next start must be refused.

The rows of timers have no checksum, so they are only truncated or removed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flintmq.broker.store.files.file_system import Files
from flintmq.broker.store.files.json_table import SHAPE_ERRORS, parse_table
from flintmq.broker.store.tables.checkpoint import StoreCheckpoint
from flintmq.protocol.storage.layout import MAGIC_BLANK, RECORD
from flintmq.protocol.storage.record import decode_record

from .ledger import Place, number_in

KINDS = ("log",) * 5 + ("consumequeue", "index", "checkpoint", "table", "table", "timers")
"""Kinds of files to damage, repeated by weight."""
RECREATED = frozenset({"flintmq/timers/cursor.json", "flintmq/quarantine/index.json"})
"""Tables that a start creates from scratch if neither they nor their ``.bak`` can be read; it refuses to start without
any other table."""
PARTS = ("body", "topic", "properties", "blank")
"""Parts of a record besides the fields of its head."""
JUNK_BYTES = 64
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that damage touched. ``number``: its number in the ledger, -1 if it has none."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    number: int


@dataclass(frozen=True, slots=True)
class Damage:
    """One act of damage. ``path``: the file, relative to the store; ``before``: the original bytes, by path."""

    path: str
    what: str
    before: dict[str, bytes]
    hits: tuple[Hit, ...] = ()
    refused: bool = False
    """The next start must be refused."""
    falls_back: bool = False
    """The next start uses the table's version before its last change."""

    def undo(self, store: Path) -> None:
        """Restore the original bytes."""
        for name, blob in self.before.items():
            (store / name).write_bytes(blob)


@dataclass(frozen=True, slots=True)
class Placed:
    """A record of the log, or the blank at the end of a file (no ``hit``). ``parts``: begin and end of each part, in
    the file."""

    begin: int
    end: int
    hit: Hit | None
    parts: dict[str, tuple[int, int]]


def damage(store: Path, source: random.Random, kind: str = "") -> Damage | None:
    """Damage one file of the stopped store, of this ``kind`` if given. Return None if there is no suitable file."""
    kind = kind or source.choice(KINDS)
    if kind == "log":
        return _damage_log(store, source)
    if kind == "table":
        return _damage_table(store, source)
    patterns = {"consumequeue": "consumequeue/*/*/0*", "index": "index/*", "timers": "flintmq/timers/0*"}
    paths = sorted(store.glob(patterns.get(kind, kind)))
    if not paths:
        return None
    path = source.choice(paths)
    name, before = path.relative_to(store).as_posix(), path.read_bytes()
    shape = source.choice(("cut", "removed") if kind == "timers" else ("bit", "junk", "page", "cut", "removed"))
    if shape == "removed":
        path.unlink()
    else:
        path.write_bytes(_changed(before, shape, source.randrange(len(before)), source))
    return Damage(name, shape, {name: before})


def _changed(blob: bytes, shape: str, at: int, source: random.Random, end: int | None = None) -> bytes:
    """Return the bytes with damage at ``at``, and none at or after ``end``."""
    end = len(blob) if end is None else end
    match shape:
        case "bit":
            return blob[:at] + bytes([blob[at] ^ 1 << source.randrange(8)]) + blob[at + 1 :]
        case "junk":
            stop = min(at + JUNK_BYTES, end)
            return blob[:at] + source.randbytes(stop - at) + blob[stop:]
        case "page":
            begin = at // PAGE_BYTES * PAGE_BYTES
            stop = min(begin + PAGE_BYTES, end)
            return blob[:begin] + bytes(stop - begin) + blob[stop:]
        case _:
            return blob[:at]


def lost_messages(store: Path) -> frozenset[Place]:
    """Return the messages that the broker reports as lost to damage."""
    path = store / "flintmq" / "quarantine" / "index.json"
    holes = json.loads(path.read_text())["holes"] if path.exists() else ()
    return frozenset(
        (lost["topic"], lost["queue"], queue_offset)
        for hole in holes
        for lost in hole["lost"]
        for queue_offset in range(lost["queueOffset"], lost["queueOffset"] + lost["count"])
    )


# The log.


def _damage_log(store: Path, source: random.Random) -> Damage | None:
    """Damage bytes below the checkpoint's mark only: after it, the first bad record is the end of the log, as after any
    crash."""
    checkpoint = StoreCheckpoint(Files(), store / "checkpoint")
    checkpoint.load()
    if checkpoint.mark is None:
        return None
    path = source.choice(sorted((store / "commitlog").iterdir()))
    before, begin = path.read_bytes(), int(path.name)
    placed = list(_placed(before))
    end = min(checkpoint.mark.flushed_offset - begin, len(before))
    flushed = [each for each in placed if each.end <= end]
    if not flushed:
        return None
    part = source.choice((*RECORD.at, *PARTS))
    candidates = [each for each in flushed if each.parts.get(part, (0, 0)) != (0, 0)]
    if not candidates:
        return None
    first, stop = source.choice(candidates).parts[part]
    shape = source.choice(
        ("bit", "bit", "junk", "page", "cut") if flushed == placed else ("bit", "bit", "junk", "page")
    )
    at = source.randrange(first, stop)
    after = _changed(before, shape, at, source, flushed[-1].end)
    path.write_bytes(after)
    padded = after.ljust(len(before), b"\0")
    touched = [each for each in placed if before[each.begin : each.end] != padded[each.begin : each.end]]
    hits = tuple(each.hit for each in touched if each.hit is not None)
    name = path.relative_to(store).as_posix()
    return Damage(name, f"{shape} at {at} ({part}): {len(hits)} messages", {name: before}, hits)


def _placed(blob: bytes) -> Iterator[Placed]:
    """Yield the records of a log file, from its beginning to the first position that holds none."""
    at = 0
    while at + 8 <= len(blob):
        size = int.from_bytes(blob[at : at + 4], "big", signed=True)
        magic = int.from_bytes(blob[at + 4 : at + 8], "big", signed=True)
        if magic == MAGIC_BLANK:
            yield Placed(at, at + 8, None, {"blank": (at, at + 8)})
            return
        if size <= 0:
            return
        record = decode_record(blob, at)
        hit = Hit(
            record.topic.decode(), record.queue_id, record.queue_offset, record.physical_offset, number_in(record.body)
        )
        ends = at + size
        properties = ends - len(record.properties)
        topic = properties - 2 - len(record.topic)
        body = topic - 1 - len(record.body)
        parts = {"body": (body, topic - 1), "topic": (topic - 1, properties - 2), "properties": (properties - 2, ends)}
        for field in RECORD.fields:
            parts[field.name] = at + RECORD.at[field.name], at + RECORD.at[field.name] + field.width
        yield Placed(at, ends, hit, parts)
        at = ends


# Tables.


def _damage_table(store: Path, source: random.Random) -> Damage | None:
    """Damage a table, its ``.bak``, or both."""
    folders = ("config", "flintmq", "flintmq/timers", "flintmq/quarantine")
    tables = sorted(path for folder in folders for path in (store / folder).glob("*.json"))
    if not tables:
        return None
    table = source.choice(tables)
    pair = [path for path in (table, table.with_name(table.name + ".bak")) if path.exists()]
    chosen = source.choice([pair[:1], pair[-1:], pair])
    fallen = _readable(table)
    before = {}
    shapes = []
    for path in chosen:
        blob = path.read_bytes()
        before[path.relative_to(store).as_posix()] = blob
        shapes.append(source.choice(("bit", "junk", "page", "cut")))
        path.write_bytes(_changed(blob, shapes[-1], source.randrange(1, len(blob)), source))
    name = table.relative_to(store).as_posix()
    readable = [_readable(path) for path in pair]
    return Damage(
        name,
        f"{', '.join(shapes)} of {len(chosen)} of {len(pair)}",
        before,
        refused=name not in RECREATED and not any(readable),
        falls_back=fallen and not readable[0] and any(readable),
    )


def _readable(path: Path) -> bool:
    try:
        parse_table(path.read_text(encoding="utf-8"))
    except SHAPE_ERRORS:
        return False
    return True
