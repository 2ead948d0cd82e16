"""The engine of a push consumer, which talks to the broker for one member of a group.

One lock guards the state that it shares with other threads (claims, membership, progress, acks, prefetch).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from math import inf

from ....protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED
from ....protocol.errors import FlintError, UnknownCommand
from ...aio.connection import Connection
from ...aio.rpc import Dialer
from ...core.rpc.session import Asked
from ...errors import ClientClosed, ClientFailed
from ..member_connection import MemberConnection
from .assignments import Claim, WorkItem, claims_for
from .membership import Membership
from .options import Options
from .outcome import Failed, Health
from .progress import AckTracker, Prefetch, Progress, Told

# ---- The interface of the engine behind a member of a group, for the classes that applications use.


class MemberEngine(MemberConnection):
    """The engine of one member."""

    def __init__(self, options: Options, dialer: Dialer) -> None:
        seconds = min(options.timeout, options.session_timeout)
        super().__init__(f"group {options.group}", seconds, dialer)
        self.joined: Future[None] = Future()
        """Done when the broker has accepted the member, or when the engine ends."""
        self._options = options

    def _note_joined(self) -> None:
        if not self.joined.done():
            self.joined.set_result(None)

    def check(self) -> None:
        """Raise if the engine has ended with an error."""
        if self.failure is not None:
            raise ClientFailed(
                f"the consumer of group {self._options.group} ended: {self.failure}; create a new one", self.failure
            )

    @abstractmethod
    def leave(self) -> None:
        """Begin no more works, let the running ones finish, commit, leave the group, and end."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave the group and end, without waiting for running works."""

    @property
    @abstractmethod
    def paused(self) -> frozenset[str]:
        """Topics that are not pulled."""

    @abstractmethod
    def set_paused(self, topics: frozenset[str]) -> None:
        """Stop pulling these topics, and only these."""

    @abstractmethod
    def commit(self, told: Told) -> None:
        """Commit progress now; ``told`` is called with the outcome."""

    @abstractmethod
    def health(self) -> Health:
        """Return the current state and counters."""


def consumer_closed() -> ClientClosed:
    """Return the error of a call that waits when a consumer is closed."""
    return ClientClosed("this consumer was closed")


LOOK_SECONDS_MAX = 1.0
"""Maximum interval between two checks of what is due."""


class Engine(MemberEngine):
    """The engine of one member.

    Callbacks, on the I/O thread: ``begin`` gets the works that a listener is to handle; ``recall`` asks for the
    works of revoked and lost queues that no listener has begun; ``stuck`` gets a work that takes longer than
    ``listener_timeout``.
    """

    def __init__(
        self,
        options: Options,
        dialer: Dialer,
        begin: Callable[[list[WorkItem]], None],
        recall: Callable[[], None],
        stuck: Callable[[WorkItem], None],
    ) -> None:
        super().__init__(options, dialer)
        self._begin = begin
        self._recall = recall
        clock = time.monotonic
        self._claims = claims_for(options)
        self._membership = Membership(options, self._claims, clock, self._assigned)
        self._progress = Progress(options, self._claims, self._membership, clock)
        self._acks = AckTracker(options, self._claims, self._membership, self._progress, clock, stuck)
        self._prefetch = Prefetch(options, self._claims, self._membership, self._progress, self._acks, clock)

    # ---- its lifetime, for other threads

    def leave(self) -> None:
        with self._lock:
            self._membership.leaving = True
            self._claims.revoke_all()
        self.wake()

    def abandon(self) -> None:
        with self._lock:
            self._membership.leaving = True
            self._claims.revoke_all()
            self._acks.abandon()
        self.wake()

    # ---- results of listeners and of deliveries

    def hand_out(self, works: list[WorkItem]) -> list[WorkItem]:
        """Note that the application receives these works, and return them without those that are to be another
        member's."""
        with self._lock:
            begun = [work for work in works if not work.claim.stopped]
            for work in works:
                if work.claim.stopped:
                    self._acks.give_back(work)
            now = time.monotonic()
            for work in begun:
                work.taken_at = work.begun_at = now
                work.claim.hand_out(work)
            for work in works:
                self._wake_for(work.claim)
        return begun

    def settle(self, work: WorkItem, failed: Failed) -> bool:
        """Record the outcome of a delivery; returns False if the message is not this member's any more."""
        with self._lock:
            if work.given_up or work.claim.lost:
                return False
            self._acks.finish_work(work, failed, 1 - len(failed))
            self._wake_for(work.claim)
            return True

    def finish_work(self, work: WorkItem, failed: Failed, handled: int) -> None:
        """Record that a listener is done with a work: ``failed`` are the messages to send back."""
        with self._lock:
            self._acks.finish_work(work, failed, handled)
            self._wake_for(work.claim)

    def keep_back(self, work: WorkItem, handled: int, failed: Failed, reason: str) -> None:
        """Keep the message after the first ``handled``, which failed in orderly mode, to retry it in its place.

        ``failed``: messages before it that are to be sent back anyway; ``reason``: why this one failed.
        """
        with self._lock:
            self._acks.keep_back(work, handled, failed, reason)
            self.wake()

    def give_back(self, work: WorkItem) -> None:
        """Return a work that was not begun, because its queue is being released."""
        with self._lock:
            self._acks.give_back(work)
            self._wake_for(work.claim)

    def _wake_for(self, claim: Claim) -> None:
        """Wake the engine if there is something to do now. Waking it for every finished work would cost too much."""
        acks = self._acks
        may_pull = not claim.asked and self._claims.has_room(claim)
        if acks.to_begin or acks.sending_back or claim.stopped or may_pull:
            self.wake()

    # ---- state and control

    def set_paused(self, topics: frozenset[str]) -> None:
        with self._lock:
            self._prefetch.paused = topics
        self.wake()

    @property
    def paused(self) -> frozenset[str]:
        return self._prefetch.paused

    def commit(self, told: Told) -> None:
        with self._lock:
            if self.failure is not None or self._membership.parting:
                told(self.failure or consumer_closed())
                return
            self._progress.ask(told)
        self.wake()

    def health(self) -> Health:
        now = time.monotonic()
        with self._lock:
            works = [work for claim in self._claims for work in claim.works if not work.done]
            ahead = sum(claim.ahead for claim in self._claims)
            oldest = min((work.begun_at for work in works), default=inf)
            counts = self._acks.counts
            return Health(
                alive=self.running and self.failure is None,
                joined=self._membership.last_epoch > 0 and not self._membership.parting,
                connected=self._connection is not None,
                group=self._options.group,
                member=self._options.member,
                epoch=self._membership.last_epoch,
                queues=tuple(sorted(claim.key for claim in self._claims)),
                giving_up=sum(claim.revoked for claim in self._claims),
                pending_messages=self._claims.messages - ahead,
                pending_bytes=self._claims.bytes,
                running=sum(work.begun_at != inf for work in works),
                ahead=ahead,
                longest_seconds=0.0 if oldest == inf else now - oldest,
                heard_seconds=self.heard_seconds(),
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

    # ---- on the I/O thread

    @property
    def _left(self) -> bool:
        return self._membership.left

    def _may_connect(self, now: float) -> bool:
        membership = self._membership
        with self._lock:
            self._acks.look_after(now)
            if membership.leaving and self._backoff.trouble is not None and not self._claims.handling:
                membership.left = True  # the broker is unreachable and no listener is busy: let the session expire
        return not membership.left

    def _connected(self) -> None:
        self._membership.beat_soon()

    def _asked(self, asked: Asked, connection: Connection) -> None:
        if asked.code != NOTIFY_CONSUMER_IDS_CHANGED.code:
            raise UnknownCommand(f"a group's consumer does not know command {asked.code}")
        with self._lock:
            self._membership.beat_soon()

    def _send_due(self, connection: Connection, now: float) -> float:
        self._look_after(now)
        acks, progress = self._acks, self._progress
        due = acks.due(now) + progress.due(now)
        may_leave = not (acks.sending_back or progress.committing)
        due += self._membership.due(now, may_leave=may_leave)
        due += self._prefetch.due(now)
        self._send(connection, due)
        at = min(self._membership.due_at(), progress.due_at(), acks.due_at(), self._prefetch.due_at(now))
        return max(0.0, min(at - now, LOOK_SECONDS_MAX))

    def _look_after(self, now: float) -> None:
        """Handle the effects of time: works that are due, listeners that take too long, queues to release."""
        self._acks.look_after(now)
        self._progress.look_after(now)
        if self._claims.release(commit_first=self._progress.by_itself):
            self._membership.beat_soon()

    def _assigned(self, rejoined: bool) -> None:
        """Handle the response to a heartbeat."""
        self._backoff.record_success()
        if rejoined:
            self._progress.moved_anything()
        self._acks.to_begin += self._claims.take_resumed()
        self._note_joined()

    def _pass_on(self) -> None:
        with self._lock:
            works, self._acks.to_begin = self._acks.to_begin, []
            recalls, self._claims.recalls = self._claims.recalls, False
        if recalls:
            self._recall()
        if works:
            self._begin(works)

    def _disconnected(self) -> None:
        return

    def _ended(self, error: FlintError | None) -> None:
        with self._lock:
            self._membership.left = True
            self._claims.lose_all()
            told = self._progress.take_told()
        for tell in told:
            tell(error or consumer_closed())
        self._note_joined()
