"""Findings: everything that a tool found wrong in a store, with its place, its consequence and a remedy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage: its title, why it matters, and the remedy."""

    title: str
    why: str
    remedy: str


_RESTORE = "restore the file from a backup; no other file has these bytes"
_REPAIR = (
    f"{_RESTORE}. Without one, `flintmq-broker repair STORE` contains the damage: the damaged messages are lost, the "
    "rest stays"
)
_REBUILD = "`flintmq-broker rebuild STORE` rebuilds queues and index from the log"

_BACK_UP_AGAIN = "if the store still exists, `flintmq-broker backup STORE FOLDER` into a new folder makes another"

KINDS: dict[str, Kind] = {
    # The log.
    "missing-file": Kind(
        "CommitLog files are missing",
        "the messages in them are gone, and no broker starts on such a log",
        f"{_RESTORE}. Without one, `flintmq-broker repair STORE --accept-missing FILE --apply` gives up its messages",
    ),
    "file-size": Kind(
        "files of the wrong size",
        "a broker takes it for another setting, or for a file that was cut short: it does not start, or pads the file",
        f"of the CommitLog: {_RESTORE}. Of queues and index: {_REBUILD}",
    ),
    "foreign-file": Kind(
        "files that do not belong there",
        "RocketMQ does not start on a folder with them, and a broker would read a file of another log as this one",
        "move them away",
    ),
    "record": Kind(
        "ranges of the log without a readable record",
        "the messages in them are lost; a start that checks the file contains the range, or cuts the log there if "
        "nothing proves that it continues",
        _REPAIR,
    ),
    "body-crc": Kind(
        "bodies whose checksum is wrong",
        "a client that reads the message gets an error instead; a start that checks the file contains it",
        _REPAIR,
    ),
    "record-crc": Kind(
        "records whose checksum over all of them is wrong",
        "a field of the header or a property is not what was stored; a start that checks the file contains it",
        _REPAIR,
    ),
    "properties": Kind(
        "properties that cannot be read", "keys, tag and id of the message are not what was sent", _RESTORE
    ),
    "store-time": Kind(
        "store times that go back",
        "searches by time, retention and recovery use them and may stop at the wrong message",
        "nothing if a clock was set back; otherwise restore the file from a backup",
    ),
    "queue-offset": Kind(
        "queue offsets that do not follow each other",
        "messages are missing before the record, or its own queue offset is wrong",
        _REPAIR,
    ),
    "topic": Kind("records with an impossible topic", "no queue can be created for them", _REPAIR),
    "behind-end": Kind(
        "bytes after the end of the log",
        "after an orderly stop there are none; the broker refuses to start if they look like a file of the log",
        "restore the file from a backup, or move it away if it does not belong to this log",
    ),
    # Queues.
    "unit-missing": Kind("messages without a ConsumeQueue unit", "no consumer gets them", _REBUILD),
    "unit-wrong": Kind(
        "ConsumeQueue units that differ from their message", "consumers get an error, or miss it", _REBUILD
    ),
    "unit-stray": Kind("ConsumeQueue units without a message of their own", "pulls fail there", _REBUILD),
    "unit-order": Kind("ConsumeQueues with holes or in disorder", "searches in them find the wrong message", _REBUILD),
    # The index.
    "index-header": Kind(
        "index files whose header is wrong", "queries skip the file, or find the wrong messages", _REBUILD
    ),
    "index-chain": Kind("broken chains in index files", "queries miss the messages after the break", _REBUILD),
    "index-missing": Kind("keys that are not in the index", "queries do not find these messages", _REBUILD),
    "index-wrong": Kind("index entries that differ from their message", "queries do not find it", _REBUILD),
    "index-stray": Kind("index entries of no message", "queries look at the wrong place, and skip it", _REBUILD),
    # The rest.
    "table": Kind(
        "tables that cannot be read",
        "the broker reads the `.bak`; if that is damaged too, it does not start",
        "restore the file from its .bak or a backup",
    ),
    "checkpoint": Kind(
        "an impossible checkpoint",
        "a start relies on what the files prove, and checks more of the log",
        "nothing if the log is sound: the next start writes it again",
    ),
    "consumer-offset": Kind(
        "consumer offsets after the end of their queue",
        "the group gets nothing, or an error, until the queue has grown to that offset",
        "reset the group's offset",
    ),
    "queue-end": Kind(
        "queues that end before their recorded end",
        "their files were lost or cut short",
        f"{_REBUILD}; a broker's start does so too",
    ),
    # A backup.
    "backup-manifest": Kind(
        "a manifest that does not describe the backup", "files that it does not name may be missing", _BACK_UP_AGAIN
    ),
    "backup-file": Kind(
        "files that are not what was backed up",
        "`restore` stops at such a file",
        f"copy the file again from another copy of this backup. Without one: {_BACK_UP_AGAIN}",
    ),
    "backup-record": Kind(
        "ranges of the backup's log without a sound record",
        "a restored store does not have the messages in them",
        "if the file's SHA-256 is right, the store had the damage when it was backed up: `flintmq-broker verify "
        "STORE` reports it, and a broker that starts on the restored store contains it",
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One error. ``kind``: key of ``KINDS``; ``path``: the file; ``position``: byte in the file, -1: the whole file;
    ``physical_offset``: affected place in the log, -1: none; ``text``: description of the error."""

    kind: str
    path: Path
    position: int
    physical_offset: int
    text: str


@dataclass(slots=True)
class Findings:
    """Counts all findings, and keeps the first ``shown_max`` of each kind. Safe from threads."""

    shown_max: int = 1000
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Notes that are not errors."""
    _shown: dict[str, list[Finding]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, path: Path, text: str, *, position: int = -1, physical_offset: int = -1) -> None:
        assert kind in KINDS, kind
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            shown = self._shown.setdefault(kind, [])
            if len(shown) < self.shown_max:
                shown.append(Finding(kind, path, position, physical_offset, text))

    def note(self, text: str) -> None:
        """Add a note that is not an error."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def extend(self, others: Findings) -> None:
        """Add the findings of another object."""
        with self._lock:
            for kind, count in others.counts.items():
                self.counts[kind] = self.counts.get(kind, 0) + count
                shown = self._shown.setdefault(kind, [])
                shown += others._shown.get(kind, [])[: self.shown_max - len(shown)]
        for text in others.notes:
            self.note(text)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[Finding]:
        """Yield the kept findings, in the order of ``KINDS``, then by file and position."""
        for kind in KINDS:
            yield from sorted(self._shown.get(kind, []))
