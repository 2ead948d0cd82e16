"""``flintmq-broker rebuild``: queues and index made anew from the log.

It is a start of the store that trusts none of them: first holes and end of the log are found, and damage is contained;
then the checkpoint says that nothing is dispatched, the old files go to ``flintmq/aside/``, and the
log is dispatched from its beginning. Killed at any point, the next start goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..store.message_store import MessageStore
from ..store.quarantine import QuarantinedRange
from .findings import Findings
from .offline import OfflineStore
from .output import Progress


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was made: ``messages`` dispatched into ``queues`` and ``index_files`` in ``seconds``; ``cut_bytes``: what
    a torn write had left behind the end of the log; ``quarantined``: damage of the log that was contained."""

    messages: int
    queues: int
    index_files: int
    cut_bytes: int
    seconds: float
    quarantined: list[QuarantinedRange]


def rebuild(path: Path, progress: Progress, *, index_slots: int | None = None) -> Rebuilt:
    """Rebuild queues and index of the store at ``path``. Raises ``FlintError`` where it is locked, or its log has
    missing or foreign files; then nothing is changed."""
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
