"""``flintmq/replication.json``: the set that a store belongs to, and the epochs of its log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.json_table import ConfigFile

if TYPE_CHECKING:
    from ..files.file_system import Files


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Content of the file."""

    cluster_id: str = ""
    """Identity of the set; empty: the store never was in one."""
    member: str = ""
    """Id of the member whose store it is."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(number of the leadership, physical offset of its first byte), oldest first."""
    complete: bool = False
    """True if the log lacks nothing since the member was last in sync."""

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> ReplicaRecord:
        """Return the record of a row. Raises ``SHAPE_ERRORS`` for a row that ``to_json`` cannot have made."""
        complete = row.get("complete", False)
        if not isinstance(complete, bool):
            raise TypeError(f"complete is {complete!r}")
        epochs = tuple((int(number), int(start)) for number, start in row.get("epochs", []))
        _check(epochs)
        return cls(str(row.get("clusterId", "")), str(row.get("member", "")), epochs, complete)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a row."""
        return {
            "clusterId": self.cluster_id,
            "member": self.member,
            "epochs": [list(each) for each in self.epochs],
            "complete": self.complete,
        }


def _check(epochs: Iterable[tuple[int, int]]) -> None:
    last_number, last_start = 0, -1
    for number, start in epochs:
        if number <= last_number or start <= last_start:
            raise ValueError(f"epoch {number} at {start} follows epoch {last_number} at {last_start}")
        last_number, last_start = number, start


class ReplicaState:
    """The file. For one thread at a time."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self.path = path
        self.record = ReplicaRecord()

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        self.record = self._file.load(ReplicaRecord.from_json)

    def save(self, record: ReplicaRecord) -> None:
        """Replace the file, and its ``.bak``, whose older epochs would be wrong; durable when it returns. Blocks."""
        self._file.save(record.to_json(), backed_up=True)
        self.record = record
