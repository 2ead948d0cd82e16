"""``flintmq-broker plan-clean``: what retention would do to a store, without doing it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...protocol.display import to_json
from ..background.services import Disk, Policy, Verdict
from ..config import RetentionSection
from ..store.log.commitlog import CommitLog
from ..store.message_store import OWN_FOLDER
from ..store.queues import count_units, find_start
from ..store.read.queue_reads import LogReads, QueueReads
from ..store.retention import HOUR_MS, TIMER_TOPIC, Expiry
from ..store.tables.offset_tables import DelayOffsetTable
from ..store.tables.store_state import StagedState
from ..store.timers import TimerFiles
from .findings import Findings
from .offline import FOREVER, OfflineStore


@dataclass(frozen=True, slots=True)
class Plan:
    """``verdicts``: of every CommitLog file except the last, oldest first; all files after one that stays, stay too.
    ``last``: the last file, which always stays, if there is one."""

    disk: Disk
    verdicts: list[Verdict]
    last: Path | None
    refuses: bool

    @property
    def going(self) -> list[Verdict]:
        """Verdicts of the files to be deleted now."""
        return [verdict for verdict in self.verdicts if verdict.goes]


def plan_clean(path: Path, settings: RetentionSection, *, now: float | None = None, disk: Disk | None = None) -> Plan:
    """Return what a broker with these settings would delete next. Changes nothing; a broker may be running.

    Raises ``ConfigurationError`` if ``path`` is not a store.
    """
    now = time.time() if now is None else now
    policy = Policy(settings)
    with OfflineStore(path, Findings(), shared=False) as store:
        disk = Disk.of(path) if disk is None else disk
        verdicts: list[Verdict] = []
        for file in _expiry(store).old_files(int(now * 1000), settings.file_reserved_hours):
            stays = next((verdict for verdict in verdicts if not verdict.goes), None)
            if stays is not None:
                verdict = Verdict(file, False, f"kept: it follows {stays.file.path.name}")
            else:
                verdict = policy.verdict(file, now, disk, first=not verdicts)
            verdicts.append(verdict)
        last = store.log_files[-1].path if store.log_files else None
    return Plan(disk, verdicts, last, policy.refuses(disk))


def _expiry(store: OfflineStore) -> Expiry:
    """Return the expiry of a store without recovery: each queue ends with its units."""
    own = store.path / OWN_FOLDER
    commitlog = CommitLog(store.files, store.path / "commitlog", own / "new", store.settings, b"")
    commitlog.queue.files = store.log_files
    commitlog.write_offset = commitlog.queue.end_offset
    for queue in store.queues:
        queue.max_offset = count_units(queue, FOREVER)
        queue.start_offset = queue.min_hint = find_start(queue, queue.max_offset)
    log_reads = LogReads(commitlog, store.state, store.quarantine)
    queue_reads = QueueReads(commitlog, store.queues, store.topics, store.state, log_reads)
    delay_offsets = DelayOffsetTable(store.files, store.path / "config" / "delayOffset.json")
    delay_offsets.load()
    staged = StagedState(store.files, own / "prepared.json")
    staged.load()
    expiry = Expiry(
        commitlog, store.queues, queue_reads, log_reads, store.topics, store.consumer_offsets, delay_offsets, staged
    )
    timers, waiting = TimerFiles(store.files, own / "timers", store.path), store.queues.get(TIMER_TOPIC, 0)
    timers.state = timers.read()
    if timers.state is not None and waiting is not None:
        expiry.oldest_timed = partial(timers.oldest_offset, waiting)
    return expiry


def as_text(plan: Plan, now: float) -> list[str]:
    disk = plan.disk
    shown = [f"disk: {disk.used_percent:.0f} % in use, {disk.free_bytes / 1e9:,.1f} GB free"]
    if plan.refuses:
        shown.append("a broker refuses messages until there is room (retention.disk_refuse_percent)")
    for verdict in plan.verdicts:
        file = verdict.file
        age = "age unknown" if file.newest_ms is None else f"{(now * 1000 - file.newest_ms) / HOUR_MS:,.1f} h old"
        does = "goes " if verdict.goes else "stays"
        shown.append(f"{does} {file.path.name}  {file.bytes / 1e6:,.0f} MB  {age}: {verdict.reason}")
    if plan.last is not None:
        shown.append(f"stays {plan.last.name}  the file being written always stays")
    freed = sum(verdict.file.bytes for verdict in plan.going)
    count = len(plan.verdicts) + (plan.last is not None)
    shown.append(f"{len(plan.going)} of {count} CommitLog files would go, {freed / 1e6:,.0f} MB")
    return shown


def as_json(plan: Plan) -> list[str]:
    """Return the plan as JSON lines: the disk, then one line per file."""
    rows: list[dict[str, object]] = [
        {
            "disk_used_percent": round(plan.disk.used_percent, 1),
            "disk_free_bytes": plan.disk.free_bytes,
            "refuses": plan.refuses,
        }
    ]
    for verdict in plan.verdicts:
        file = verdict.file
        rows.append(
            {
                "file": str(file.path),
                "bytes": file.bytes,
                "newest_ms": file.newest_ms,
                "goes": verdict.goes,
                "reason": verdict.reason,
            }
        )
    if plan.last is not None:
        rows.append({"file": str(plan.last), "goes": False, "reason": "the file being written always stays"})
    return [to_json(row) for row in rows]
