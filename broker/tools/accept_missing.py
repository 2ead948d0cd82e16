"""Accepting the loss of missing CommitLog files, so that a broker starts on the store again.

A file of zeros atomically takes the place of each. The rest is the containment of any other damage: a start finds a
hole of the size of the file, learns from queues and surrounding records which messages are lost, and fills it with
tombstones. If the process is killed in between, the file is either still missing or damaged in that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...protocol.errors import ConfigurationError
from ...protocol.store_files import file_name
from ..store.files.file_system import Files, create_whole, make_durable_folder
from ..store.files.store_lock import StoreLock
from ..store.message_store import OWN_FOLDER
from ..store.recovery.hole_finder import UnitEvidence
from .findings import Findings
from .offline import OfflineStore

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
    lock = StoreLock(files, path)
    lock.take()
    try:
        make_durable_folder(files, path / OWN_FOLDER)
        for each in chosen:
            files.close(create_whole(files, each, size, path / OWN_FOLDER / "new"))
    finally:
        lock.release()
    return chosen
