"""When the event loop dispatches the log, and the calls that wait for it.

Dispatch makes acknowledged messages visible in their queues and in the index. It costs about as much for one message
as for fifty, so the loop does it at once only if a client waits for the messages, and otherwise a moment later for all
that arrived meanwhile. No client can tell: every request that reads queues or index dispatches first what is due.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ..background.flush import FlushService
    from ..background.held_pulls import PullRequestHoldService
    from ..background.services import AllocateMappedFileService, ReputMessageService
    from ..store import Appended, MessageStore

LAZY_S = 0.002
"""Maximum time for which messages that no client waits for stay undispatched."""
FOLLOWER_LAZY_S = 0.05
"""The same on a follower, of which few clients read, and where no delivery looks for messages."""
WAITING_BYTES_MAX = 16 * 1024
"""Backlog up to which a held pull is answered before the producer: some ten microseconds of dispatch."""
LAZY_BYTES = 128 * 1024
"""Backlog above which the loop dispatches at once."""
TURN_BACKLOG_BYTES = 2 * 1024 * 1024
"""Above this dispatch backlog, producers that use up their turn are delayed until it shrinks."""
TURN_BACKLOG_SHARED_BYTES = 512 * 1024
"""The same limit while several connections are active, for bytes that wait for a sync flush too. It allows hardly two
large frames at a time, which leaves CPU time and the disk for the other connections. A single producer is faster with
the larger limit, because the broker writes its next frame while it dispatches the last one."""
DISPATCH_WAIT_S = 1.0
"""Maximum time that a request waits for the dispatch of just-acknowledged messages."""
SHARED_S = 0.05
"""A connection served this recently counts as active."""


class ContentionTracker:
    """Tracker of contention: whether turns alternate between connections. Times: monotonic, in seconds."""

    def __init__(self) -> None:
        self.last: object = None
        """The connection that had the last turn."""
        self._changed = -SHARED_S

    def turn(self, whose: object, now: float) -> None:
        """Note a turn of a connection."""
        if self.last is whose:
            return
        if self.last is not None:  # otherwise it is the first connection, or the one before is closed
            self._changed = now
        self.last = whose

    def alternated(self, now: float) -> None:
        """Note that several connections were served in one turn."""
        self._changed = now

    def forget(self, who: object) -> None:
        """Forget a closed connection."""
        if self.last is who:
            self.last = None

    def is_shared(self, now: float) -> bool:
        """Return whether turns alternated within the last ``SHARED_S``."""
        return now < self._changed + SHARED_S


class DispatchScheduler:
    """The dispatch on the event loop. ``fatal`` ends the process: it gets the part that failed and the exception."""

    def __init__(
        self,
        store: MessageStore,
        flush: FlushService,
        reput: ReputMessageService,
        allocation: AllocateMappedFileService,
        holds: PullRequestHoldService,
        *,
        loop: asyncio.AbstractEventLoop,
        fatal: Callable[[str, BaseException], None],
    ) -> None:
        # Kept apart, because these are looked up several times in each turn of the loop.
        self._commitlog = store.commitlog
        self._dispatcher = store.dispatcher
        self._store = store
        self._holds = holds
        self._only_flushed = store.settings.flush_policy == "sync"
        self._flush = flush
        self._reput = reput
        self._allocation = allocation
        self._pulled = holds.by_queue
        self.popped: Container[str] = ()
        """Topics that consumers wait to pop messages of."""
        self.watched: Container[str] = ()
        """Topics of which consumers wait to know when there are messages."""
        self._loop = loop
        self._fatal = fatal
        self.sharing = ContentionTracker()
        """Tracks whether the turns of the loop alternate between connections, by ``time.monotonic``."""
        self._turn_due = False
        self._flush_due = False
        self._urgent = False
        """True if a client waits for messages that are not dispatched yet."""
        self.awaited = False
        """True if a held pull waits for messages that are not dispatched yet: ``serve_waiting`` should be called."""
        self._awaited_message: tuple[str, int, Appended] | None = None
        """Topic, queue and place of what is awaited, if it is the only reason for ``_urgent``."""
        self._late_due = False
        self.follows = False
        """True while another broker sends the messages, so that ``appended_to`` is not called."""
        self.replicate: Callable[[], None] = lambda: None
        """Called at the end of a turn in which messages were appended: it sends them to other brokers."""
        self._allocate_at = 0
        self._allocate_every_bytes = store.settings.allocate_step_bytes // 4
        """The preallocation is woken again after this many more bytes of the log."""
        self._waiting: deque[tuple[int, float, Callable[[], None]]] = deque()
        """Calls that wait for the dispatch: (physical offset, deadline, callback); offsets and deadlines only grow."""

    def waits_for(self, topic: str, queue: int) -> bool:
        """Return whether a client waits for messages of a queue."""
        return (topic, queue) in self._pulled or topic in self.popped or topic in self.watched

    def may_wait_for_any(self) -> bool:
        """Return whether clients wait otherwise than with a held pull, so that ``waits_for`` has to be asked."""
        return bool(self.popped or self.watched)

    def appended_unawaited(self) -> None:
        """Do what ``appended_to`` does for messages that no client waits for."""
        self._flush_due = True
        if not self._turn_due:
            self.soon()

    def appended(self) -> None:
        """Wake the flush, and dispatch, at the end of this turn of the loop, after messages were appended.

        One wake and one dispatch serve every connection that was read in the turn, and responses are sent before them.
        """
        self._flush_due = self._urgent = True
        self._awaited_message = None
        if not self._turn_due:
            self.soon()

    def appended_to(self, topic: str, queue: int, appended: Appended) -> None:
        """Do what ``appended`` does, but dispatch later unless a pull waits for this queue."""
        self._flush_due = True
        # Another message waits already, and the short way serves only a single one.
        if self.awaited:
            self._awaited_message = None
        elif self.waits_for(topic, queue):
            self._urgent = self.awaited = True
            self._awaited_message = topic, queue, appended
        if not self._turn_due:
            self.soon()

    def serve_waiting(self) -> None:
        """Answer a held pull now, so that its response leaves before the producer's.

        A consumer that waits notices the time of each step; a producer that has its response earlier would only compete
        with the consumer for a CPU. The only pull that waits for a single message gets it before the dispatch. Other
        pulls get theirs after it, unless there is so much to dispatch that the producers would notice it.
        """
        if self._awaited_message is not None and self._give(*self._awaited_message):
            self._awaited_message = None
            self.awaited = self._urgent = False
        elif 0 < self._store.dispatchable_offset - self._dispatcher.reput_offset <= WAITING_BYTES_MAX:
            self._step()

    def _give(self, topic: str, queue: int, appended: Appended) -> bool:
        """Give a message to the only pull that waits for it; return False if that is not possible."""
        # With sync flush, its bytes are not on disk yet.
        if appended.end_offset > self._store.dispatchable_offset:
            return False
        held = self._holds.taker(topic, queue, appended.queue_offset)
        pulled = self._store.pulls.appended(topic, queue, appended) if held is not None else None
        if held is None or pulled is None:
            return False
        self._holds.give(held, pulled)

        # Consumers that pop or watch the queue still need the dispatch.
        return not self.waits_for(topic, queue)

    def hurry(self) -> None:
        """Dispatch what has been appended as soon as that is allowed, because a pull was held."""
        if self._dispatcher.reput_offset < self._commitlog.write_offset:
            self._urgent = True
            self._awaited_message = None
            self.soon()

    def soon(self) -> None:
        """Dispatch at the end of this turn of the loop, because more of the log became dispatchable."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_due = False
        # The flush first, so that the disk works while the loop dispatches.
        if self._flush_due:
            self._flush_due = False
            self._flush.wake()
            # While the disk works, the other brokers get the bytes.
            self.replicate()
        write_offset = self._commitlog.write_offset
        if write_offset >= self._allocate_at:
            self._allocate_at = write_offset + self._allocate_every_bytes
            self._allocation.wake()
        backlog = self._store.dispatchable_offset - self._dispatcher.reput_offset
        if self._urgent or self._waiting or backlog > LAZY_BYTES or self._may_be_awaited():
            self._step()
        elif backlog > 0 and not self._late_due:
            self._late_due = True
            self._loop.call_later(FOLLOWER_LAZY_S if self.follows else LAZY_S, self._late)

    def _may_be_awaited(self) -> bool:
        """Return whether clients wait, and nobody has said for which messages."""
        return self.follows and (bool(self._pulled) or self.may_wait_for_any())

    def _late(self) -> None:
        self._late_due = False
        self._step()

    def _step(self) -> None:
        try:
            self._reput.step()
        except Exception as error:  # noqa: BLE001 - after any error, undispatched messages would never become visible
            self._fatal("dispatch", error)
        # With sync flush, the rest may be dispatched only after its flush; it stays urgent until then.
        if self._urgent:
            self._urgent = self._dispatcher.reput_offset < self._commitlog.write_offset
            self.awaited &= self._urgent
            if not self.awaited:
                self._awaited_message = None
        if self._waiting:
            self.run_waiting()

    def is_done(self) -> bool:
        """Dispatch what is due; return whether queues and index then contain everything that was acknowledged."""
        if self._dispatcher.reput_offset < self._store.dispatchable_offset:
            self._step()
        return self._dispatcher.reput_offset >= self._store.dispatchable_offset

    def when_done(self, call: Callable[[], None]) -> None:
        """Call ``call`` once everything acknowledged by now is dispatched, or after ``DISPATCH_WAIT_S``."""
        deadline = self._loop.time() + DISPATCH_WAIT_S
        self._waiting.append((self._store.dispatchable_offset, deadline, call))
        # The timer is never cancelled: if the dispatch was in time, it finds nothing that is due.
        self._loop.call_at(deadline, self.run_waiting)

    def next_turn(self, call: Callable[[], None]) -> None:
        """Call ``call`` after the other connections' turns, and not before the dispatch backlog is small enough.

        A producer that outruns dispatch would delay every consumer pulling just-acknowledged messages. With sync flush,
        one that outruns the disk would delay every other producer, whose message is on disk only after all before it.
        """
        shared = self.sharing.is_shared(time.monotonic())
        if shared and self._only_flushed and self._flush.backlog() > TURN_BACKLOG_SHARED_BYTES:
            self._when_flushed(call)
            return
        backlog_max = TURN_BACKLOG_SHARED_BYTES if shared else TURN_BACKLOG_BYTES
        if self._store.dispatchable_offset - self._dispatcher.reput_offset > backlog_max:
            self.when_done(call)
        else:
            self._loop.call_soon(call)

    def _when_flushed(self, call: Callable[[], None]) -> None:
        """Call ``call`` once everything written by now is on disk, or after ``DISPATCH_WAIT_S``: while the disk hangs,
        the connection's next frames are refused with the reason."""
        # Flush and timer both end the wait; whichever comes first takes the call.
        waiting = [call]

        def proceed(error: BrokerError | None = None) -> None:
            if waiting:
                timer.cancel()
                self._loop.call_soon(waiting.pop())

        timer = self._loop.call_later(DISPATCH_WAIT_S, proceed)
        self._flush.wait_for(self._commitlog.write_offset, proceed)

    def run_waiting(self) -> None:
        """Run the callbacks whose offset has been dispatched, or whose deadline has passed."""
        reput_offset, now = self._dispatcher.reput_offset, self._loop.time()
        waiting = self._waiting
        while waiting and (waiting[0][0] <= reput_offset or waiting[0][1] <= now):
            waiting.popleft()[2]()
