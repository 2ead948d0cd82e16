"""How to tell the folder of a backup from that of a store. Both have a folder ``commitlog``.

``flintmq-broker backup`` writes ``backup.json`` last: a folder without it holds a backup that is not complete.
"""

from __future__ import annotations

import re
from pathlib import Path

from .errors import ConfigurationError

MANIFEST, PROGRESS = "backup.json", "backup-progress.json"
TABLES_PREFIX = "tables-"
_TABLES_NAME = re.compile(rf"{TABLES_PREFIX}[0-9]+\Z")

WHOLE, INCOMPLETE = "a backup", "a backup that is not complete"


class NotAStore(ConfigurationError):
    """A backup is named where a store belongs."""


def backup_kind(folder: Path) -> str:
    """``WHOLE``, ``INCOMPLETE``, or an empty text where the folder holds no backup."""
    if (folder / MANIFEST).exists():
        return WHOLE
    if (folder / PROGRESS).exists():
        return INCOMPLETE
    # One that somebody copied without its manifest. A store has its tables in `config`.
    has_tables = folder.is_dir() and any(_TABLES_NAME.match(path.name) for path in folder.iterdir())
    return INCOMPLETE if has_tables and not (folder / "checkpoint").exists() else ""


def refuse_backup(folder: Path) -> None:
    """Raise ``NotAStore`` if the folder holds a backup; whoever needs a store calls this before changing anything."""
    kind = backup_kind(folder)
    if kind == WHOLE:
        raise NotAStore(
            f"{folder} is a backup, no store: there is a {MANIFEST} in it. `flintmq-broker restore {folder} STORE` "
            f"makes a store of it in the empty folder STORE, and `flintmq-broker verify {folder}` checks it. Nothing "
            "was changed"
        )
    if kind:
        raise NotAStore(
            f"{folder} is no store: it holds a backup that is not complete, for there is no {MANIFEST} in it. If it "
            f"was interrupted, `flintmq-broker backup STORE {folder}` goes on with it; if it is a copy, copy "
            f"{MANIFEST} too. `flintmq-broker restore {folder} STORE` makes a store of it then. Nothing was changed"
        )
