"""The way in for messages: the parts of the broker that take and acknowledge a PRODUCE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..background.flush import DiskStall, FlushService
    from ..budgets import InFlightBudget
    from ..delivery.deduplication import ProducerSequences
    from ..delivery.scheduled.worker import Delays
    from ..delivery.staged import StagedTransactions
    from ..delivery.topic_changes import TopicChanges
    from ..delivery.transactions.service import TransactionalMessageService
    from ..delivery.writer import RecordWriter
    from ..store import MessageStore
    from .counters import Counters
    from .dispatch import DispatchScheduler


@dataclass(frozen=True, slots=True, eq=False)
class Intake:
    """The parts of the broker that every PRODUCE uses, and after them those of some: half, staged and delayed messages,
    duplicates. Both protocols, their general and their short way, use it."""

    store: MessageStore
    topic_changes: TopicChanges
    sequences: ProducerSequences
    in_flight: InFlightBudget
    dispatch: DispatchScheduler
    counters: Counters
    frame_bytes_max: int
    """Size of the largest PRODUCE frame, including its length field."""
    sync: bool
    """True if the broker acknowledges messages when they are on disk."""
    writer: RecordWriter
    flush: FlushService
    stall: DiskStall
    delays: Delays
    transactions: TransactionalMessageService
    staged: StagedTransactions
    next_queue: dict[str, int] = field(default_factory=dict)
    """By topic: the queue, before the remainder is taken, of its next frame that names none."""
