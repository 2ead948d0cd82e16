"""``flintmq-broker rebuild``: rebuild queues and index from the log.

It is a start of the store that trusts none of them: it finds the holes and the end of the log and contains damage; then
it resets the checkpoint to nothing dispatched, moves the old files to ``flintmq/aside/`` and dispatches the log from
its beginning. If it is killed at any point, the next start continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..store.damage.quarantine import QuarantinedRange
from ..store.message_store import MessageStore
from .findings import Findings
from .offline import OfflineStore
from .output import Progress


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
