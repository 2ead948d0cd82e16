"""The folder of the results and Spark's checkpoints, checked before Spark starts because Spark does not check it.

Results and checkpoints belong together. With a new checkpoint and old results, Spark would silently skip every
micro-batch whose number is in the results already; with an old checkpoint and new results, it would never write the
micro-batches that the checkpoint lists as done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidFolder

CHECKPOINT = "_checkpoint"
"""Folder of the checkpoints within the results; readers of Parquet ignore names that begin with ``_``."""
SINK_LOG = "_spark_metadata"
"""Spark's list of the valid files. Other files are left from micro-batches that did not finish."""
LOCK = ".lock"
PURPOSE = "pipeline.json"
"""File in the checkpoint folder with the topics and the folder that the checkpoints are for."""


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """The folder ``path`` with Parquet files; ``checkpoint`` in it has a folder for each query."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.path / CHECKPOINT

    @contextlib.contextmanager
    def claimed(self, purpose: dict[str, str]) -> Iterator[None]:
        """Hold the folder for one run; ``purpose`` must be the same as when its checkpoints began.

        Raises ``InvalidFolder`` if another run holds the folder or its contents do not fit.
        """
        try:
            self._check_files()
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFolder(f"{error.filename} cannot be used: {error.strerror}; use another folder") from error
        with _locked(self.checkpoint):
            self._check_purpose(purpose)
            yield

    def check_results(self) -> None:
        """Raise ``InvalidFolder`` if no run has written results."""
        if not (self.path / SINK_LOG).is_dir():
            raise InvalidFolder(f"{self.path} holds no results: use the folder that `count` wrote to")

    def _check_files(self) -> None:
        commits = self.checkpoint / "departures" / "commits"
        has_checkpoint = commits.is_dir() and any(commits.iterdir())
        if has_checkpoint != (self.path / SINK_LOG).is_dir():
            there, missing = ("a checkpoint", "results") if has_checkpoint else ("results", "checkpoint")
            raise InvalidFolder(f"{self.path} holds {there} without the {missing} that belong to it; use a new folder")
        if not (self.checkpoint / PURPOSE).exists():
            ours = (self.checkpoint, self.checkpoint / LOCK)
            for folder in (self.path, self.checkpoint):
                if other := next((path for path in folder.glob("*") if path not in ours), None):
                    raise InvalidFolder(
                        f"{folder} holds other files, such as {other.name}: use an empty folder or a new one"
                    )

    def _check_purpose(self, purpose: dict[str, str]) -> None:
        file = self.checkpoint / PURPOSE
        purpose = {**purpose, "results": str(self.path)}  # Spark's list of files has absolute paths
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            file.write_text(json.dumps(purpose, indent=1) + "\n", encoding="utf-8")
            return
        except (OSError, ValueError) as error:
            raise InvalidFolder(f"{file} cannot be read: {error}; use another folder") from error
        for name, value in purpose.items():
            if before.get(name) != value:
                raise InvalidFolder(
                    f"the checkpoint in {self.checkpoint} is for {name} {before.get(name)!r}, not {value!r}: use "
                    f"{before.get(name)!r} again, or a new folder"
                )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder; the system releases it however this process ends."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidFolder(
                f"another run uses the checkpoint in {folder}: wait until it ends, or stop it"
            ) from None
        yield
