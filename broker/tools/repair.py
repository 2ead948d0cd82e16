"""``flintmq-broker repair``: repair the damage of a stopped store.

``verify`` finds the damage; a dry run prints for each kind what a repair would do. A repair is a start of the store
that checks the whole log, contains its damage, and rebuilds queues and index if they are wrong. A second repair finds
nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ...protocol.escaping import escape
from ..store.damage.quarantine import QuarantinedRange
from ..store.files.file_system import Files
from ..store.message_store import MessageStore
from ..store.recovery.hole_filler import lost_text
from .accept_missing import chosen_files, known_messages
from .findings import KINDS, Findings
from .offline import OfflineStore
from .output import Progress
from .report import finding_line
from .restore_tables import restore_tables
from .verify import Verified, verify

CONTAINED = "contained: the bytes go to flintmq/quarantine, tombstones take their place, the messages are lost"
REBUILT = "rebuilt from the log"
BY_HAND = "left to you"

ACTIONS: dict[str, str] = {
    **dict.fromkeys(("record", "body-crc", "record-crc", "topic", "queue-offset"), CONTAINED),
    **dict.fromkeys(("unit-missing", "unit-wrong", "unit-stray", "unit-order", "queue-end"), REBUILT),
    **dict.fromkeys(("index-header", "index-chain", "index-missing", "index-wrong", "index-stray"), REBUILT),
    "file-size": "a file that is too short gets zeros, and its lost part is contained; queues and index are rebuilt",
    "behind-end": "cut: nothing after the end of the log was acknowledged",
    "checkpoint": "rewritten",
    "table": "rewritten from its .bak, or the .bak from it; a table of users that may have been edited is left to you",
    "consumer-offset": "set back to the end of the queue",
    **dict.fromkeys(("missing-file", "foreign-file", "properties", "store-time"), BY_HAND),
    **dict.fromkeys(("backup-manifest", "backup-file", "backup-record"), BY_HAND),
}
"""Action of ``repair`` for each kind of finding."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair. ``restored``: rewritten tables; ``contained``: holes of the log; ``rebuilt``: why queues or
    index were rebuilt; ``cut_bytes``: bytes after the log's end; ``after``: result of ``verify`` afterwards."""

    restored: list[Path]
    contained: list[QuarantinedRange]
    rebuilt: list[str]
    cut_bytes: int
    after: Verified


def examine(path: Path, progress: Progress, *, index_slots: int | None = None) -> Verified:
    """Verify the store at ``path``. Changes nothing. Raises the errors of ``verify``."""
    return verify(path, lambda done, total: progress("verifying", done, total), index_slots=index_slots)


def needs_rebuild(found: Verified) -> bool:
    """Return whether queues or index have errors, which a start may miss if it does not compare them."""
    return any(ACTIONS[kind] == REBUILT for kind in found.findings.counts)


def repair(
    path: Path, found: Verified, progress: Progress, *, index_slots: int | None = None, files: Files | None = None
) -> Repaired:
    """Repair the store at ``path`` with these findings of ``examine``. Raises ``FlintError``, without any change, if it
    is locked or a start is refused (a file of the log is missing or of another log)."""
    with OfflineStore(path, Findings(), index_slots=index_slots) as opened:
        settings = opened.settings
    restored = restore_tables(path, files or Files())
    store = MessageStore(path, settings, files=files)
    # After the tables are restored, because the start reads them.
    report = store.open(progress, rebuild=needs_rebuild(found), verify_all=True)
    store.consumer_offsets.clamp(store.queue_reads.end_offset)
    store.close()
    after = examine(path, progress, index_slots=index_slots)
    return Repaired(restored, report.quarantined, report.rebuilt, report.truncated_bytes, after)


def plan_lines(path: Path, found: Verified, shown: int) -> Iterator[str]:
    """Yield what a repair would do, by kind of finding, with ``shown`` examples of each."""
    for kind, group in groupby(found.findings, key=lambda finding: finding.kind):
        count = found.findings.counts[kind]
        yield f"{KINDS[kind].title}: {count:,}"
        for finding, _ in zip(group, range(shown), strict=False):
            yield f"  {finding_line(finding, path)}"
        if count > shown:
            yield f"  … and {count - shown:,} more"
        by_hand = ACTIONS[kind] == BY_HAND
        yield f"  repair: {f'{BY_HAND}: {KINDS[kind].remedy}' if by_hand else ACTIONS[kind]}"


def giving_up_lines(path: Path, names: Sequence[str], *, index_slots: int | None = None) -> Iterator[str]:
    """Yield what accepting the loss of these missing files would do. Raises ``ConfigurationError``."""
    with OfflineStore(path, Findings(), index_slots=index_slots) as store:
        for each in chosen_files(store, names):
            yield (
                f"{each.name}: given up: a file of zeros takes its place and is contained; the queues know "
                f"{known_messages(store, [each]):,} messages in it, which are lost"
            )


def done_lines(path: Path, repaired: Repaired, shown: int) -> Iterator[str]:
    """Yield what was done, and what is still wrong."""
    for table in repaired.restored:
        yield f"restored  {table.relative_to(path)}"
    for hole in repaired.contained:
        yield (
            f"contained {hole.bytes:,} bytes at physical offset {hole.physical_offset:,} ({hole.reason}): "
            f"{lost_text(hole.lost)}; kept in flintmq/quarantine/{hole.file}"
        )
    for reason in repaired.rebuilt:
        yield f"rebuilt   {escape(reason)}"
    if repaired.cut_bytes:
        yield f"cut       {repaired.cut_bytes:,} bytes after the end of the log"
    left = repaired.after.findings
    if left.total:
        yield f"left      {left.total:,} finding{'s' * (left.total != 1)}"
        yield from plan_lines(path, repaired.after, shown)
    else:
        yield "sound     nothing is wrong any longer"
