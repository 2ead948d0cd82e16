"""The archive's writer on an open store, without a broker around it, and what the archive then holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flintmq.broker.archive.lineage import Writer, random_hex
from flintmq.broker.archive.uploader import ArchiveService
from flintmq.broker.config import ArchiveSection
from flintmq.broker.replication.member.tables import archived_tables
from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.archive.fragment import decode_index, parse_name, pieces_in
from flintmq.protocol.storage.archive.manifest import ArchiveManifest, Entry, decode_group, find_newest
from flintmq.protocol.storage.archive.objects import ObjectNotFound, Objects
from tests.group_tools import until
from tests.store_tools import dispatch

STORE_ID = "0123456789abcdef"
LOOK_S = 0.01
"""Interval at which the service looks for new records: shorter than a broker's, so that tests are short."""


def service_of(
    store: MessageStore, objects: Objects, *, writer: Writer | None = None, **settings: Any
) -> ArchiveService:
    """Return the service, not started. ``settings``: of ``[archive]``."""

    def fatal(name: str, error: BaseException) -> None:
        raise AssertionError(f"the service {name} failed") from error

    section = ArchiveSection(**{"url": objects.url, "interval_ms": 100, **settings})
    writer = writer or Writer(STORE_ID, "", 0, random_hex(), store.settings.commitlog_file_bytes)
    tables = archived_tables(store)
    service = ArchiveService(
        store, section, objects, writer, tables, lambda function, *arguments: function(*arguments), fatal
    )
    service.interval_seconds = LOOK_S
    return service


@contextmanager
def archiving(store: MessageStore, objects: Objects, **options: Any) -> Iterator[ArchiveService]:
    """Run the service in the ``with`` block."""
    service = service_of(store, objects, **options)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def archive(store: MessageStore, objects: Objects, **options: Any) -> None:
    """Archive everything that the store has."""
    store.flush()
    dispatch(store)
    with archiving(store, objects, **options) as service:
        until(lambda: has_all(store, service), "the archive")


def has_all(store: MessageStore, service: ArchiveService) -> bool:
    """Return whether everything is archived. Fails if the service has stopped."""
    assert service.alive
    assert service.state != "stopped", service.reason
    return service.archived_offset == store.acknowledged_offset


class WrittenArchive:
    """What an archive holds. Each reading checks everything that it reads."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.manifest = newest(objects)

    @property
    def entries(self) -> list[Entry]:
        """All entries, in order."""
        held = []
        for group in self.manifest.groups:
            blob = self.objects.get(group.name)
            assert hashlib.sha256(blob).digest() == group.sha256
            held += decode_group(blob, group.name)[0]
        return [*held, *self.manifest.entries]

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield (physical offset, bytes) of the archived log, in order."""
        for entry in self.entries:
            log, idx = self.objects.get(entry.name.log), self.objects.get(entry.name.idx)
            assert hashlib.sha256(log).digest() == entry.log_sha256
            assert hashlib.sha256(idx).digest() == entry.idx_sha256
            for at, raw in pieces_in(log, decode_index(idx, entry.name.idx), entry.name.log):
                yield at, bytes(raw)

    def orphans(self) -> set[str]:
        """Return the objects with records or indexes that the manifest does not name."""
        named = {name for entry in self.entries for name in (entry.name.log, entry.name.idx)}
        held = {each.name for each in self.objects.list("log")}
        assert named <= held
        assert all(parse_name(name) is not None for name in held)
        return held - named

    def assert_is(self, store: MessageStore) -> None:
        """Check that the archive has all records of the store's log, once each, without a gap that it does not name."""
        at = self.manifest.start
        for entry in self.entries:
            assert entry.start == at
            at = entry.end
        assert at == store.acknowledged_offset
        assert not self.manifest.gaps
        assert records_of(self.pieces()) == records_of(log_of(store))


def log_of(store: MessageStore) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, bytes) of the records of each log file."""
    for file in store.commitlog.queue.files:
        end = min(file.end_offset, store.acknowledged_offset)
        if end > file.start_offset:
            yield file.start_offset, bytes(file.array()[: end - file.start_offset])


def records_of(pieces: Iterator[tuple[int, bytes]]) -> dict[int, bytes]:
    """Return the records in pieces that may begin and end within them, by their physical offsets."""
    records: dict[int, bytes] = {}
    rest, rest_at = b"", -1
    for at, raw in pieces:
        if rest and rest_at + len(rest) == at:
            at, raw = rest_at, rest + raw
        position = 0
        while position + 8 <= len(raw):
            size, magic = int.from_bytes(raw[position : position + 4], "big"), raw[position + 4 : position + 8]
            if size == 0 or magic == b"\xcb\xd4\x31\x94":  # the end, or a blank
                position = len(raw)
            elif position + size > len(raw):
                break
            else:
                assert at + position not in records
                records[at + position] = raw[position : position + size]
                position += size
        rest, rest_at = raw[position:], at + position
    assert not rest
    return records


def newest(objects: Objects) -> ArchiveManifest:
    """Return the newest version of the manifest. Fails if there is none."""

    def get(name: str) -> bytes:
        try:
            return objects.get(name)
        except ObjectNotFound:
            raise KeyError(name) from None

    found = find_newest(get, lambda: (each.name for each in objects.list("manifest")))
    assert found is not None
    return found
