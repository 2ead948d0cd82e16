"""What handlers work with: the broker's parts, and the connection that a request came from."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from ....protocol.errors import BrokerError
from ....protocol.frames import Frame
from ....protocol.scram import ServerExchange
from ...config import Settings
from ...delivery.coordinator import GroupCoordinator
from ...delivery.delays import Delays
from ...delivery.offset_moved import TOPIC as OFFSET_MOVED
from ...delivery.offset_moved import offset_moved_record
from ...delivery.prepared.service import PreparedMessages
from ...delivery.producer_groups import ProducerGroups
from ...delivery.remote import Remote
from ...delivery.sequences import ProducerSequences
from ...delivery.topic_changes import TopicChanges
from ...delivery.transactions.checks import TransactionalMessageCheckService
from ...delivery.transactions.service import TransactionalMessageService
from ...delivery.writer import RecordWriter
from ...security.access import Access, AccessTable
from ...security.audit import AuditLog
from ...security.authenticator import Authenticator
from ...security.tls import TlsFiles
from ...security.users import User
from ...services.allocation import AllocateMappedFileService
from ...services.disk_stall import DiskStall
from ...services.flush import FlushService
from ...services.long_polling import HeldPull, PullRequestHoldService
from ...services.reput import ReputMessageService
from ...services.store_stats import StoreStatsService
from ...services.turns import Sharing
from ...store import POPULATE_AHEAD_BYTES, MessageStore
from ..cold_reads import ColdReads
from ..receiving import ReceiveMemory
from ..selections import Selection, Selections, Share
from ..sending import SendMemory
from .counters import Counters

T = TypeVar("T")
log = logging.getLogger(__name__)

FRAME_LENGTH_BYTES = 4
"""The length field in front of a frame, which the limits do not count."""
TURN_BEHIND_BYTES = 2 * 1024 * 1024
"""Where more of the log than this is to be dispatched, who floods the broker waits for it."""
TURN_BEHIND_SHARED_BYTES = 512 * 1024
"""The same where others are served, too: then hardly two large frames are in the works at a time, and a processor is
left for those others. Alone, a producer is faster where its next frame is written while the last one is dispatched."""
DISPATCH_WAIT_S = 1.0
"""A request that asks for what was just acknowledged waits at most this long for it to be dispatched."""


class Broker:
    """The parts that requests are answered with. Belongs to the event loop.

    ``fatal`` ends the process when something fails that nothing can go on without; it takes what, and the exception.
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
        """HOST:PORT of the metrics' port; empty where there is none."""
        self.authenticator = authenticator
        """None where nobody has to authenticate."""
        self.tls = tls
        """None where connections are not encrypted."""
        self.turns = holds.turns
        """What pulls with a filter do, step by step."""
        self.selections = Selections()
        self.counters = Counters()
        self.sequences = ProducerSequences(
            runs_max=self.limits.sequence_runs_max,
            producer_runs_max=self.limits.sequence_producer_runs_max,
            expiry_s=self.limits.sequence_expiry_ms / 1000,
        )
        self.topic_changes = TopicChanges(store, loop, self._topic_deleted)
        self.started_at = time.monotonic()
        self.sync = settings.flush.policy == "sync"
        self.writer = RecordWriter(store, flush, self.topic_changes, loop, self.appended, sync=self.sync)
        self.delays = Delays(store, self.writer, loop, readers, self.appended, fatal, now_ms=store.clock.now_ms)
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
        self.prepared = PreparedMessages(
            self.writer,
            self.delays.mover,
            timeout_ms=rules.prepared_timeout_ms,
            attempts_max=rules.prepared_attempts_max,
            now_ms=self.delays.now_ms,
        )
        self.transactions.on_open = self.transaction_checks.opened
        self.auto_create = settings.auto_create_topics()
        self.in_flight_bytes = 0
        self.in_flight_bytes_max = settings.limits.in_flight_bytes_max
        """From what on PRODUCE is refused; -1, so that it always is, while the disk is stalled."""
        self.in_flight_bytes_end = self.in_flight_bytes_max + self.in_flight_bytes_max // 8
        """From what on nobody is read who waits for a flush: the refusals that wait in their order count too."""
        self.stall = DiskStall(
            flush,
            stall_s=settings.flush.stall_ms / 1000,
            clock=time.monotonic,
            call_later=loop.call_later,
            on_change=self._stall_changed,
        )
        self.produce_bytes_max = settings.limits.produce_frame_bytes_max + FRAME_LENGTH_BYTES
        self.produce_messages_max = settings.limits.produce_messages_max
        self.users_changed: Callable[[Peer], None] = lambda peer: None
        """Reads the users again at once, after the one at ``peer`` changed them."""
        self.when_settings_change: list[Callable[[Settings], None]] = []
        """Called with all settings after each change of some."""
        self.receive_memory = ReceiveMemory(settings.limits.receive_bytes_max, loop.call_soon)
        self.send_memory = SendMemory(settings.limits.send_bytes_max, loop.time, loop.call_later)
        self.cold_reads = ColdReads(settings.server.reader_threads)
        self.connections = 0
        self.sharing = Sharing()
        """Whose frames are handled, by ``time.monotonic``."""
        self.next_queue: dict[str, int] = {}
        self.fatal = fatal
        self._dispatch_due = False
        self._flush_due = False
        self._allocate_at = 0
        self._allocate_every_bytes = min(settings.store.allocate_step_bytes, POPULATE_AHEAD_BYTES) // 4
        """The write offset from which on more of the log is to be allocated."""
        self._undispatched: deque[tuple[int, float, Callable[[], None]]] = deque()
        """Who waits for the dispatch: up to which offset, how long at most, and what to call. Both only grow."""

    def change_settings(self, settings: Settings) -> None:
        """Go on with other values for those settings that ``HOT_SETTINGS`` (``settings.py``) allows."""
        self.settings = settings
        self.limits = settings.limits
        self._stall_changed()
        self.auto_create = settings.auto_create_topics()
        self.transactions.open_max = settings.transactions.open_max
        self.prepared.attempts_max = settings.transactions.prepared_attempts_max
        self.groups.groups_max = self.limits.groups_max
        self.groups.offsets_max = self.limits.committed_offsets_max
        for changed in self.when_settings_change:
            changed(settings)

    def write_refusal(self) -> str:
        """Why no message is taken at the moment; empty where they are. Any thread."""
        store = self.store
        if store.failed is not None:
            return f"the store stopped writing: {store.failed}"
        refusal = store.refusal
        if refusal is not None:
            return refusal().message
        if self.allocation.full:
            return f"the disk of {store.path} is full: there is no room for more of the log"
        return self.stall.refusal()

    def _stall_changed(self) -> None:
        in_flight_bytes_max = self.limits.in_flight_bytes_max
        self.in_flight_bytes_max = -1 if self.stall.seconds() else in_flight_bytes_max
        self.in_flight_bytes_end = in_flight_bytes_max + in_flight_bytes_max // 8

    def flushed(self) -> None:
        """A flush is over: what is on disk may be seen now."""
        self.stall.flushed()
        self.dispatch_soon()

    def _topic_deleted(self, topic: str) -> None:
        self.counters.forget_topic(topic)
        self.sequences.forget_topic(topic)
        self.next_queue.pop(topic, None)

    def appended(self) -> None:
        """Messages were appended: once this turn of the loop is over, wake the flush and dispatch them.

        One wake and one dispatch serve every connection that was read in the turn, and answers leave before them.
        """
        self._flush_due = True
        self.dispatch_soon()

    def dispatch_soon(self) -> None:
        """More of the log may be dispatched: do so once this turn of the loop is over."""
        if not self._dispatch_due:
            self._dispatch_due = True
            self.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        if not self._dispatch_due:
            return  # a read that could not wait for its turn has done it
        self._dispatch_due = False
        try:
            if self._flush_due:
                self._flush_due = False
                self.flush.wake()
            self.reput.step()
            if self.store.write_offset >= self._allocate_at:
                self._allocate_at = self.store.write_offset + self._allocate_every_bytes
                self.allocation.wake()
        except Exception as error:  # noqa: BLE001 - whatever it is: undispatched messages would never be seen
            self.fatal("dispatch", error)
        if self._undispatched:
            self.dispatched()

    def offset_moved(self, group: str, member: str, topic: str, queue_id: int, asked: int, moved_to: int) -> None:
        """A group asked for what retention took: move it to what there is, and keep that as an event."""
        name = self.groups.progress_name(group, member)
        committed = self.store.consumer_offsets.committed_of(name, topic, queue_id)
        if committed is not None and committed >= moved_to:
            return  # its members ask again with what they have; once is enough
        if committed is None and not self.store.groups.has(group):
            return  # whoever reads under this name has committed nothing, and is nobody's member
        log.warning(
            "group %s: messages %d to %d of topic %s, queue %d were removed before it had consumed them",
            group, asked, moved_to - 1, topic, queue_id,
        )  # fmt: skip
        self.groups.offsets_moved += 1
        has_room = committed is not None or len(self.store.consumer_offsets) < self.groups.offsets_max
        if has_room and (name == group or committed is not None):  # of most broadcasting members no progress is kept
            self.store.consumer_offsets.commit(name, topic, queue_id, moved_to)
        record = offset_moved_record(
            self.settings.server.name, group, topic, queue_id, asked, moved_to, self.store.store_host
        )

        def made(error: BrokerError | None) -> None:
            try:
                if error is not None:
                    raise error
                self.writer.append([record])
            except BrokerError as failure:
                log.error("the event that group %s was moved on could not be stored: %s", group, failure)

        self.writer.with_topics([OFFSET_MOVED], made)

    def is_dispatched(self) -> bool:
        """Whether queues and index know everything that was acknowledged, after dispatching what is due."""
        if self._dispatch_due:
            self._dispatch()
        return self.store.reput_offset >= self.store.dispatchable_offset

    def when_dispatched(self, call: Callable[[], None]) -> None:
        """Call when queues and index know everything that is acknowledged by now, or after ``DISPATCH_WAIT_S``."""
        deadline = self.loop.time() + DISPATCH_WAIT_S
        self._undispatched.append((self.store.dispatchable_offset, deadline, call))
        self.loop.call_at(deadline, self.dispatched)

    def next_turn(self, call: Callable[[], None]) -> None:
        """Call once the others have had their turn, and what is acknowledged can be seen without a long wait.

        Who sends faster than messages are dispatched would make everybody wait who pulls what was just acknowledged.
        """
        shared = self.sharing.is_shared(time.monotonic())
        behind_max = TURN_BEHIND_SHARED_BYTES if shared else TURN_BEHIND_BYTES
        if self.store.dispatchable_offset - self.store.reput_offset > behind_max:
            self.when_dispatched(call)
        else:
            self.loop.call_soon(call)

    def dispatched(self) -> None:
        """More of the log is dispatched: call those who waited for it, or who have waited long enough."""
        reput_offset, now = self.store.reput_offset, self.loop.time()
        waiting = self._undispatched
        while waiting and (waiting[0][0] <= reput_offset or waiting[0][1] <= now):
            waiting.popleft()[2]()


class Peer(Remote, Protocol):
    """A connection, as a handler sees it. All methods are for the event loop, and do nothing once it is closed."""

    broker: Broker
    user: User | None
    """Who proved to be at the other side; None: nobody has to prove anything here, and everything is allowed."""
    access: Access | None
    """What that user may do; None where there is none."""
    exchange: ServerExchange | None
    """The authentication that has begun."""
    born_host: bytes
    """Address and port of the other side, as a record holds them."""
    frame_bytes: int
    """Size of the frame that is being handled, with its length field."""
    written: int
    """PRODUCE frames of this turn that are done once they are written: they wait for no flush."""
    write_paused: bool
    """The other side has not taken what was sent: do not add to it; see ``when_writable``."""

    def greet(self, client: str) -> None:
        """HELLO was answered: from now on every command is, or AUTH where it must come first."""

    def admit(self, user: User) -> None:
        """It is ``user``: from now on every command is answered."""

    def refuse(self, frame: Frame, error: BrokerError) -> None:
        """Answer ``frame`` with an error, take nothing more and close the connection."""

    def answer(self, frame: Frame, answer: Any, body: bytes | bytearray = b"") -> None:
        """Answer ``frame`` with SUCCESS; nothing for a one-way frame."""

    def send_answer(self, frame: Frame, head: bytes, body: bytes | bytearray) -> None:
        """Send the encoded answer to ``frame``."""

    def send_in_order(self, answer: bytes) -> None:
        """Send an encoded PRODUCE answer behind those that still wait for a flush."""

    def send_when_flushed(self, frame: Frame, answer: bytes, end_offset: int) -> None:
        """Send an encoded PRODUCE answer (one-way: none) in its order when the log is flushed up to ``end_offset``."""

    def fail(self, frame: Frame, error: BrokerError) -> None:
        """Answer ``frame`` with an error; of a PRODUCE in the order of its answers."""

    def handle(self, frame: Frame) -> None:
        """Handle a frame (again): call its command's handler, and answer with the error that it raises."""

    def after_dispatch(self, frame: Frame, call: Callable[[], None]) -> None:
        """Call when what is acknowledged by now can be seen; what it raises answers ``frame``.

        A message that was acknowledged is there for whoever asks, although dispatch runs behind acknowledgements.
        """

    def later(self, frame: Frame, call: Callable[[], None]) -> Callable[[BrokerError | None], None]:
        """A function that is called once, when what ``frame`` waits for is over: ``call`` goes on, an error answers
        ``frame``. What ``call`` raises answers it too."""

    def suspend(self) -> None:
        """Handle nothing more of this connection until ``resume``; the frame that is being handled stays valid."""

    def resume(self, frame: Frame, error: BrokerError | None) -> None:
        """Go on: handle ``frame`` again, or answer it with ``error``."""

    def proceed(self, frame: Frame, call: Callable[[], None]) -> None:
        """Go on after ``suspend`` by calling; what it raises answers ``frame``."""

    def read(
        self, frame: Frame, read: Callable[[bool], T], done: Callable[[T], None],
        rather: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Call ``read(True)``; where that would block, ``read(False)`` in a reader thread. ``done`` gets the result.

        What follows on the connection is handled meanwhile. Errors of either answer ``frame``. Who has part of an
        answer names with ``rather`` what to do instead of waiting for memory, or for the other side to take what was
        sent.
        """

    def step(self, frame: Frame, call: Callable[[], None], rather: Callable[[], None] | None = None) -> None:
        """Call in one of the next turns of the loop, where there is time for it; what it raises answers ``frame``.

        It waits until the other side has taken what was sent, or calls ``rather`` at once; see ``read``.
        """

    def held(self, pull: HeldPull) -> None:
        """``pull`` waits for this connection: cancel it if the connection goes."""

    def holds_many(self) -> bool:
        """Whether many pulls wait for this connection."""

    def unheld(self, pull: HeldPull) -> None:
        """``pull`` does not wait any more."""

    def share(self, selection: Selection) -> Share:
        """This connection's share of a selection; it counts as long as somebody holds on to it."""

    def check_may_wait(self) -> None:
        """Raise ``SystemBusy`` where this connection, or all together, have too many pulls waiting."""

    def unsent_bytes(self) -> int:
        """How much of what it was sent it has not taken."""

    def when_writable(self, call: Callable[[], None]) -> None:
        """Call when the other side has taken what was sent."""
