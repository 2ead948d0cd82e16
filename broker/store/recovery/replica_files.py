"""Files that a member of a replica set keeps beside its log: the epochs, and requests to change the log at a start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..tables.replica_state import ReplicaState
from .log_cut import LogCut
from .log_restart import LogRestart

if TYPE_CHECKING:
    from ..files.file_system import Files


class ReplicaFiles:
    """The files of one store, in ``flintmq/``."""

    def __init__(self, files: Files, store: Path, own_folder: Path, log_file_bytes: int) -> None:
        self.state = ReplicaState(files, own_folder / "replication.json")
        self.cut = LogCut(files, store, own_folder)
        self.restart = LogRestart(files, store, own_folder, log_file_bytes, self.state)

    def finish_changes(self) -> None:
        """Do what was requested before this start. The store is locked, and nothing of it is open. Blocks."""
        self.restart.finish()
        self.cut.finish()
