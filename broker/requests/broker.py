"""The parts of the broker that requests need."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ...protocol.errors import BrokerError
from ..background.cold_reads import ColdReads
from ..background.disk_stall import DiskStall
from ..background.flush import FlushService
from ..background.held_pulls import PullRequestHoldService
from ..background.preallocation import AllocateMappedFileService
from ..background.reput import ReputMessageService
from ..background.selections import Selections
from ..background.store_stats import StoreStatsService
from ..budgets.receive_buffers import ReceiveBudget
from ..budgets.send_budget import SendBudget
from ..config import PRODUCER_RUNS_MAX, Settings
from ..delivery.deduplication import ProducerSequences
from ..delivery.groups.coordinator import GroupCoordinator
from ..delivery.groups.offset_moved import TOPIC as OFFSET_MOVED
from ..delivery.groups.offset_moved import offset_moved_record
from ..delivery.groups.producer_groups import ProducerGroups
from ..delivery.scheduled.worker import Delays
from ..delivery.staged.service import StagedTransactions
from ..delivery.topic_changes import TopicChanges
from ..delivery.transactions.checks import TransactionalMessageCheckService
from ..delivery.transactions.service import TransactionalMessageService
from ..delivery.writer import RecordWriter
from ..security.access import AccessTable
from ..security.audit import AuditLog
from ..security.authenticator import Authenticator
from ..security.tls import TlsFiles
from ..store import MessageStore
from .counters import Counters
from .dispatch import DispatchScheduler

if TYPE_CHECKING:
    from .connected_client import ConnectedClient

log = logging.getLogger(__name__)

FRAME_LENGTH_BYTES = 4
"""Size of a frame's length field, which the limits do not count."""


class Broker:
    """The parts of the broker that handlers use. Belongs to the event loop.

    ``fatal`` ends the process after a failure that the broker cannot survive; its arguments are the name of the part
    that failed and the exception.
    """

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        flush: FlushService,
        reput: ReputMessageService,
        allocation: AllocateMappedFileService,
        holds: PullRequestHoldService,
        stats: StoreStatsService,
        *,
        loop: asyncio.AbstractEventLoop,
        readers: ThreadPoolExecutor,
        recovery_seconds: float,
        metrics_address: str,
        audit: AuditLog,
        fatal: Callable[[str, BaseException], None],
        authenticator: Authenticator | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.settings = self.settings_at_start = settings
        self.limits = settings.limits
        self.store = store
        self.flush = flush
        self.reput = reput
        self.allocation = allocation
        self.holds = holds
        self.stats = stats
        self.loop = loop
        self.readers = readers
        self.recovery_seconds = recovery_seconds
        self.metrics_address = metrics_address
        """HOST:PORT of the metrics endpoint; empty if there is none."""
        self.authenticator = authenticator
        """None if the broker does not use authentication."""
        self.tls = tls
        """None if connections are not encrypted."""
        self.turns = holds.turns
        """Scheduler for the steps of pulls with a filter."""
        self.selections = Selections()
        self.counters = Counters()
        self.sequences = ProducerSequences(
            runs_max=self.limits.sequence_runs_max,
            producer_runs_max=PRODUCER_RUNS_MAX,
            expiry_s=self.limits.sequence_expiry_ms / 1000,
        )
        self.topic_changes = TopicChanges(store, loop, self._topic_deleted)
        self.started_at = time.monotonic()
        self.sync = settings.flush.policy == "sync"
        self.dispatch = DispatchScheduler(store, flush, reput, allocation, holds, loop=loop, fatal=fatal)
        appended = self.dispatch.appended
        self.writer = RecordWriter(store, flush, self.topic_changes, loop, appended, sync=self.sync)
        self.delays = Delays(store, self.writer, loop, readers, appended, fatal, now_ms=store.clock.now_ms)
        self.groups = GroupCoordinator(
            store,
            loop.time,
            loop.call_later,
            groups_max=self.limits.groups_max,
            offsets_max=self.limits.committed_offsets_max,
        )
        self.producer_groups = ProducerGroups(loop.time)
        self.access = AccessTable(holds.wake_all)
        self.audit = audit
        rules = settings.transactions
        self.transactions = TransactionalMessageService(
            self.writer, self.topic_changes, readers, open_max=rules.open_max
        )
        self.transaction_checks = TransactionalMessageCheckService(
            self.transactions,
            self.producer_groups,
            self.writer,
            timeout_ms=rules.timeout_ms,
            check_interval_ms=rules.check_interval_ms,
            check_times_max=rules.check_times_max,
            clock=loop.time,
            call_at=loop.call_at,
        )
        self.staged = StagedTransactions(
            self.writer,
            self.delays.redeliverer,
            timeout_ms=rules.prepared_timeout_ms,
            stages_max=rules.prepared_attempts_max,
            now_ms=self.delays.now_ms,
        )
        self.transactions.on_open = self.transaction_checks.opened
        self.auto_create = settings.auto_create_topics()
        self.in_flight_bytes = 0
        self.in_flight_bytes_max = settings.limits.in_flight_bytes_max
        """Above this many in-flight bytes PRODUCE is refused; -1, which refuses always, while the disk is stalled."""
        self.in_flight_bytes_end = self.in_flight_bytes_max + self.in_flight_bytes_max // 8
        """Above this many in-flight bytes (pending refusals included), connections waiting for a flush are no longer
        read."""
        self.stall = DiskStall(
            flush,
            stall_s=settings.flush.stall_ms / 1000,
            clock=time.monotonic,
            call_later=loop.call_later,
            on_change=self._stall_changed,
        )
        self.produce_bytes_max = settings.limits.produce_frame_bytes_max + FRAME_LENGTH_BYTES
        self.users_changed: Callable[[ConnectedClient], None] = lambda peer: None
        """Callback that reloads the users at once, after the client ``peer`` changed them."""
        self.list_connections: Callable[[int, int], list[tuple[Any, ...]]] = lambda after, count: []
        """Callback that returns the GET_CONNECTIONS rows of the first ``count`` connections after number ``after``."""
        self.when_settings_change: list[Callable[[Settings], None]] = []
        """Callbacks that get all settings after each change."""
        self.receive_memory = ReceiveBudget(settings.limits.receive_bytes_max, loop.call_soon)
        self.send_memory = SendBudget(settings.limits.send_bytes_max, loop.time, loop.call_later)
        self.cold_reads = ColdReads(settings.server.reader_threads)
        self.connections = 0
        self.next_queue: dict[str, int] = {}
        self.kept_headers = 0
        """Number of headers that connections keep: see ``handlers.repeated_produce``."""
        self.fatal = fatal

    def change_settings(self, settings: Settings) -> None:
        """Apply new values of the settings that ``HOT_SETTINGS`` (``settings.py``) allows to change."""
        self.settings = settings
        self.limits = settings.limits
        self._stall_changed()
        self.auto_create = settings.auto_create_topics()
        self.transactions.open_max = settings.transactions.open_max
        self.staged.stages_max = settings.transactions.prepared_attempts_max
        self.groups.groups_max = self.limits.groups_max
        self.groups.offsets_max = self.limits.committed_offsets_max
        for changed in self.when_settings_change:
            changed(settings)

    def write_refusal(self) -> str:
        """Return the reason why the broker refuses messages at the moment, or "" if it accepts them.

        Callable from any thread.
        """
        store = self.store
        if store.failed is not None:
            return f"the store stopped writing: {store.failed}"
        refusal = store.refusal
        if refusal is not None:
            return refusal().message
        if self.allocation.full:
            return f"the disk of {store.path} is full: there is no space for the log to grow"
        return self.stall.refusal()

    def _stall_changed(self) -> None:
        in_flight_bytes_max = self.limits.in_flight_bytes_max
        self.in_flight_bytes_max = -1 if self.stall.seconds() else in_flight_bytes_max
        self.in_flight_bytes_end = in_flight_bytes_max + in_flight_bytes_max // 8

    def flushed(self) -> None:
        """Dispatch after a flush: records that are now on disk may become visible."""
        self.stall.flushed()
        self.dispatch.soon()

    def _topic_deleted(self, topic: str) -> None:
        self.counters.forget_topic(topic)
        self.sequences.forget_topic(topic)
        self.next_queue.pop(topic, None)

    def offset_moved(self, group: str, member: str, topic: str, queue_id: int, asked: int, moved_to: int) -> None:
        """Move a group that asked for expired messages to the first that exist, and store an event about it."""
        name = self.groups.progress_name(group, member)
        committed = self.store.consumer_offsets.committed_of(name, topic, queue_id)
        if committed is not None and committed >= moved_to:
            return  # already moved; members may ask several times with the old offset
        if committed is None and not self.store.groups.has(group):
            return  # a reader that uses the name without being a group: it has no members and no progress
        log.warning(
            "group %s: messages %d to %d of topic %s, queue %d were removed before it had consumed them",
            group,
            asked,
            moved_to - 1,
            topic,
            queue_id,
        )
        self.groups.offsets_moved += 1
        has_room = committed is not None or len(self.store.consumer_offsets) < self.groups.offsets_max
        if has_room and (name == group or committed is not None):  # most broadcasting members commit nothing
            self.store.consumer_offsets.commit(name, topic, queue_id, moved_to)
        record = offset_moved_record(
            self.settings.server.name, group, topic, queue_id, asked, moved_to, self.store.commitlog.store_host
        )

        def made(error: BrokerError | None) -> None:
            try:
                if error is not None:
                    raise error
                self.writer.append_records([record])
            except BrokerError as failure:
                log.error("cannot store the event that group %s was moved: %s", group, failure)

        self.writer.with_topics([OFFSET_MOVED], made)
