"""``flintmq-broker verify``: check that everything in a store is consistent. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path

from ...protocol.display import escape, show_bytes, to_json
from ...protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_MARK,
    CHECKPOINT_MARK_AT,
    CHECKPOINT_MARK_MAGIC,
)
from ...protocol.store_files import file_name
from ..store.derivation import RecordAt
from ..store.files.json_table import SHAPE_ERRORS, parse_table
from ..store.queues import count_units, last_record_unit
from ..store.recovery.holes import lost_text
from ..store.tables.checkpoint import FUTURE_MS_MAX
from .findings import KINDS, Finding, Findings
from .log_verifier import SEGMENT_BYTES, LogPass, Progress, UnitPass
from .offline import LogEnd, OfflineStore, check_behind, find_end

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


# ---- Checks of the small files: the JSON tables, the checkpoint, and FlintMQ's own notes.


def check_tables(store: OfflineStore) -> None:
    """Check every JSON file in ``config/`` and FlintMQ's own, each with its ``.bak``."""
    reported = {finding.path for finding in store.findings if finding.kind == "table"}
    own = store.state.path.parent
    folders = (store.path / "config", own, own / "timers", own / "quarantine")
    for path in sorted(path for folder in folders for path in [*folder.glob("*.json"), *folder.glob("*.json.bak")]):
        if path not in reported and path.is_file():
            _check_table(store, path)


def _check_table(store: OfflineStore, path: Path) -> None:
    try:
        parse_table(path.read_text(encoding="utf-8"))
    except SHAPE_ERRORS as error:
        store.findings.add("table", path, f"{type(error).__name__}: {error}")


def check_log_is_whole(store: OfflineStore) -> None:
    """Check that the log begins and ends where the checkpoint and FlintMQ's notes say."""
    mark, size = store.checkpoint.mark, store.settings.commitlog_file_bytes
    if mark is None:
        return
    log_end = store.log_files[-1].start_offset + size if store.log_files else 0
    for at, why in mark.missing_ends(store.log_start, log_end, store.state.snapshot.log_start, size):
        store.findings.add("missing-file", store.path / "commitlog" / file_name(at), why, physical_offset=at)


def check_checkpoint(store: OfflineStore, end: LogEnd) -> None:
    """Check that the checkpoint's times and FlintMQ's mark are possible."""
    path = store.checkpoint.path
    if not path.is_file():
        store.findings.note(f"there is no {path.name}: a start checks the whole log")
        return
    blob = path.read_bytes()
    if len(blob) != CHECKPOINT_FILE_BYTES:
        store.findings.add("checkpoint", path, f"it has {len(blob):,} bytes instead of {CHECKPOINT_FILE_BYTES:,}")
        return
    _check_times(store, path, blob, _last_store_ms(store, end))
    if store.checkpoint.mark is None:
        _check_mark(store, path, blob, end)


def _check_times(store: OfflineStore, path: Path, blob: bytes, last_ms: int) -> None:
    times = CHECKPOINT.unpack(blob)
    now_ms = int(time.time() * 1000)
    for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
        held: int = getattr(times, name)
        if held < 0 or held > now_ms + FUTURE_MS_MAX:
            text = f"{name} is {held:,}, which is not a time"
        # After a crash, the messages of that time may be lost.
        elif last_ms and store.clean and held > last_ms:
            text = f"{name} is {held:,}, but the last message was stored at {last_ms:,}"
        else:
            continue
        store.findings.add("checkpoint", path, text, position=CHECKPOINT.at[name])


def _check_mark(store: OfflineStore, path: Path, blob: bytes, end: LogEnd) -> None:
    """Check a mark with a wrong checksum: either RocketMQ wrote the file last, or it is damaged."""
    mark = CHECKPOINT_MARK.unpack(blob, CHECKPOINT_MARK_AT)
    if not any(blob):
        if store.state.sizes:  # RocketMQ would have left the mark as it was
            store.findings.add("checkpoint", path, "it is all zeros, and FlintMQ's mark is gone")
        return
    if not any(blob[CHECKPOINT_MARK_AT : CHECKPOINT_MARK_AT + CHECKPOINT_MARK.size]):
        return
    if mark.magic != CHECKPOINT_MARK_MAGIC or not 0 <= mark.flushed_offset < end.offset:
        # If RocketMQ continued, the log is longer than FlintMQ left it.
        store.findings.add(
            "checkpoint",
            path,
            "FlintMQ's mark has a wrong checksum, and no other broker has written the log since",
            position=CHECKPOINT_MARK_AT,
        )
    else:
        store.findings.note("FlintMQ's mark in the checkpoint has a wrong checksum: RocketMQ used the store last")


def _last_store_ms(store: OfflineStore, end: LogEnd) -> int:
    """Return the store time of the last message that a queue knows, or 0."""
    last = (-1, 0)
    for queue in store.queues:
        unit = last_record_unit(queue, count_units(queue, end.offset))
        if unit is not None:
            last = max(last, unit[1:])
    at, file = last[0], store.find(last[0])
    last_ms = 0
    # Records without a unit may follow.
    while file is not None and at < end.offset and (record := RecordAt(file, at)).is_sound:
        last_ms = record.store_ms
        at += record.size
    return last_ms


def check_offsets(store: OfflineStore, ends: dict[tuple[str, int], int]) -> None:
    """Compare groups' offsets, and FlintMQ's notes of queue ends, with ``ends``: the offset after each last unit."""
    snapshot = store.state.snapshot
    mark = store.checkpoint.mark
    if mark is not None and mark.dispatched_offset >= snapshot.physical_offset:
        for topic, queue_id, next_offset in store.state.recorded_ends(store.log_start, mark.dispatched_offset):
            held = ends.get((topic, queue_id), 0)
            if held < next_offset:
                store.findings.add(
                    "queue-end",
                    store.queues.folder / topic / str(queue_id),
                    f"{topic}, queue {queue_id} ends at {held:,}, not at {next_offset:,}",
                )
        held_files = {file.path.name for file in store.index_files}
        for name in snapshot.index_files:
            if name not in held_files and not (store.path / "index" / name).exists():
                store.findings.add("index-missing", store.path / "index" / name, "the file is missing")
    # After a crash, a start sets them back by itself.
    if store.clean:
        _check_consumer_offsets(store, ends)


def _check_consumer_offsets(store: OfflineStore, ends: dict[tuple[str, int], int]) -> None:
    path = store.path / "config" / "consumerOffset.json"
    for group, topic, queue_id, offset in store.consumer_offsets.all_committed(own=True):
        if store.topics.get(topic) is None:
            continue
        held = max(ends.get((topic, queue_id), 0), store.state.next_offset(topic, queue_id))
        if offset > held:
            store.findings.add(
                "consumer-offset",
                path,
                f"group {group} is at {offset:,} in {topic}, queue {queue_id}, which ends at {held:,}",
            )


# ---- Findings for people and for programs.


def as_json(verified: Verified, path: Path) -> Iterator[str]:
    """Yield JSON lines: each kept finding, then the summary."""
    yield from findings_json(verified.findings)
    yield to_json(
        {
            "kind": "summary",
            "store": str(path),
            "broker": verified.broker,
            "stopped_in_order": verified.clean,
            "log_start": verified.log_start,
            "log_end": verified.log_end,
            "log_bytes": verified.log_bytes,
            "records": verified.records,
            "queues": verified.queues,
            "units": verified.units,
            "index_files": verified.index_files,
            "entries": verified.entries,
            "seconds": round(verified.seconds, 3),
            "findings": verified.findings.counts,
            "notes": verified.findings.notes,
        }
    )


def findings_json(findings: Findings) -> Iterator[str]:
    for finding in findings:
        yield to_json(
            {
                "kind": finding.kind,
                "file": str(finding.path),
                "position": None if finding.position < 0 else finding.position,
                "physical_offset": None if finding.physical_offset < 0 else finding.physical_offset,
                "what": finding.text,
                "why": KINDS[finding.kind].why,
                "remedy": KINDS[finding.kind].remedy,
            }
        )


def as_text(verified: Verified, path: Path, shown: int) -> Iterator[str]:
    """Yield the text report of a store: a summary, then the findings by kind, ``shown`` of each."""
    stopped = "stopped in order" if verified.clean else "not stopped in order: the next start recovers it"
    log_files = f"{verified.log_files:,} file{'s' * (verified.log_files != 1)}"
    index_files = f"{verified.index_files:,} file{'s' * (verified.index_files != 1)}"
    rate = verified.log_bytes / max(verified.seconds, 1e-3)
    yield f"store    {path}, {verified.broker}'s, {stopped}"
    yield (
        f"log      {verified.records:,} records in {log_files}, physical offsets {verified.log_start:,} to "
        f"{verified.log_end:,}"
    )
    yield f"queues   {verified.units:,} messages in {verified.queues:,} queues"
    yield f"index    {verified.entries:,} entries in {index_files}"
    yield (
        f"checked  {show_bytes(verified.log_bytes)} of the log and all that belongs to it in {verified.seconds:.2f} s, "
        f"{show_bytes(rate)}/s"
    )
    yield from conclusion(verified.findings, path, shown, "nothing is wrong")


def conclusion(findings: Findings, path: Path, shown: int, sound: str) -> Iterator[str]:
    """Yield the notes and the findings, and in the last line their number, or ``sound`` if there are none."""
    for note in findings.notes:
        yield f"note     {escape(note)}"
    yield from findings_text(findings, path, shown)
    if findings.total:
        yield ""
        yield f"damaged  {findings.total:,} finding{'s' * (findings.total != 1)} of {len(findings.counts):,} kinds"
    else:
        yield f"sound    {sound}"


def findings_by_kind(findings: Findings, store: Path, shown: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each kind, and the lines of its findings, at most ``shown``."""
    for kind, group in groupby(findings, key=lambda finding: finding.kind):
        count = findings.counts[kind]
        lines = [f"{KINDS[kind].title}: {count:,}"]
        lines += [f"  {finding_line(finding, store)}" for finding in islice(group, shown)]
        if count > shown:
            lines.append(f"  … and {count - shown:,} more")
        yield kind, lines


def findings_text(findings: Findings, store: Path, shown: int) -> Iterator[str]:
    """Yield the findings by kind, at most ``shown`` of each, with their consequence and remedy."""
    for kind, lines in findings_by_kind(findings, store, shown):
        yield from ("", *lines)
        yield f"  why it matters: {KINDS[kind].why}"
        yield f"  what helps: {KINDS[kind].remedy}"


def finding_line(finding: Finding, store: Path) -> str:
    """Return place and error of a finding on one line; the file is relative to the store."""
    path = finding.path.relative_to(store) if finding.path.is_relative_to(store) else finding.path
    where = [f"byte {finding.position:,}"] if finding.position >= 0 else []
    if finding.physical_offset >= 0:
        where.append(f"physical offset {finding.physical_offset:,}")
    return escape(f"{path}{', ' if where else ''}{', '.join(where)}: {finding.text}")
