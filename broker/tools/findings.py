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
    f"{_RESTORE}. Without one, `flintmq-broker repair STORE` contains the damage: what it hit is lost, all else goes on"
)
_REBUILD = "`flintmq-broker rebuild STORE` makes queues and index anew from the log"

_BACK_UP_AGAIN = "while the store is there, `flintmq-broker backup STORE FOLDER` into a new folder makes another backup"

KINDS: dict[str, Kind] = {
    # The log.
    "missing-file": Kind(
        "CommitLog files are missing",
        "the messages in them are gone, and no broker starts on such a log",
        f"{_RESTORE}. Without one, `flintmq-broker repair STORE --accept-missing FILE --apply` gives up what was in it",
    ),
    "file-size": Kind(
        "files of the wrong size",
        "a broker takes it for another setting, or for a file that was cut short, and does not start or fills it anew",
        f"of the CommitLog: {_RESTORE}. Of queues and index: {_REBUILD}",
    ),
    "foreign-file": Kind(
        "files that do not belong there",
        "RocketMQ does not start on a folder with them, and a file of another log would be read as this one",
        "move them away",
    ),
    "record": Kind(
        "stretches of the log without a readable record",
        "the messages in them are lost; a start that checks the file contains them, or, where nothing proves that the "
        "log goes on behind them, cuts it there",
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
        "searches by time, retention and recovery go by them and may stop at the wrong message",
        "where a clock was set back, nothing; else restore the file from a backup",
    ),
    "queue-offset": Kind(
        "queue offsets that do not follow each other",
        "messages are missing in front of the record, or it lies about its place",
        _REPAIR,
    ),
    "topic": Kind("records whose topic cannot be one", "no queue can be made for them", _REPAIR),
    "behind-end": Kind(
        "bytes behind the end of the log",
        "after an orderly stop nothing lies there; the broker refuses to start if it looks like a file of the log",
        "restore the file from a backup, or move it away if it is no file of this log",
    ),
    # Queues.
    "unit-missing": Kind("messages without a ConsumeQueue unit", "no consumer gets them", _REBUILD),
    "unit-wrong": Kind(
        "ConsumeQueue units that differ from their message", "consumers get an error, or miss it", _REBUILD
    ),
    "unit-stray": Kind("ConsumeQueue units that point at no message of theirs", "pulls fail there", _REBUILD),
    "unit-order": Kind("ConsumeQueues with holes or in disorder", "searches in them go astray", _REBUILD),
    # The index.
    "index-header": Kind("index files whose header is wrong", "queries pass over the file, or go astray", _REBUILD),
    "index-chain": Kind("broken chains in index files", "queries miss messages that hang behind the break", _REBUILD),
    "index-missing": Kind("keys that are not in the index", "queries do not find these messages", _REBUILD),
    "index-wrong": Kind("index entries that differ from their message", "queries do not find it", _REBUILD),
    "index-stray": Kind("index entries of no message", "queries look at the wrong place, and pass over it", _REBUILD),
    # The rest.
    "table": Kind(
        "tables that cannot be read",
        "the broker takes the `.bak`; where that is broken too, it does not start",
        "restore the file from its .bak or a backup",
    ),
    "checkpoint": Kind(
        "a checkpoint that cannot be right",
        "a start goes by what the files prove, and checks more of the log",
        "where the log is sound, nothing: the next start writes it anew",
    ),
    "consumer-offset": Kind(
        "consumer offsets behind the end of their queue",
        "the group gets nothing, or an error, until the queue has grown so far",
        "reset the group's offset",
    ),
    "queue-end": Kind(
        "queues that end before where they ended",
        "their files were lost or cut short",
        f"{_REBUILD}; a broker's start does so too",
    ),
    # A backup.
    "backup-manifest": Kind(
        "a manifest that does not describe one backup", "files may be missing that it does not name", _BACK_UP_AGAIN
    ),
    "backup-file": Kind(
        "files that are not what was backed up",
        "`restore` refuses the backup there",
        f"copy the file again from another copy of this backup. Without one: {_BACK_UP_AGAIN}",
    ),
    "backup-record": Kind(
        "stretches of the backup's log without a sound record",
        "the messages in them are lost to whoever restores it",
        "where the file's SHA-256 is right, the store had the damage when it was backed up: `flintmq-broker verify "
        "STORE` says so, and a broker that starts on what `restore` makes contains it",
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
        """Add one finding."""
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

    def extend(self, others: Findings, prefix: str = "") -> None:
        """Add the findings of another object whose kinds begin with ``prefix``."""
        with self._lock:
            for kind, count in others.counts.items():
                if not kind.startswith(prefix):
                    continue
                self.counts[kind] = self.counts.get(kind, 0) + count
                shown = self._shown.setdefault(kind, [])
                shown += others._shown.get(kind, [])[: self.shown_max - len(shown)]
        for text in others.notes:
            self.note(text)

    @property
    def total(self) -> int:
        """Total number of findings."""
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[Finding]:
        """Yield the kept findings, in the order of ``KINDS``, then by file and position."""
        for kind in KINDS:
            yield from sorted(self._shown.get(kind, []))
