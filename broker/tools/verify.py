"""``flintmq-broker verify``: check that everything in a store is consistent. Changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..store.recovery.hole_filler import lost_text
from .findings import Findings
from .log_end import check_behind, find_end
from .log_pass import SEGMENT_BYTES, LogPass, Progress
from .metadata_check import check_checkpoint, check_log_is_whole, check_offsets, check_tables
from .offline import OfflineStore
from .queue_units import UnitPass

QUARANTINED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. ``log_bytes``: size of the checked records; ``seconds``: duration."""

    findings: Findings
    broker: str
    clean: bool
    log_files: int
    log_start: int
    log_end: int
    log_bytes: int
    records: int
    queues: int
    units: int
    index_files: int
    entries: int
    seconds: float
    threads: int


def verify(
    path: Path, progress: Progress, *, index_slots: int | None = None, segment_bytes: int = SEGMENT_BYTES
) -> Verified:
    """Verify the store at ``path``. ``segment_bytes``: size of the log range that one thread takes at a time.

    Raises ``StoreLocked``, and ``ConfigurationError`` if it is not a store.
    """
    started = time.perf_counter()
    findings = Findings()
    with OfflineStore(path, findings, index_slots=index_slots) as store:
        check_tables(store)
        check_log_is_whole(store)
        end = find_end(store)
        check_behind(store, end)
        check_checkpoint(store, end)
        _note_quarantine(store)
        log = LogPass(store, end, progress, segment_bytes=segment_bytes)
        log.run()
        # Only a whole pass shows which messages are deleted; the next one leaves them out.
        if log.begun_again:
            store.take_for_deleted(log.begun_again)
            findings.note("topics that were deleted and created again: their older messages are skipped")
            log = LogPass(store, end, progress, segment_bytes=segment_bytes)
            log.run()
        findings.extend(log.findings)
        ends, units = {}, 0
        for queue in store.queues:
            units_pass = UnitPass(store, queue, end).run()
            ends[queue.topic, queue.queue_id] = units_pass.next_offset
            units += units_pass.live
            reported = log.reported.get(queue.row, set())
            # If each live unit is that of a record, none can be a stray one.
            if units_pass.live != log.explained.get(queue.row, 0) or reported:
                units_pass.find_strays(reported)
        check_offsets(store, ends)
        _note_what_is_left(findings, log)
        return Verified(
            findings=findings,
            broker="RocketMQ" if store.is_rocketmq else "FlintMQ",
            clean=store.clean,
            log_files=len(store.log_files),
            log_start=store.log_start,
            log_end=end.offset,
            log_bytes=log.bytes,
            records=log.records,
            queues=sum(1 for queue in store.queues if queue.end_byte),
            units=units,
            index_files=len(store.index_files),
            entries=sum(max(file.index_count - 1, 0) for file in store.index_files),
            seconds=time.perf_counter() - started,
            threads=log.threads,
        )


def _note_quarantine(store: OfflineStore) -> None:
    """Note known losses, which are no longer findings."""
    for hole in list(store.quarantine)[:QUARANTINED_SHOWN]:
        found = datetime.fromtimestamp(hole.found_ms / 1000, tz=UTC)
        store.findings.note(
            f"quarantined: {hole.bytes:,} bytes at physical offset {hole.physical_offset:,} ({hole.reason}), found "
            f"{found:%Y-%m-%d %H:%M} UTC. {lost_text(hole.lost)}; kept in {store.quarantine.folder / hole.file}"
        )
    more = len(store.quarantine.ranges) - QUARANTINED_SHOWN
    if more > 0:
        store.findings.note(f"{more:,} more quarantined ranges: see {store.quarantine.path}")


def _note_what_is_left(findings: Findings, log: LogPass) -> None:
    if log.pending_units or log.pending_keys:
        findings.note(
            f"{log.pending_units:,} messages and {log.pending_keys:,} keys are not in queues and index yet: the next "
            "start adds them"
        )
