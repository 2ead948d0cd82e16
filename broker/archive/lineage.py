"""One archive as its writer knows it: the newest version of its manifest, and how it is changed.

A version is created, never overwritten, so of two writers only one can continue; the other finds a version that it did
not write, and stops for good. The same holds for a store whose log is not the one that was archived.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...protocol.storage.archive.errors import ArchiveError
from ...protocol.storage.archive.fragment import FragmentName
from ...protocol.storage.archive.manifest import (
    GROUP_ENTRIES,
    IDENTITY,
    LATEST,
    VERSIONS,
    ArchiveGap,
    ArchiveManifest,
    Entry,
    Group,
    Identity,
    KeyRun,
    decode_group,
    decode_identity,
    decode_manifest,
    encode_group,
    encode_identity,
    encode_manifest,
    find_newest,
    group_name,
    topic_bits,
    topics_in,
)
from ...protocol.storage.archive.objects import ObjectExists, ObjectNotFound, Objects
from .cutter import CutFragment

log = logging.getLogger(__name__)


class ArchiveStopped(ArchiveError):
    """This broker must not write to the archive any more. A person has to decide; nothing was overwritten."""


class Diverged(ArchiveStopped):
    """The archive is not the history of this store's log."""


class OtherWriter(ArchiveStopped):
    """Another process writes to the archive."""


class ReadAgain(ArchiveError):
    """The manifest has changed since it was read, by this process itself: open the lineage again."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: ``store_id`` and ``set`` of the store, the ``epoch`` of its leadership, a random ``id`` of the
    process, and the size of the store's log files."""

    store_id: str
    set: str
    epoch: int
    id: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class NewFragment:
    """A fragment whose two objects are in the archive, for the manifest."""

    cut: CutFragment
    name: FragmentName
    log: bytearray
    idx: bytes
    keys: int

    def entry(self, topics: list[str]) -> Entry:
        """Return its entry. ``topics``: the manifest's list, which grows."""
        cut = self.cut
        return Entry(
            self.name.start,
            self.name.end,
            self.name.epoch,
            self.name.rand,
            cut.raw_bytes,
            len(self.log),
            len(self.idx),
            hashlib.sha256(self.log).digest(),
            hashlib.sha256(self.idx).digest(),
            cut.join_crc(),
            cut.first_ms,
            cut.last_ms,
            cut.records,
            self.keys,
            topic_bits(cut.topics, topics),
        )


def random_hex() -> str:
    """Return 16 random hex digits."""
    return os.urandom(8).hex()


@functools.cache
def process_id(pid: int) -> str:
    """Return a random id of the process with this number, the same in all openings of its store."""
    return random_hex()


class Lineage:
    """The archive at ``objects``. ``now_ms``: ms since 1970 UTC. One thread at a time."""

    def __init__(
        self, objects: Objects, writer: Writer, now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._objects = objects
        self._writer = writer
        self._now_ms = now_ms
        self.manifest: ArchiveManifest
        """The newest version."""
        self._proposed: ArchiveManifest | None = None
        """A version whose creation has not been answered yet. It must be decided before another one is proposed."""
        self._latest_version = 0
        """Version whose copy is known to be in ``LATEST``."""

    def open(self, log_start: int, log_end: int, cut: Callable[[int, int], CutFragment | None]) -> None:
        """Read the newest version, and check that this store continues it. Nothing is written but ``archive.json``.

        ``log_start``, ``log_end``: the range of the log that may be archived; ``cut``: cuts ``[start, end)`` of the log
        again. Raises ``ArchiveStopped`` if the store must not continue the archive.
        """
        self._check_identity()
        newest = self.newest()
        if newest is None:
            writer = self._writer
            newest = ArchiveManifest(0, writer.store_id, writer.epoch, writer.id, self._now_ms(), log_start)
        self.manifest = newest
        self._latest_version = 0  # unknown: the next change writes it
        if newest.epoch > self._writer.epoch:
            raise OtherWriter(
                f"version {newest.version} of the manifest in {self._objects.url} was written in epoch {newest.epoch}, "
                f"and this broker leads epoch {self._writer.epoch}: a later primary writes. This broker stops archiving"
            )
        if newest.end > log_end:
            raise Diverged(
                f"the archive {self._objects.url} reaches to physical offset {newest.end:,}, but the log of this store "
                f"ends at {log_end:,}: it was restored from a backup, or lost its end. Nothing was overwritten; set "
                "archive.url to a new prefix for this store, or restore the store from the archive"
            )
        self._check_join(log_start, cut)

    def _check_identity(self) -> None:
        writer = self._writer
        mine = Identity(writer.store_id, writer.set, writer.file_bytes, self._now_ms())
        try:
            found = decode_identity(self._objects.get(IDENTITY))
        except ObjectNotFound:
            try:
                self._objects.create(IDENTITY, encode_identity(mine))
                found = mine
            except ObjectExists:
                found = decode_identity(self._objects.get(IDENTITY))
        if found.store_id != writer.store_id:
            raise Diverged(
                f"{self._objects.url} is the archive of another store ({found.store_id}"
                f"{f', set {found.set}' if found.set else ''}), and this one is {writer.store_id}. Nothing was "
                "overwritten; set archive.url to a prefix that only this store uses"
            )

    def _check_join(self, log_start: int, cut: Callable[[int, int], CutFragment | None]) -> None:
        """Compare the end of the archive with the log, as far as the log still has it."""
        last = self.last_entry()
        if last is None or last.start < log_start:
            return
        again = cut(last.start, last.end)
        if again is None or again.end != last.end or again.join_crc() != last.join_crc:
            raise Diverged(
                f"the archive {self._objects.url} has other records than this store before physical offset "
                f"{last.end:,}: the log was cut and written again after it had been archived. Nothing was overwritten; "
                "set archive.url to a new prefix for this store"
            )

    def last_entry(self) -> Entry | None:
        """Return the newest entry; None if nothing is archived yet."""
        if self.manifest.entries:
            return self.manifest.entries[-1]
        if self.manifest.groups:
            entries, _ = decode_group(self._get(self.manifest.groups[-1].name), self.manifest.groups[-1].name)
            return entries[-1]
        return None

    def newest(self) -> ArchiveManifest | None:
        """Return the newest version as it is in the bucket, whoever wrote it; None if there is none. Any thread."""
        return find_newest(self._get, lambda: (each.name for each in self._objects.list(VERSIONS.rstrip("/"))))

    def _get(self, name: str) -> bytes:
        try:
            return self._objects.get(name)
        except ObjectNotFound as error:
            raise KeyError(name) from error

    # ---- changes

    def settle(self) -> None:
        """Go on with a change whose request failed. Raises as ``_commit`` does."""
        self._decide()

    def add(self, fragments: Sequence[NewFragment]) -> None:
        """Have the manifest list fragments that continue it. Raises as ``_commit`` does; call again if that may help,
        with the same fragments first."""
        self._decide()
        done = [each for each in fragments if each.name.end > self.manifest.end]
        if not done:
            return
        topics = list(self.manifest.topics)
        gaps = list(self.manifest.gaps)
        if done[0].name.start > self.manifest.end:
            reason = "retention deleted it before it was archived"
            gaps.append(ArchiveGap(self.manifest.end, done[0].name.start, reason))
        entries = [*self.manifest.entries, *(each.entry(topics) for each in done)]
        self._commit(self._next(topics=topics, entries=entries, gaps=gaps))

    def replace(self, old: Sequence[Entry], new: NewFragment) -> bool:
        """Have the manifest list one fragment instead of adjacent ones of its range; return False, with nothing
        changed, if it does not list these any more. Raises as ``_commit`` does."""
        self._decide()
        entries = self.manifest.entries
        at = entries.index(old[0]) if old[0] in entries else 0
        if entries[at : at + len(old)] != list(old):
            return False
        topics = list(self.manifest.topics)
        entries = [*entries[:at], new.entry(topics), *entries[at + len(old) :]]
        self._commit(self._next(topics=topics, entries=entries))
        return True

    def index(self, old: Sequence[KeyRun], new: Sequence[KeyRun]) -> bool:
        """Have the manifest list new runs of keys instead of old ones; return False, with nothing changed, if it does
        not list these any more. Raises as ``_commit`` does."""
        self._decide()
        runs = self.manifest.runs
        if not all(run in runs for run in old):
            return False
        kept = [run for run in runs if run not in old]
        self._commit(self._next(runs=sorted([*kept, *new], key=lambda run: (run.start, run.first_hash))))
        return True

    def seal(self) -> bool:
        """Move the oldest entries into a group if there are twice as many as a group has; return whether it did."""
        self._decide()
        manifest = self.manifest
        if len(manifest.entries) < 2 * GROUP_ENTRIES:
            return False
        old, rest = manifest.entries[:GROUP_ENTRIES], manifest.entries[GROUP_ENTRIES:]
        blob = encode_group(old, manifest.topics)
        name = group_name(old, random_hex())
        self._objects.create(name, blob)
        group = Group(
            name,
            len(blob),
            hashlib.sha256(blob).digest(),
            len(old),
            old[0].start,
            old[-1].end,
            sum(each.raw_bytes for each in old),
            sum(each.log_bytes for each in old),
            sum(each.idx_bytes for each in old),
            old[0].first_ms,
            old[-1].last_ms,
            sum(each.records for each in old),
        )
        # The list of topics begins anew, so that those that are gone do not stay in it.
        topics: list[str] = []
        rest = [each._replace(topics=topic_bits(topics_in(each.topics, manifest.topics), topics)) for each in rest]
        self._commit(self._next(groups=[*manifest.groups, group], entries=rest, topics=topics))
        return True

    def _next(self, **changes: object) -> ArchiveManifest:
        writer = self._writer
        return self.manifest.next(epoch=writer.epoch, writer=writer.id, created_ms=self._now_ms(), **changes)

    def _commit(self, proposed: ArchiveManifest) -> None:
        """Create the next version.

        Raises ``OtherWriter`` or ``ReadAgain``; and ``ObjectError`` if it is not known whether the version was created:
        then the next change first goes on with it.
        """
        self._proposed = proposed
        self._decide()

    def _decide(self) -> None:
        proposed = self._proposed
        if proposed is not None:
            try:
                self._objects.create(proposed.name, encode_manifest(proposed))
            except ObjectExists:
                self._proposed = None
                self._meet_other(proposed)
                return
            self._proposed = None
            self.manifest = proposed
        if self._latest_version != self.manifest.version and self.manifest.version:
            # Before the next version, so that a reader finds the newest with two requests.
            self._objects.put(LATEST, encode_manifest(self.manifest))
            self._latest_version = self.manifest.version

    def _meet_other(self, proposed: ArchiveManifest) -> None:
        """Find out who created the version that this process wanted to create."""
        found = decode_manifest(self._objects.get(proposed.name), proposed.name)
        if found.writer == self._writer.id:
            raise ReadAgain(f"{proposed.name} was written by an earlier opening of the store in this process")
        raise OtherWriter(
            f"version {proposed.version} of the manifest in {self._objects.url} was written by another process (epoch "
            f"{found.epoch}, writer {found.writer}) while this broker archived too: two brokers have archive.url set "
            "to it. This broker stops archiving; nothing was overwritten. Give each its own prefix"
        )
