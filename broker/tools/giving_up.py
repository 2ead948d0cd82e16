"""CommitLog files that are gone for good: what was in them is given up, so that a broker starts on the store again.

A file of zeros takes the place of each, whole or not at all. The rest is the containment of any other damage: a start
finds a hole as large as the file, learns from queues and the records around it which messages are lost, and fills it
with tombstones. So whoever is killed in between has a store with that file missing, or with that damage in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...protocol.errors import ConfigurationError
from ..store.containment import UnitEvidence
from ..store.files import Files, create_whole, make_durable_folder
from ..store.mapped_file import file_name
from ..store.message_store import OWN_FOLDER
from ..store.store_lock import StoreLock
from .findings import Findings
from .offline import OfflineStore
from .tables import first_of_log

MISSING_MAX = 10_000
"""More files are not missing: one that does not belong there lies behind the log."""


def missing_files(store: OfflineStore) -> list[Path]:
    """The files that the log of the store should have and has not: between those that are there, and where checkpoint
    and notes say that it begins and ends. None where none is left to go by."""
    if not store.log_files:
        return []
    size, mark = store.settings.commitlog_file_bytes, store.checkpoint.mark
    there = {file.start_offset for file in store.log_files}
    begin, end = store.log_start, max(there) + size
    if mark is not None:
        begin = min(begin, first_of_log(store) // size * size)
        end = max(end, -(-mark.flushed_offset // size) * size)
    if (end - begin) // size - len(there) > MISSING_MAX:
        return []
    return [store.path / "commitlog" / file_name(at) for at in range(begin, end, size) if at not in there]


def chosen_files(store: OfflineStore, names: Sequence[str]) -> list[Path]:
    """The missing files of these names, in their order; one that is there again, perhaps as this run was interrupted
    before, is left out.

    Raises ``ConfigurationError`` where a name is none of the missing ones', or others are missing too.
    """
    missing = {path.name: path for path in missing_files(store)}
    folder = store.path / "commitlog"
    for name in names:
        if name not in missing and not (
            len(name) == 20 and name.isascii() and name.isdigit() and (folder / name).exists()
        ):
            said = f"; {', '.join(list(missing)[:5])} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
            raise ConfigurationError(f"--accept-missing {name}: no file of that name is missing in {folder}{said}")
    others = [name for name in missing if name not in names]
    if names and others:
        more = f", and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise ConfigurationError(
            f"{folder / others[0]} is missing too{more}. Restore it from a backup, or give it up as well: "
            f"--accept-missing {others[0]}. Nothing was changed"
        )
    return [path for name, path in sorted(missing.items()) if name in names]


def known_messages(store: OfflineStore, missing: Sequence[Path]) -> int:
    """How many messages the queues know of that lay in these files."""
    size = store.settings.commitlog_file_bytes
    return sum(
        len(UnitEvidence.of_queue(queue, int(path.name), int(path.name) + size))
        for path in missing
        for queue in store.queues
    )


def give_up(
    path: Path, names: Sequence[str], *, index_slots: int | None = None, files: Files | None = None
) -> list[Path]:
    """Put files of zeros in the place of these missing ones of the store at ``path``, on disk when it returns; which.

    Raises ``StoreLocked``, and ``ConfigurationError`` as ``chosen_files``; then nothing is changed.
    """
    files = files or Files()
    with OfflineStore(path, Findings(), index_slots=index_slots) as store:
        chosen, size = chosen_files(store, names), store.settings.commitlog_file_bytes
    lock = StoreLock(files, path)
    lock.take()
    try:
        make_durable_folder(files, path / OWN_FOLDER)
        for each in chosen:
            files.close(create_whole(files, each, size, path / OWN_FOLDER / "new"))
    finally:
        lock.release()
    return chosen
