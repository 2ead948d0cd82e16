"""The parts of the broker that requests need."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.frames import FRAME_LENGTH_BYTES
from ..background.flush import DiskStall
from ..background.held_pulls import Selections
from ..background.loop_work import ColdReads
from ..budgets import InFlightBudget, ReceiveBudget, SendBudget
from ..config import PRODUCER_RUNS_MAX
from ..delivery.deduplication import ProducerSequences
from ..delivery.groups.admin import GroupAdmin
from ..delivery.groups.clients import ProducerGroups
from ..delivery.groups.coordinator import GroupChanges, GroupCoordinator, OffsetMover
from ..delivery.pop.service import PopService
from ..delivery.redelivery import RetryService
from ..delivery.scheduled.worker import Delays
from ..delivery.staged import StagedTransactions
from ..delivery.topic_changes import TopicChanges, TopicService
from ..delivery.transactions.checks import TransactionalMessageCheckService
from ..delivery.transactions.service import TransactionalMessageService
from ..delivery.writer import RecordWriter
from ..kernels import short_pops as short_pops_kernel
from ..kernels import short_sends as short_sends_kernel
from ..security.users import AccessTable
from .counters import Counters, NextQueues
from .dispatch import DispatchScheduler
from .short_pops import ShortPops
from .short_sends import ShortSends

if TYPE_CHECKING:
    from ...protocol.commands import ConnectionInfo
    from ..archive.reads import ArchivedReads
    from ..archive.uploader import ArchiveService
    from ..background.flush import FlushService
    from ..background.held_pulls import PullRequestHoldService
    from ..background.services import AllocateMappedFileService, ReputMessageService, StoreStatsService
    from ..config import Settings
    from ..replication.member.replica_member import ReplicaMember
    from ..security.audit import AuditLog
    from ..security.tls import TlsFiles
    from ..security.users import Authenticator
    from ..store import MessageStore
    from .connected_client import ConnectedClient

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreServices:
    """The store and the services that work on it in the background."""

    store: MessageStore
    flush: FlushService
    reput: ReputMessageService
    allocation: AllocateMappedFileService
    stats: StoreStatsService


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """The audit log; the users, None without authentication; certificates, None if connections are not encrypted."""

    audit: AuditLog
    authenticator: Authenticator | None = None
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """The process that the broker runs in.

    ``readers``: threads that read from the disk; ``fatal`` ends the process after a failure that the broker cannot
    survive: its arguments are the name of the part that failed and the exception; ``recovery_seconds``: duration of the
    store's recovery; ``metrics_address``: HOST:PORT of the metrics endpoint, or an empty string.
    """

    loop: asyncio.AbstractEventLoop
    readers: ThreadPoolExecutor
    fatal: Callable[[str, BaseException], None]
    recovery_seconds: float
    metrics_address: str


class RemotingFigures(NamedTuple):
    """Counts of the gateway for RocketMQ's clients. ``name_servers_missing``: those that have no registration of this
    broker although it is the primary."""

    connections: int = 0
    held_pulls: int = 0
    name_servers: int = 0
    name_servers_missing: int = 0


class Broker:
    """The parts of the broker that handlers use, by name. Belongs to the event loop."""

    close_connection: Callable[[int, int], ConnectionInfo | None]
    """Callback, which the server sets, that closes the connection with this number and time of opening (ms since 1970,
    or -1: any) and returns its GET_CONNECTIONS row; None: it is not open."""

    def __init__(
        self,
        settings: Settings,
        services: StoreServices,
        holds: PullRequestHoldService,
        security: BrokerSecurity,
        process: BrokerProcess,
    ) -> None:
        self.settings = self.settings_at_start = settings
        self.settings_changes = 0
        """Number of changes since the start."""
        self.limits = limits = settings.limits
        self.sync = settings.flush.policy == "sync"
        self.auto_create = settings.auto_create_topics()
        self.store = store = services.store
        self.flush = services.flush
        self.reput = services.reput
        self.allocation = services.allocation
        self.stats = services.stats
        self.holds = holds
        self.turns = holds.turns
        """Scheduler for the steps of pulls with a filter."""
        self.audit = security.audit
        self.authenticator = security.authenticator
        self.tls = security.tls
        self.loop = loop = process.loop
        self.readers = process.readers
        self.fatal = process.fatal
        self.recovery_seconds = process.recovery_seconds
        self.metrics_address = process.metrics_address
        self.started_at = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of requests that wait; the loop itself refers to tasks only weakly."""
        self.access = AccessTable(self._access_changed)
        self.selections = Selections()
        self.counters = Counters()
        self.dispatch = DispatchScheduler(
            store, self.flush, self.reput, self.allocation, holds, loop=loop, fatal=self.fatal
        )
        # After the dispatch, which the parts of delivery tell of everything that they append.
        self._create_delivery()
        self.receive_memory = ReceiveBudget(limits.receive_bytes_max, loop.call_soon)
        self.send_memory = SendBudget(limits.send_bytes_max, loop.time, loop.call_later)
        self.cold_reads = ColdReads(settings.server.reader_threads)
        self.stall = DiskStall(
            self.flush,
            stall_s=settings.flush.stall_ms / 1000,
            clock=time.monotonic,
            call_later=loop.call_later,
            on_change=self._limit_in_flight,
        )
        self.in_flight = InFlightBudget()
        self._limit_in_flight()
        self.offset_mover = OffsetMover(store, self.groups, self.writer, settings.server.name)
        self.produce_frame_bytes_max = limits.produce_frame_bytes_max + FRAME_LENGTH_BYTES
        """Size of the largest PRODUCE frame, including its length field."""
        self.next_queues = NextQueues(short_sends_kernel.T_WIDTH)
        # These are set later, by the parts around the broker: server, gateway, replica set.
        self.users_changed: Callable[[ConnectedClient], None] = lambda peer: None
        """Callback that reloads the users at once, after the client ``peer`` changed them."""
        self.list_connections: Callable[[int, int], list[ConnectionInfo]] = lambda after, count: []
        """Callback that returns the GET_CONNECTIONS rows of the first ``count`` connections after number ``after``."""
        self.remoting_figures: Callable[[], RemotingFigures] = RemotingFigures
        """Callback that returns the number of RocketMQ's connections, and of their held pulls. Any thread."""
        self.when_settings_change: list[Callable[[Settings], None]] = []
        """Callbacks that get all settings after each change."""
        self.when_replicated: Callable[[Callable[[], None]], object] = lambda done: done()
        """Calls its argument when the other members of the replica set that must have the tables as they are now have
        them on disk; at once in a broker on its own."""
        self.member: ReplicaMember | None = None
        """This broker's place in a replica set; None: it is on its own."""
        self.archived_reads: ArchivedReads | None = None
        """The reads of what only the archive has; None: there is no archive."""
        self.archive: ArchiveService | None = None
        """The writer of the archive; None: there is no archive, or this broker does not lead its set."""
        self.connections = 0
        self.short_sends: ShortSends | None = None
        """The short way of PRODUCE frames; None where there is none, and as long as its kernels are not compiled."""
        self.short_pops: ShortPops | None = None
        """The short way of POP_MESSAGE and ACK_MESSAGE frames, likewise."""
        self.begin_short_ways()

    def begin_short_ways(self) -> None:
        """Begin each short way, unless it has begun, if its kernels are compiled by now."""
        if self.short_sends is None and short_sends_kernel.is_ready():
            self.short_sends = ShortSends(self)
        if self.short_pops is None and short_pops_kernel.is_ready():
            self.short_pops = ShortPops(self)

    def _create_delivery(self) -> None:
        """Create what happens to messages beyond storing and reading them; each part uses some of those before it."""
        store, loop, limits, rules = self.store, self.loop, self.limits, self.settings.transactions
        appended = self.dispatch.appended
        self.sequences = ProducerSequences(
            runs_max=limits.sequence_runs_max,
            producer_runs_max=PRODUCER_RUNS_MAX,
            expiry_s=limits.sequence_expiry_ms / 1000,
        )
        self.topic_changes = TopicChanges(store, loop, self._topic_deleted)
        self.topics = TopicService(store, self.topic_changes, self.holds)
        self.writer = RecordWriter(store, self.flush, self.topic_changes, loop, appended, sync=self.sync)
        self.delays = Delays(store, self.writer, loop, self.readers, appended, self.fatal, now_ms=store.clock.now_ms)
        self.groups = GroupCoordinator(
            store,
            loop.time,
            loop.call_later,
            groups_max=limits.groups_max,
            offsets_max=limits.committed_offsets_max,
            subscription_bytes_max=limits.subscription_bytes_max,
        )
        self.group_changes = GroupChanges(store, loop, self.readers)
        self.producer_groups = ProducerGroups(loop.time, self.groups.clients.owners)
        self.pops = PopService(self.writer, self.groups, loop, self.readers, self.counters, now_ms=store.clock.now_ms)
        self.retries = RetryService(self.groups, self.writer, self.counters)
        self.group_admin = GroupAdmin(
            store, self.groups, self.pops, self.holds, self.topic_changes, self.counters.forget_group
        )
        # A callback, because pops need the groups, and the groups have to know of pops.
        self.groups.clients.popping_of = self.pops.live
        self.dispatch.popped, self.dispatch.watched = self.pops.waits.by_topic, self.pops.watches.by_topic
        self.transactions = TransactionalMessageService(
            self.writer, self.topic_changes, self.readers, open_max=rules.open_max
        )
        self.transaction_checks = TransactionalMessageCheckService(
            self.transactions,
            self.producer_groups,
            timeout_ms=rules.timeout_ms,
            check_interval_ms=rules.check_interval_ms,
            check_times_max=rules.check_times_max,
            clock=loop.time,
            call_at=loop.call_at,
        )
        self.transactions.on_open = self.transaction_checks.opened
        self.staged = StagedTransactions(
            self.writer,
            self.delays.deliverer,
            timeout_ms=rules.prepared_timeout_ms,
            stages_max=rules.prepared_attempts_max,
            now_ms=self.delays.now_ms,
        )

    def follows(self) -> bool:
        """Return whether another member of the replica set leads: it may have more of a queue. Any thread."""
        return self.member is not None and self.member.refusal() is not None

    def change_settings(self, settings: Settings) -> None:
        """Apply new values of the settings that ``HOT_SETTINGS`` (``settings.py``) allows to change."""
        self.settings = settings
        self.settings_changes += 1
        self.limits = settings.limits
        self._limit_in_flight()
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
        refusal = self.store.set_refusal
        return (refusal().message if refusal is not None else "") or self.store_refusal()

    def store_refusal(self) -> str:
        """Return the reason why nothing can be written to the store at the moment, or "". Callable from any thread."""
        store = self.store
        if store.failed is not None:
            return f"the store stopped writing: {store.failed}"
        if store.refusal is not None:
            return store.refusal().message
        if self.allocation.full:
            return f"the disk of {store.path} is full: there is no space for the log to grow"
        return self.stall.refusal()

    def _limit_in_flight(self) -> None:
        self.in_flight.limit(self.limits.in_flight_bytes_max, stalled=self.stall.seconds() > 0)

    def flushed(self) -> None:
        """Dispatch after a flush: records that are now on disk may become visible."""
        self.stall.flushed()
        # First, so that the consumer's response leaves before the producer's.
        if self.dispatch.awaited:
            self.dispatch.serve_waiting()
        self.dispatch.soon()

    def _topic_deleted(self, topic: str) -> None:
        self.counters.forget_topic(topic)
        self.sequences.forget_topic(topic)
        if self.short_sends is not None:
            self.short_sends.retire_topic(topic)
        self.next_queues.forget(topic)
        self.pops.topic_deleted(topic)

    def _access_changed(self) -> None:
        if self.short_sends is not None:
            self.short_sends.retire_all()
        if self.short_pops is not None:
            self.short_pops.retire_all()
        self.holds.wake_all()
        self.pops.check_again()
