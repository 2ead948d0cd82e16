"""Where the results go, and Spark's checkpoints: checked before anything starts, since Spark does not.

Results and checkpoints belong together. A new checkpoint beside old results would have Spark leave out every batch
whose number the results know already, without a word; an old checkpoint beside new results would never fill them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidFolder

CHECKPOINT = "_checkpoint"
"""Where the checkpoints are within the results, unless another folder is given: readers of Parquet pass over ``_``."""
SINK_LOG = "_spark_metadata"
"""Spark's list of the files that count. Files that are not in it are left of a batch that was not finished."""
LOCK = ".lock"
PURPOSE = "pipeline.json"
"""What the checkpoints are for, so that they are not gone on with for something else."""


@dataclass(frozen=True, slots=True)
class Folders:
    """``results``: Parquet; ``checkpoint``: a folder for each query in it."""

    results: Path
    checkpoint: Path

    @classmethod
    def of(cls, results: Path, checkpoint: Path | None = None) -> Folders:
        """Absolute ones; without ``checkpoint`` it is in the results."""
        results = results.absolute()
        return cls(results, checkpoint.absolute() if checkpoint else results / CHECKPOINT)

    def checkpoint_of(self, query: str) -> str:
        """Where a query keeps how far it is."""
        return str(self.checkpoint / query)

    @contextlib.contextmanager
    def claimed(self, purpose: dict[str, str]) -> Iterator[None]:
        """Hold both for one pipeline; ``purpose``: what it reads and writes, as when these checkpoints began.

        Raises ``InvalidFolder`` where another pipeline holds them, or one of them is not what it should be.
        """
        try:
            self._check_files()
            self.results.mkdir(parents=True, exist_ok=True)
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFolder(f"{error.filename} cannot be used: {error.strerror}; give another folder") from error
        with _locked(self.checkpoint):
            self._check_purpose(purpose)
            yield

    def _check_files(self) -> None:
        begun = _has_files(self.checkpoint / "departures" / "commits")
        written = (self.results / SINK_LOG).is_dir()
        if written and not begun:
            raise InvalidFolder(
                f"{self.results} holds results whose checkpoint is not in {self.checkpoint}: give its folder to go on "
                "with it, or another folder for the results to begin anew"
            )
        if begun and not written:
            raise InvalidFolder(
                f"the checkpoint in {self.checkpoint} has written results that {self.results} does not hold: give "
                "their folder to go on, or another checkpoint to begin anew"
            )
        if not (self.checkpoint / PURPOSE).exists():
            ours = (self.checkpoint, self.checkpoint / LOCK)
            for folder in (self.results, self.checkpoint):
                if other := next((path for path in folder.glob("*") if path not in ours), None):
                    raise InvalidFolder(
                        f"{folder} holds other files, such as {other.name}: give an empty folder, or a new one"
                    )

    def _check_purpose(self, purpose: dict[str, str]) -> None:
        file = self.checkpoint / PURPOSE
        purpose = {**purpose, "results": str(self.results)}
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            file.write_text(json.dumps(purpose, indent=1) + "\n", encoding="utf-8")
            return
        except (OSError, ValueError) as error:
            raise InvalidFolder(f"{file} cannot be read: {error}; give another checkpoint folder") from error
        for name, value in purpose.items():
            if before.get(name) != value:
                raise InvalidFolder(
                    f"the checkpoint in {self.checkpoint} is of {name} {before.get(name)!r}, not of {value!r}: give "
                    "that, or another checkpoint and other results"
                )


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder is this process's until the end, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows: Spark's own files still refuse a second writer, later and less clearly
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidFolder(
                f"another pipeline runs with the checkpoint in {folder}: wait for its end, or stop it"
            ) from None
        yield
