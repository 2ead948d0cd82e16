"""``flintmq-broker repair``: repair the damage of a stopped store.

``verify`` finds the damage; a dry run prints for each kind what a repair would do. A repair is a start of the store
that checks the whole log, contains its damage, and rebuilds queues and index if they are wrong. A second repair finds
nothing to do.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...protocol.auth.users import USERS_FILE, choose_users
from ...protocol.display import escape
from ...protocol.errors import ConfigurationError
from ...protocol.store_files import file_name
from ..store.damage import QuarantinedRange
from ..store.files.file_system import Files, create_whole, make_durable_folder
from ..store.files.json_table import SHAPE_ERRORS, parse_table
from ..store.files.store_lock import StoreLock
from ..store.message_store import OWN_FOLDER, MessageStore
from ..store.recovery.holes import UnitEvidence, lost_text
from .backup import write_new
from .findings import KINDS, Findings
from .offline import OfflineStore
from .output import Progress
from .verify import Verified, findings_by_kind, verify

# ---- Accepting the loss of missing CommitLog files, so that a broker starts on the store again.
#
# A file of zeros atomically takes the place of each. The rest is the containment of any other damage: a start
# finds a hole of the size of the file, learns from queues and surrounding records which messages are lost,
# and fills it with tombstones. If the process is killed in between, the file is either still missing or
# damaged in that way.

MISSING_MAX = 10_000
"""Maximum number of missing files; a larger gap means that a file after it does not belong to the log."""


def missing_files(store: OfflineStore) -> list[Path]:
    """Return the missing files of the store's log: those between the existing ones, and those before and after them
    that checkpoint and notes know of. Return none if no file is left to infer them from."""
    if not store.log_files:
        return []
    size, mark = store.settings.commitlog_file_bytes, store.checkpoint.mark
    there = {file.start_offset for file in store.log_files}
    begin, end = store.log_start, max(there) + size
    if mark is not None:
        # Rounded down to the start of a file; the end below is rounded up to the end of a file.
        begin = min(begin, mark.log_begins_at_most(store.state.snapshot.log_start) // size * size)
        end = max(end, -(-mark.flushed_offset // size) * size)
    if (end - begin) // size - len(there) > MISSING_MAX:
        return []
    return [store.path / "commitlog" / file_name(at) for at in range(begin, end, size) if at not in there]


def chosen_files(store: OfflineStore, names: Sequence[str]) -> list[Path]:
    """Return the missing files with these names, in order, without those that exist again, perhaps because an earlier
    run was interrupted.

    Raises ``ConfigurationError`` if a name is not that of a missing file, or if others are missing too.
    """
    missing = {path.name: path for path in missing_files(store)}
    folder = store.path / "commitlog"
    for name in names:
        # Only the name of a file counts, not a path that leads elsewhere.
        if name not in missing and not (
            len(name) == 20 and name.isascii() and name.isdigit() and (folder / name).exists()
        ):
            said = f"; {', '.join(list(missing)[:5])} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
            raise ConfigurationError(f"--accept-missing {name}: no file of that name is missing in {folder}{said}")
    others = [name for name in missing if name not in names]
    if names and others:
        more = f", and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise ConfigurationError(
            f"{folder / others[0]} is missing too{more}. Restore it from a backup, or give it up too: "
            f"--accept-missing {others[0]}. Nothing was changed"
        )
    return [path for name, path in sorted(missing.items()) if name in names]


def known_messages(store: OfflineStore, missing: Sequence[Path]) -> int:
    """Return the number of messages in these files that the queues know."""
    size = store.settings.commitlog_file_bytes
    return sum(
        len(UnitEvidence.of_queue(queue, int(path.name), int(path.name) + size))
        for path in missing
        for queue in store.queues
    )


def give_up(
    path: Path, names: Sequence[str], *, index_slots: int | None = None, files: Files | None = None
) -> list[Path]:
    """Create files of zeros for these missing files of the store at ``path``, durably; return the created ones.

    Raises ``StoreLocked``, and ``ConfigurationError`` as ``chosen_files``; then nothing is changed.
    """
    files = files or Files()
    with OfflineStore(path, Findings(), index_slots=index_slots) as store:
        chosen, size = chosen_files(store, names), store.settings.commitlog_file_bytes
    # The reader's shared lock is gone by here; it would keep out this one, which is exclusive.
    with StoreLock(files, path).held():
        make_durable_folder(files, path / OWN_FOLDER)
        for each in chosen:
            files.close(create_whole(files, each, size, path / OWN_FOLDER / "new"))
    return chosen


# ---- Restoring damaged tables of a stopped store: a table from its ``.bak``, or the ``.bak`` from its table.
#
# Tables that a start rebuilds from the log (``timers/``, ``quarantine/``) need no repair.


def restore_tables(path: Path, files: Files) -> list[Path]:
    """Rewrite each damaged file whose counterpart is sound; return the rewritten files. Raises ``StoreLocked``."""
    with StoreLock(files, path).held(), _users_locked(path):
        tables = [table for name in ("config", OWN_FOLDER) for table in sorted((path / name).glob("*.json"))]
        return [restored for table in tables if (restored := _restore(path, table, files)) is not None]


@contextmanager
def _users_locked(path: Path) -> Iterator[None]:
    """Take the lock under which ``flintmq user`` changes users; it takes no other."""
    descriptor = os.open(path / OWN_FOLDER, os.O_RDONLY | os.O_DIRECTORY) if (path / OWN_FOLDER).is_dir() else -1
    try:
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _restore(path: Path, table: Path, files: Files) -> Path | None:
    backup = table.with_name(f"{table.name}.bak")
    if not backup.exists():
        return None
    is_sound, is_backup_sound = _is_sound(table), _is_sound(backup)
    if is_sound == is_backup_sound:
        return None
    if not is_sound and table == path / USERS_FILE and not _serves(table, backup):
        return None  # it may have been edited on purpose to lock a user out: see ``protocol.users``
    source, target = (table, backup) if is_sound else (backup, table)
    _replace(files, target, source.read_bytes())
    return target


def _is_sound(table: Path) -> bool:
    try:
        parse_table(table.read_text(encoding="utf-8"))
    except SHAPE_ERRORS:
        return False
    return True


def _serves(table: Path, backup: Path) -> bool:
    """Return whether a broker would use the copy of the users."""
    try:
        choose_users(table.read_bytes(), backup.read_bytes(), str(table))
    except ConfigurationError:
        return False
    return True


def _replace(files: Files, target: Path, content: bytes) -> None:
    """Replace a file atomically, keeping its owner and permissions."""
    was = target.stat()
    scratch = target.with_name(f"{target.name}.tmp")
    scratch.unlink(missing_ok=True)
    write_new(files, scratch, content, was.st_mode & 0o777)
    # Otherwise the file would be root's, and the broker's user could not change it.
    if os.geteuid() == 0:
        os.chown(scratch, was.st_uid, was.st_gid, follow_symlinks=False)
    files.rename(scratch, target)
    files.sync_folder(target.parent)


# ---- The repair.

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
    for kind, lines in findings_by_kind(found.findings, path, shown):
        yield from lines
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


# ---- ``flintmq-broker rebuild``: rebuild queues and index from the log.
#
# It is a start of the store that trusts none of them: it finds the holes and the end of the log and contains
# damage; then it resets the checkpoint to nothing dispatched, moves the old files to ``flintmq/aside/`` and
# dispatches the log from its beginning. If it is killed at any point, the next start continues.


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result: ``messages`` dispatched into ``queues`` and ``index_files`` in ``seconds``; ``cut_bytes``: bytes of a
    torn write after the end of the log; ``quarantined``: contained damage of the log."""

    messages: int
    queues: int
    index_files: int
    cut_bytes: int
    seconds: float
    quarantined: list[QuarantinedRange]


def rebuild(path: Path, progress: Progress, *, index_slots: int | None = None) -> Rebuilt:
    """Rebuild queues and index of the store at ``path``. Raises ``FlintError``, without any change, if it is locked or
    its log has missing or foreign files."""
    with OfflineStore(path, Findings(), index_slots=index_slots) as found:
        settings = found.settings
    store = MessageStore(path, settings)
    report = store.open(progress, rebuild=True)
    rebuilt = Rebuilt(
        messages=report.messages_recovered,
        queues=sum(1 for queue in store.queues if queue.max_offset > queue.start_offset),
        index_files=len(store.index.files),
        cut_bytes=report.truncated_bytes,
        seconds=report.seconds,
        quarantined=report.quarantined,
    )
    store.close()
    return rebuilt
