"""Requests about the archive that the broker writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.commands import ArchiveGapRow, ArchiveStatus, EmptyAnswer, EmptyRequest
from ...protocol.fields import decode_fields
from ...protocol.rows import pack_rows

if TYPE_CHECKING:
    from ..archive.uploader import ArchiveService
    from ..requests.request import Request
    from ..store import MessageStore


def get_archive(request: Request, archive: ArchiveService | None, store: MessageStore) -> None:
    """Return the state of the archive that this broker writes."""
    decode_fields(EmptyRequest, request.frame.fields)
    request.respond(EmptyAnswer(), pack_rows(status_of(archive, store.clock.seen_ms())))


def status_of(archive: ArchiveService | None, now_ms: int) -> ArchiveStatus:
    """Return the state of an archive as a row; None: the broker has none."""
    if archive is None:
        return ArchiveStatus("", "off", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, [])
    manifest = archive.manifest
    fragments, raw_bytes, stored_bytes, records = manifest.totals() if manifest is not None else (0, 0, 0, 0)
    return ArchiveStatus(
        archive.url,
        archive.state,
        archive.reason,
        manifest.version if manifest is not None else 0,
        manifest.start if manifest is not None else 0,
        archive.archived_offset,
        archive.backlog(),
        archive.oldest_age_ms(now_ms),
        archive.archived_ms,
        records,
        raw_bytes,
        stored_bytes,
        fragments,
        sum(archive.requests().values()),
        archive.counts.failures,
        [ArchiveGapRow(*gap) for gap in manifest.gaps] if manifest is not None else [],
    )
