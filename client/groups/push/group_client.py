"""The thread that talks to the broker for one member of a group, over one connection.

It never runs a listener, so the member stays in its group whatever the listeners do. One lock guards the state that it
shares with other threads (claims, membership, progress, handling, reading); no thread waits for anything while holding
it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from ....protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED
from ....protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError, UnknownCommand
from ...core.rpc.connection_errors import silent
from ...core.rpc.operation import Operation
from ...core.rpc.retry import Backoff, is_retriable
from ...core.rpc.session import Answer
from ...core.rpc.timeouts import CONNECT_SECONDS_MAX, SILENCE_SECONDS_MAX
from ...errors import ClientClosed, ClientFailed
from ...sync.connection import Connection
from ...sync.pool import Dialer
from ...sync.wakeable_poll import Waiter
from .ack_tracker import Handling
from .assignments import Claim, WorkItem, claims_for
from .health import Health
from .membership import Answered, Membership, Request
from .options import Options
from .outcome import Failed
from .prefetch import Reading
from .progress import Progress, Told
from .requests import HOLD_MS

log = logging.getLogger(__name__)

LOOK_SECONDS_MAX = 1.0
"""Maximum interval between two checks of what is due."""
SILENT_SECONDS = HOLD_MS / 1000 + SILENCE_SECONDS_MAX
"""A connection without a response for this long is given up."""


class Engine:
    """The connection thread of one member.

    Callbacks, on the engine's thread: ``begin`` gets the works that a listener is to handle; ``recall`` asks for the
    works of revoked queues that no listener has begun; ``stuck`` gets a work whose listener does not return; ``ended``
    is called once, with the fatal error, if there was one.
    """

    def __init__(
        self,
        options: Options,
        dialer: Dialer,
        begin: Callable[[list[WorkItem]], None],
        recall: Callable[[], None],
        stuck: Callable[[WorkItem], None],
        ended: Callable[[FlintError | None], None],
    ) -> None:
        self.joined = threading.Event()
        """Set after the broker's response to the first heartbeat, or when the engine ends."""
        self.failure: FlintError | None = None
        self._options = options
        self._dialer = dialer
        self._begin = begin
        self._recall = recall
        self._ended = ended
        self._lock = threading.RLock()
        clock = time.monotonic
        self._claims = claims_for(options)
        self._membership = Membership(options, self._claims, clock, self._assigned)
        self._progress = Progress(options, self._claims, self._membership, clock)
        self._handling = Handling(options, self._claims, self._membership, self._progress, clock, stuck)
        self._reading = Reading(options, self._claims, self._membership, self._progress, self._handling, clock)
        self._waiter = Waiter()
        self._connection: Connection | None = None
        self._asked: dict[int, tuple[Operation[Any], Answered]] = {}
        self._heard_at = 0.0
        self._backoff = Backoff()
        self._doom: FlintError | None = None
        self._thread = threading.Thread(target=self._run, name=f"flintmq-group-{options.group}", daemon=True)

    # ---- its lifetime, for other threads

    def start(self) -> None:
        """Start the thread; it joins the group."""
        self._waiter.open()
        self._thread.start()

    def check(self) -> None:
        """Raise if the engine has ended with an error."""
        if self.failure is not None:
            raise ClientFailed(
                f"the consumer of group {self._options.group} ended: {self.failure}; create a new one", self.failure
            )

    def die(self, error: FlintError) -> None:
        """End with an error, which all waiting callers get."""
        with self._lock:
            self._doom = self._doom or error
        self._waiter.wake()

    def leave(self) -> None:
        """Begin no more works, let the running ones finish, commit, leave the group, and end."""
        with self._lock:
            self._membership.leaving = True
            self._claims.revoke_all()
        self._waiter.wake()

    def abandon(self) -> None:
        """Leave the group and end, without waiting for running works."""
        with self._lock:
            self._membership.leaving = True
            self._claims.revoke_all()
            self._handling.abandon()
        self._waiter.wake()

    # ---- results of listeners

    def finished(self, work: WorkItem, failed: Failed, handled: int) -> None:
        """Record that a listener is done with a work: ``failed`` are the messages to send back."""
        with self._lock:
            self._handling.finished(work, failed, handled)
            self._wake_for(work.claim)

    def keep_back(self, work: WorkItem, handled: int, failed: Failed, reason: str) -> None:
        """Keep the message after the first ``handled``, which failed in orderly mode, to retry it in its place.

        ``failed``: messages before it that are to be sent back anyway; ``reason``: why this one failed.
        """
        with self._lock:
            self._handling.keep_back(work, handled, failed, reason)
            self._waiter.wake()

    def give_back(self, work: WorkItem) -> None:
        """Return a work that was not begun, because its queue is being released."""
        with self._lock:
            self._handling.give_back(work)
            self._wake_for(work.claim)

    def _wake_for(self, claim: Claim) -> None:
        """Wake the thread if there is something to do now. Waking it for every finished work would cost too much."""
        handling = self._handling
        if handling.to_begin or handling.sending_back or claim.stopped or not claim.asked:
            self._waiter.wake()

    # ---- state and control

    def set_paused(self, topics: frozenset[str]) -> None:
        """Stop pulling these topics, and only these."""
        with self._lock:
            self._reading.paused = topics
        self._waiter.wake()

    @property
    def paused(self) -> frozenset[str]:
        """Topics that are not pulled."""
        return self._reading.paused

    def commit(self, told: Told) -> None:
        """Commit progress now; ``told`` is called with the outcome."""
        with self._lock:
            if self.failure is not None or self._membership.parting:
                told(self.failure or _closed())
                return
            self._progress.ask(told)
        self._waiter.wake()

    def health(self) -> Health:
        """Return the current state and counters."""
        now = time.monotonic()
        with self._lock:
            works = [work for claim in self._claims for work in claim.works if not work.done]
            oldest = min((work.begun_at for work in works), default=inf)
            counts = self._handling.counts
            return Health(
                alive=self._thread.is_alive() and self.failure is None,
                joined=self._membership.last_epoch > 0 and not self._membership.parting,
                connected=self._connection is not None,
                group=self._options.group,
                member=self._options.member,
                epoch=self._membership.last_epoch,
                queues=tuple(sorted(claim.key for claim in self._claims)),
                giving_up=sum(claim.revoked for claim in self._claims),
                pending_messages=self._claims.messages,
                pending_bytes=self._claims.bytes,
                running=sum(work.begun_at != inf for work in works),
                longest_seconds=0.0 if oldest == inf else now - oldest,
                heard_seconds=now - self._heard_at if self._heard_at else inf,
                consumed=counts.consumed,
                failed=counts.failed,
                retried=counts.retried,
                dead=counts.dead,
                stuck=counts.stuck,
                skipped=counts.skipped,
                taken=self._claims.taken,
                error=self.failure,
                trouble=self._backoff.trouble or self._membership.trouble,
                refused={claim.key: claim.refused for claim in self._claims if claim.refused is not None},
                commit_trouble=self._progress.trouble,
            )

    # ---- the thread

    def _run(self) -> None:
        error: FlintError | None = None
        try:
            while not self._membership.left:
                self._turn()
                if self._doom is not None:
                    raise self._doom
        except FlintError as failure:
            error = failure
        except BaseException as failure:
            log.critical("the thread of group %s failed", self._options.group, exc_info=True)
            error = ClientFailed(f"its thread ended with {type(failure).__name__}: {failure}", failure)
        finally:
            with self._lock:
                self.failure = error
                self._membership.left = True
                self._claims.lose_all()
                told = self._progress.take_told()
            if self._connection is not None:
                self._connection.close()
            self._waiter.close()
            for tell in told:
                tell(error or _closed())
            self.joined.set()
            self._ended(error)

    def _turn(self) -> None:
        """Do one round: send what is due, wait for an event, take what has arrived."""
        try:
            if self._connection is None:
                self._connect()
            else:
                self._exchange(self._connection)
        except FlintError as error:
            if not (is_retriable(error) or isinstance(error, RemoteProtocolError)):
                raise
            self._disconnected(error)
        self._begin_works()

    def _connect(self) -> None:
        now = time.monotonic()
        membership = self._membership
        with self._lock:
            self._handling.look_after(now)
            if membership.leaving and self._backoff.trouble is not None and not self._claims.handling:
                membership.left = True  # the broker is unreachable and no listener is busy: let the session expire
                return
        pause = self._backoff.seconds(now)
        if pause > 0:
            self._waiter.wait(None, pause)
            return
        connection = self._dialer.dial(CONNECT_SECONDS_MAX)
        with self._lock:
            self._connection = connection
            self._heard_at = time.monotonic()
            membership.beat_soon()
        self._waiter.watch(connection.fileno())

    def _disconnected(self, error: FlintError) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._backoff.failed(error, time.monotonic())
            asked, self._asked = self._asked, {}
            self._settle([answered for _, answered in asked.values()], error)
        if connection is not None:
            self._dialer.log.lost(error)
            self._waiter.watch(None)
            self._dialer.failed(connection.address)
            connection.close()

    @staticmethod
    def _settle(unanswered: Iterable[Answered], error: FlintError) -> None:
        """Fail unanswered requests; each is due again on the next connection.

        They all get ``ConnectionFailed``: the error that made the connection unusable says nothing about them.
        """
        lost = error
        if not isinstance(error, ConnectionFailed):
            lost = ConnectionFailed(str(error))
            lost.__cause__ = error
        for answered in unanswered:
            answered(None, lost)

    def _exchange(self, connection: Connection) -> None:
        with self._lock:
            seconds = self._send_due(connection, time.monotonic())
        if connection.congested:
            seconds = min(seconds, 0.01)
        self._waiter.wait(connection, seconds)
        answers = connection.receive(0)
        if answers:
            self._take(answers)
        elif self._asked and time.monotonic() > self._heard_at + SILENT_SECONDS:
            raise silent(connection.address, SILENT_SECONDS)
        for asked in connection.take_asked():
            if asked.code == NOTIFY_CONSUMER_IDS_CHANGED.code:
                with self._lock:
                    self._membership.beat_soon()
            elif asked.wants_answer:
                unknown = UnknownCommand(f"a group's consumer does not know command {asked.code}")
                connection.reply(asked, unknown.code, unknown.fields())

    def _send_due(self, connection: Connection, now: float) -> float:
        """Send what is due; returns how long nothing needs to be done unless something arrives."""
        self._look_after(now)
        handling, progress = self._handling, self._progress
        due = handling.due(now) + progress.due(now)
        may_leave = not (handling.sending_back or progress.committing)
        due += self._membership.due(now, may_leave=may_leave)
        due += self._reading.due(now)
        self._send(connection, due)
        if handling.to_begin:
            return 0.0
        at = min(self._membership.due_at(), progress.due_at(), handling.due_at(), self._reading.due_at(now))
        return max(0.0, min(at - now, LOOK_SECONDS_MAX))

    def _send(self, connection: Connection, due: list[Request]) -> None:
        """Send requests that are already marked as in flight; the ones that cannot be sent are failed."""
        for number, (operation, answered) in enumerate(due):
            try:
                request_id = connection.request(operation.command, operation.fields, operation.body)
            except FlintError as error:
                self._settle([answered for _, answered in due[number:]], error)
                raise
            self._asked[request_id] = (operation, answered)

    def _look_after(self, now: float) -> None:
        """Handle the effects of time: works that are due, listeners that take too long, queues to release."""
        self._handling.look_after(now)
        self._progress.look_after(now)
        if self._claims.release(commit_first=self._progress.by_itself):
            self._membership.beat_soon()

    def _take(self, answers: list[Answer]) -> None:
        self._heard_at = time.monotonic()
        for answer in answers:
            with self._lock:
                if answer.request_id not in self._asked:
                    raise RemoteProtocolError(f"a response to request {answer.request_id}, which was not sent")
                operation, answered = self._asked.pop(answer.request_id)
                try:
                    result = operation.result(answer)
                except RemoteProtocolError as error:
                    answered(None, error)
                    raise
                except FlintError as error:
                    answered(None, error)
                else:
                    answered(result, None)
            # Begin the first works before the next response is decoded.
            self._begin_works()

    def _assigned(self, rejoined: bool) -> None:
        """Handle the response to a heartbeat."""
        self._backoff.succeeded()
        if rejoined:
            self._progress.moved_anything()
        if self._claims.recalls:
            self._claims.recalls = False
            self._recall()
        self.joined.set()

    def _begin_works(self) -> None:
        with self._lock:
            works, self._handling.to_begin = self._handling.to_begin, []
        if works:
            self._begin(works)


def _closed() -> ClientClosed:
    return ClientClosed("this consumer was closed")
