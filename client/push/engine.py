"""The thread that speaks to the broker for one member of a group, over one connection.

It never runs a listener, so the member stays in its group whatever they do. Everything it shares with other threads is
guarded by one lock, which nobody holds while waiting for anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ...protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED
from ...protocol.delivery import DEAD_LETTER_LEVEL, PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from ...protocol.errors import (
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberNameTaken,
    MemberUnknown,
    OffsetOutOfRange,
    RemoteProtocolError,
    UnknownCommand,
)
from ..core.batch import Batch
from ..core.operations import Operation
from ..core.retry import Backoff, backoff_seconds, is_retriable
from ..core.session import Answer
from ..core.stored import StoredMessage
from ..core.timeouts import CONNECT_SECONDS_MAX, SILENCE_SECONDS_MAX
from ..core.troubles import silent
from ..errors import ClientClosed, ClientFailed
from ..sync.connection import Connection
from ..sync.pool import Dialer
from . import requests
from .claims import Claim, Claims, Work
from .health import Counts, Health
from .options import Options
from .waiter import Waiter

log = logging.getLogger(__name__)

REFUSED_PAUSE_SECONDS = 1.0
"""How long a queue is left alone that the broker refused to read."""
SEND_BACK_MAX = 256
"""Messages that are sent back in one request."""
LOOK_SECONDS_MAX = 1.0
"""However little there is to do, it is looked after what is due at least this often."""

Answered = Callable[[Any, FlintError | None], None]
"""Gets the result of a request, or why there is none; called under the lock."""
Told = Callable[[FlintError | None], None]


class Engine:
    """One member's.

    On the engine's thread: ``begin`` is called with the works that a listener is to handle, ``stuck`` with one of which
    the listener does not come back, and ``ended`` once, with the error after which nothing can go on, if there is one.
    """

    def __init__(
        self,
        options: Options,
        claims: Claims,
        dialer: Dialer,
        begin: Callable[[list[Work]], None],
        stuck: Callable[[Work], None],
        ended: Callable[[FlintError | None], None],
    ) -> None:
        self.lock = threading.RLock()
        self.joined = threading.Event()
        """Set once the broker has answered the first heartbeat, or nothing goes on."""
        self.idle = threading.Condition(self.lock)
        """Notified when something that ran has come to its end."""
        self.counts = Counts()
        self.failure: FlintError | None = None
        self._options = options
        self._claims = claims
        self._dialer = dialer
        self._begin = begin
        self._stuck = stuck
        self._ended = ended
        self._waiter = Waiter()
        self._connection: Connection | None = None
        self._asked: dict[int, tuple[Operation[Any], Answered]] = {}
        self._heard_at = 0.0
        self._backoff = Backoff()
        self._epoch = 0
        self._held_epoch = 0
        """The last epoch in which there was an assignment: 0 until the first."""
        self._beat_at = 0.0
        self._beat_sent_at = 0.0
        self._beating = False
        self._interval = 1.0
        self._refused_since = inf
        self._commit_at = inf
        self._committing = False
        self._commit_told: list[Told] = []
        self._retry_times_max = 16
        self._back: deque[tuple[_Left, list[StoredMessage], int]] = deque()
        """Messages to be sent back, of which work, and with what delay level."""
        self._back_at = 0.0
        self._sending_back = False
        self._later: list[tuple[float, Work]] = []
        """Works that are to begin at a time."""
        self._paused: frozenset[str] = frozenset()
        self._leaving = False
        self._parting = False
        self._left = False
        self._doom: FlintError | None = None
        self._to_begin: list[Work] = []
        self._thread = threading.Thread(target=self._run, name=f"flintmq-group-{options.group}", daemon=True)

    # ---- for other threads

    def start(self) -> None:
        """Start the thread; it joins the group."""
        self._waiter.open()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise where nothing goes on any more."""
        if self.failure is not None:
            raise ClientFailed(
                f"the consumer of group {self._options.group} ended: {self.failure}; make a new one", self.failure
            )

    def finished(self, work: Work, failed: Sequence[tuple[StoredMessage, int]], handled: int) -> None:
        """A listener is done with a work: ``failed`` are the messages to be sent back, each with its delay level."""
        with self.lock:
            if work.given_up:
                return
            self.counts.consumed += handled
            if failed and not work.claim.lost:
                self._send_back(work, failed)
                return
            self._complete(work)

    def give_back(self, work: Work) -> None:
        """A work was not begun, because its queue is to be given up."""
        with self.lock:
            if not work.given_up:
                self._drop(work)

    def die(self, error: FlintError) -> None:
        """Nothing can go on: end, and have everybody who waits learn it."""
        with self.lock:
            self._doom = self._doom or error
        self._waiter.wake()

    def keep_back(self, work: Work, handled: int) -> None:
        """In orderly mode: the message behind the first ``handled`` failed, and is tried again in its place."""
        with self.lock:
            if work.given_up:
                return
            self.counts.consumed += handled
            self.counts.failed += 1
            rest = work.messages[handled:]
            claim = work.claim
            if claim.stopped:
                self._drop(work)
                return
            tries = work.tries + 1 if not handled else 1
            if tries > self.retry_times_max and len(rest):
                self._send_back(work, [(rest[0], DEAD_LETTER_LEVEL)], tuple(rest[1:]))
                return
            self._keep(work, rest, tries)
            self._later.append((time.monotonic() + self._options.suspend_seconds, work))
            self._waiter.wake()

    @property
    def retry_times_max(self) -> int:
        """How often a message is tried again."""
        asked = self._options.retry_times_max
        return self._retry_times_max if asked < 0 else asked

    def set_paused(self, topics: frozenset[str]) -> None:
        """Pull nothing more of these topics."""
        with self.lock:
            self._paused = topics
        self._waiter.wake()

    @property
    def paused(self) -> frozenset[str]:
        """Topics of which nothing is pulled."""
        return self._paused

    def commit(self, told: Told) -> None:
        """Tell the broker how far the queues are done; ``told`` is called when it knows, or cannot be told."""
        with self.lock:
            if self.failure is not None or self._left or self._parting:
                told(self.failure or ClientClosed("this consumer was closed"))
                return
            self._commit_told.append(told)
            self._commit_at = 0.0
        self._waiter.wake()

    def leave(self) -> None:
        """Begin nothing more, let what runs come to its end, commit, leave the group, and end."""
        with self.lock:
            self._leaving = True
            self._claims.revoke_all()
            self._later.clear()
        self._waiter.wake()

    def abandon(self) -> None:
        """End without waiting for what runs."""
        with self.lock:
            self._leaving = True
            self._claims.revoke_all()
            for claim in self._claims:
                claim.running = 0
                for work in claim.works:
                    work.given_up = True
        self._waiter.wake()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def health(self) -> Health:
        """How it is."""
        now = time.monotonic()
        with self.lock:
            works = [work for claim in self._claims for work in claim.works if not work.done]
            oldest = min((work.begun_at for work in works), default=inf)
            return Health(
                alive=self.alive and self.failure is None,
                joined=self.joined.is_set() and self._held_epoch > 0,
                connected=self._connection is not None,
                group=self._options.group,
                member=self._options.member,
                epoch=self._held_epoch,
                queues=tuple(sorted(claim.key for claim in self._claims)),
                giving_up=sum(claim.revoked for claim in self._claims),
                pending_messages=self._claims.messages,
                pending_bytes=self._claims.bytes,
                running=sum(work.begun_at != inf for work in works),
                longest_seconds=0.0 if oldest == inf else now - oldest,
                heard_seconds=now - self._heard_at if self._heard_at else inf,
                consumed=self.counts.consumed,
                failed=self.counts.failed,
                retried=self.counts.retried,
                dead=self.counts.dead,
                stuck=self.counts.stuck,
                skipped=self.counts.skipped,
                error=self.failure,
                trouble=self._backoff.trouble,
            )

    # ---- works

    def _complete(self, work: Work) -> None:
        claim = work.claim
        claim.running -= 1
        claim.complete(work)
        self._after(claim)

    def _drop(self, work: Work) -> None:
        """What is left of a work will be somebody else's."""
        work.claim.running -= 1
        self._after(work.claim)

    def _after(self, claim: Claim) -> None:
        if claim.commit_offset > claim.committed:
            self._commit_soon()
        if self._options.orderly:
            works = self._claims.next_in_order(claim)
            if works:
                self._to_begin += works
                self._waiter.wake()
        if claim.stopped:
            self._waiter.wake()
        elif not claim.asked:
            self._waiter.wake()  # it had no room for more
        self.idle.notify_all()

    def _keep(self, work: Work, rest: Sequence[StoredMessage], tries: int) -> None:
        """Of a work only ``rest`` is left to be handled."""
        claim = work.claim
        done = len(work.messages) - len(rest)
        work.tries = tries
        work.begun_at = inf
        if done:
            claim.messages -= done
            work.messages = rest
            if claim.works and claim.works[0] is work and len(rest):
                claim.commit_offset = rest[0].queue_offset

    def _send_back(
        self, work: Work, failed: Sequence[tuple[StoredMessage, int]], rest: Sequence[StoredMessage] = ()
    ) -> None:
        """Have messages sent back. The work is done when the broker has them, unless there is a ``rest`` of it."""
        self.counts.failed += len(failed)
        work.begun_at = inf
        if self._options.broadcasting:  # each member gets its own copy: nobody else could try again
            self.counts.skipped += len(failed)
            self._sent_back(_Left(1, work, rest))
            return
        by_level: dict[int, list[StoredMessage]] = {}
        for message, level in failed:
            by_level.setdefault(level or self._options.delay_level, []).append(message)
        parts = [
            (messages[start : start + SEND_BACK_MAX], level)
            for level, messages in by_level.items()
            for start in range(0, len(messages), SEND_BACK_MAX)
        ]
        left = _Left(len(parts), work, rest)
        self._back.extend((left, part, level) for part, level in parts)
        self._waiter.wake()

    def _sent_back(self, left: _Left) -> None:
        left.parts -= 1
        if left.parts:
            return
        work = left.work
        if left.rest:
            self._keep(work, sorted(left.rest, key=lambda message: message.queue_offset), 0)
            if work.claim.stopped:
                self._drop(work)
            else:
                self._later.append((time.monotonic() + self._options.suspend_seconds, work))
        elif not work.given_up:
            self._complete(work)
        else:
            work.claim.complete(work)
            self._after(work.claim)

    # ---- the thread

    def _run(self) -> None:
        error: FlintError | None = None
        try:
            while not self._left:
                self._turn()
                if self._doom is not None:
                    raise self._doom
        except FlintError as failure:
            error = failure
        except BaseException as failure:
            log.critical("the thread of group %s failed", self._options.group, exc_info=True)
            error = ClientFailed(f"its thread ended with {type(failure).__name__}: {failure}", failure)
        finally:
            with self.lock:
                self.failure = error
                self._claims.lose_all()
                told, self._commit_told = self._commit_told, []
                self.idle.notify_all()
            if self._connection is not None:
                self._connection.close()
            self._waiter.close()
            for tell in told:
                tell(error or ClientClosed("this consumer was closed"))
            self.joined.set()
            self._ended(error)

    def _turn(self) -> None:
        """One round: send what is due, wait for something to happen, take what has come."""
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
        pause = self._backoff.seconds(now)
        if self._leaving and self._backoff.trouble is not None and not self._claims.handling:
            self._left = True  # nobody to say good-bye to: the session runs out
            return
        if pause > 0:
            self._waiter.wait(None, pause)
            return
        connection = self._dialer.dial(CONNECT_SECONDS_MAX)
        with self.lock:
            self._connection = connection
            self._heard_at = time.monotonic()
            self._beat_at = 0.0
        self._waiter.watch(connection.fileno())

    def _disconnected(self, error: FlintError) -> None:
        with self.lock:
            connection, self._connection = self._connection, None
            self._backoff.failed(error, time.monotonic())
            asked, self._asked = self._asked, {}
            for _, answered in asked.values():
                answered(None, error)
        if connection is not None:
            log.warning("group %s: %s; trying again", self._options.group, error)
            self._waiter.watch(None)
            self._dialer.failed(connection.address)
            connection.close()

    def _exchange(self, connection: Connection) -> None:
        now = time.monotonic()
        with self.lock:
            self._look_after(now)
            for operation, answered in self._due(now):
                request_id = connection.request(operation.command, operation.fields, operation.body)
                self._asked[request_id] = (operation, answered)
            seconds = 0.0 if self._to_begin or self._left else self._seconds_to_wait(now)
        if connection.congested:
            seconds = min(seconds, 0.01)
        self._waiter.wait(connection, seconds)
        answers = connection.receive(0)
        if answers:
            self._take(answers)
        elif self._asked and time.monotonic() > self._heard_at + requests.HOLD_MS / 1000 + SILENCE_SECONDS_MAX:
            raise silent(connection.address, requests.HOLD_MS / 1000 + SILENCE_SECONDS_MAX)
        for asked in connection.take_asked():
            if asked.code == NOTIFY_CONSUMER_IDS_CHANGED.code:
                with self.lock:
                    self._beat_at = 0.0
            elif asked.wants_answer:
                unknown = UnknownCommand(f"a group's consumer does not know command {asked.code}")
                connection.reply(asked, unknown.code, unknown.fields())

    def _take(self, answers: list[Answer]) -> None:
        self._heard_at = time.monotonic()
        for answer in answers:
            with self.lock:
                operation, answered = self._asked.pop(answer.request_id)
                try:
                    result = operation.result(answer)
                except RemoteProtocolError:
                    raise
                except FlintError as error:
                    answered(None, error)
                else:
                    answered(result, None)
            # What came first begins while the next is still decoded.
            self._begin_works()

    def _begin_works(self) -> None:
        with self.lock:
            works, self._to_begin = self._to_begin, []
        if works:
            self._begin(works)

    # ---- what is due

    def _seconds_to_wait(self, now: float) -> float:
        at = min(self._beat_at if not self._beating else inf, self._commit_at if not self._committing else inf)
        at = min(at, min((at for at, _ in self._later), default=inf))
        at = min(at, min((c.retry_at for c in self._claims if c.retry_at > now), default=inf))
        return max(0.0, min(at - now, LOOK_SECONDS_MAX))

    def _look_after(self, now: float) -> None:
        """What has come of itself: works that waited, listeners that take too long, queues to let go of."""
        due = [work for at, work in self._later if at <= now]
        if due:
            self._later = [(at, work) for at, work in self._later if at > now]
            for work in due:
                if work.claim.stopped:
                    self._drop(work)
                else:
                    self._to_begin.append(work)
        self._give_up_stuck(now)
        last_commits = self._options.commits and self._options.auto_commit
        if last_commits and any(c.revoked and c.drained and c.commit_offset > c.committed for c in self._claims):
            self._commit_at = min(self._commit_at, now)
        if self._claims.release(commit_first=last_commits):
            self._beat_at = 0.0

    def _give_up_stuck(self, now: float) -> None:
        limit = self._options.listener_seconds
        for claim in self._claims:
            for work in list(claim.works):
                if work.done or now - work.begun_at < limit:
                    continue
                log.error(
                    "group %s: the listener has not come back from %d messages of topic %s, queue %d, offset %d on for "
                    "%.0f s (listener_timeout): they are tried again later, here or elsewhere",
                    self._options.group, len(work.messages), claim.topic, claim.queue, work.messages[0].queue_offset,
                    now - work.begun_at,
                )  # fmt: skip
                self.counts.stuck += 1
                work.given_up = True
                claim.running -= 1
                self._send_back(work, [(message, 0) for message in work.messages])
                self._stuck(work)

    def _due(self, now: float) -> list[tuple[Operation[Any], Answered]]:
        due: list[tuple[Operation[Any], Answered]] = []
        if self._back and not self._sending_back and now >= self._back_at:
            due.append(self._send_back_request())
        if now >= self._commit_at and not self._committing:
            due += self._commit_requests()
        if self._parting:
            return due
        if self._leaving and not len(self._claims) and not self._back and not self._committing:
            due.append(self._leave_request())
        elif now >= self._beat_at and not self._beating:
            due.append(self._beat_request(now))
        if self._epoch and not self._leaving:
            due += [self._pull_request(claim) for claim in self._claims.to_pull(now, self._paused)]
        return due

    # ---- heartbeats

    def _beat_request(self, now: float) -> tuple[Operation[Any], Answered]:
        self._beating = True
        self._beat_at = inf
        epoch = self._epoch
        operation = requests.heart_beat(self._options, epoch, self._claims.owned())
        return operation, lambda answer, error: self._beaten(epoch, answer, error)

    def _beaten(self, epoch: int, answer: requests.Assignment | None, error: FlintError | None) -> None:
        now = time.monotonic()
        self._beating = False
        told_meanwhile = self._beat_at == 0.0
        self._beat_at = 0.0 if told_meanwhile else now + self._interval
        if answer is None:
            assert error is not None
            self._beat_refused(error, now)
            return
        self._backoff.succeeded()
        self._refused_since = inf
        self._interval = answer.interval_seconds
        if not told_meanwhile:
            self._beat_at = now + self._interval
        self._epoch = self._held_epoch = answer.epoch
        self._retry_times_max = answer.retry_times_max
        self._claims.assign(answer.rows, rejoined=not epoch)
        if not epoch and self._claims.commits():
            self._commit_soon()  # a broker that was killed may have forgotten what it knew
        if self._leaving:
            self._claims.revoke_all()
        self.joined.set()

    def _beat_refused(self, error: FlintError, now: float) -> None:
        if isinstance(error, ConnectionFailed):
            return  # the next connection begins with a heartbeat
        if isinstance(error, MemberUnknown) and self._held_epoch:
            self._epoch = 0
            self._beat_at = 0.0
            if self._leaving:
                self._claims.lose_all()
                self._left = True
            return
        self._refused_since = min(self._refused_since, now)
        again = isinstance(error, MemberNameTaken) and self._held_epoch
        if is_retriable(error) or (again and now < self._refused_since + self._options.session_seconds):
            self._beat_at = now + backoff_seconds(4, error)
            return
        raise error

    def _leave_request(self) -> tuple[Operation[Any], Answered]:
        self._parting = True

        def left(_: None, error: FlintError | None) -> None:
            if error is not None and not isinstance(error, MemberUnknown | EpochFenced):
                log.warning("group %s: leaving failed: %s", self._options.group, error)
            self._left = True

        return requests.leave(self._options, self._epoch), left

    # ---- pulls

    def _pull_request(self, claim: Claim) -> tuple[Operation[Any], Answered]:
        claim.asked = True
        operation = requests.pull(self._options, self._epoch, claim, self._claims.pull_count, self._claims.pull_bytes)
        return operation, lambda batch, error: self._pulled(claim, batch, error)

    def _pulled(self, claim: Claim, batch: Batch | None, error: FlintError | None) -> None:
        claim.asked = False
        if batch is not None:
            messages = batch.messages
            if claim.topic.startswith(RETRY_TOPIC_PREFIX):
                for message in messages:
                    message.shown_in(message.properties.get(PROPERTY_RETRY_TOPIC, claim.topic))
            self._to_begin += self._claims.arrived(claim, batch, messages)
            if claim.commit_offset > claim.committed:
                self._commit_soon()
            return
        if claim.stopped or isinstance(error, ConnectionFailed):
            return
        if isinstance(error, OffsetOutOfRange):
            self._moved(claim, error)
        elif isinstance(error, EpochFenced | MemberUnknown):
            self._beat_at = 0.0
            claim.retry_at = time.monotonic() + REFUSED_PAUSE_SECONDS
        else:
            log.warning(
                "group %s: topic %s, queue %d cannot be read: %s", self._options.group, claim.topic, claim.queue, error
            )
            claim.retry_at = time.monotonic() + REFUSED_PAUSE_SECONDS

    def _moved(self, claim: Claim, error: OffsetOutOfRange) -> None:
        """Retention took what would come next (or, after a crash, the log's end is gone): go on with what there is."""
        before = claim.position
        claim.position = min(max(before, error.min_offset), error.max_offset)
        log.warning(
            "group %s: topic %s, queue %d holds %d to %d, not %d: going on from %d",
            self._options.group, claim.topic, claim.queue, error.min_offset, error.max_offset, before, claim.position,
        )  # fmt: skip
        self.counts.skipped += max(claim.position - before, 0)
        if not claim.works:
            claim.commit_offset = claim.position

    # ---- commits

    def _commit_requests(self) -> list[tuple[Operation[Any], Answered]]:
        self._commit_at = inf
        told, self._commit_told = self._commit_told, []
        commits = self._claims.commits() if self._options.commits else {}
        if not commits:
            for tell in told:
                tell(None)
            return []
        self._committing = True
        left = _Commits(len(commits), told)

        def request(topic: str, offsets: dict[int, int]) -> tuple[Operation[Any], Answered]:
            operation = requests.commit(self._options, self._epoch, topic, offsets)
            return operation, lambda _, error: self._committed(left, topic, offsets, error)

        return [request(topic, offsets) for topic, offsets in commits.items()]

    def _commit_soon(self) -> None:
        """Commit when the interval is over, if that is to be done by itself."""
        if self._commit_at == inf and self._options.auto_commit:
            self._commit_at = time.monotonic() + self._options.commit_seconds

    def _committed(self, left: _Commits, topic: str, offsets: dict[int, int], error: FlintError | None) -> None:
        if error is None:
            self._claims.committed(topic, offsets)
        else:
            left.error = left.error or error
            if isinstance(error, EpochFenced | MemberUnknown):
                self._beat_at = 0.0
            elif not isinstance(error, ConnectionFailed):
                log.warning("group %s: progress in topic %s was not kept: %s", self._options.group, topic, error)
        left.parts -= 1
        if left.parts:
            return
        self._committing = False
        for tell in left.told:
            tell(left.error)
        if left.error is not None:
            self._commit_at = min(self._commit_at, time.monotonic() + self._options.commit_seconds)

    # ---- sending back

    def _send_back_request(self) -> tuple[Operation[Any], Answered]:
        left, messages, level = self._back[0]
        self._sending_back = True
        operation = requests.send_back(
            self._options,
            self._epoch,
            [message.physical_offset for message in messages],
            level,
            self._options.retry_times_max,
        )

        def answered(answer: Any, error: FlintError | None) -> None:
            self._sending_back = False
            if error is not None and not self._not_sent_back(left, messages, error):
                return
            if error is None:
                self.counts.retried += answer.retried
                self.counts.dead += answer.dead
            self._back.popleft()
            self._sent_back(left)

        return operation, answered

    def _not_sent_back(self, left: _Left, messages: list[StoredMessage], error: FlintError) -> bool:
        """Messages could not be sent back. Whether that is settled all the same, and need not be tried again."""
        if isinstance(error, ConnectionFailed):
            return False  # sent again on the next connection
        if isinstance(error, EpochFenced | MemberUnknown):
            self._beat_at = 0.0
            return left.work.claim.lost  # the next member gets them, as it gets all that is not committed
        if is_retriable(error):
            self._back_at = time.monotonic() + backoff_seconds(6, error)
            return False
        log.error(
            "group %s: %d messages that failed could not be stored again, so they are tried again here: %s",
            self._options.group, len(messages), error,
        )  # fmt: skip
        left.rest = [*messages, *left.rest]
        return True


class _Left:
    """How many requests a work waits for until its failed messages are sent back, and what is left of it then."""

    __slots__ = ("parts", "rest", "work")

    def __init__(self, parts: int, work: Work, rest: Sequence[StoredMessage]) -> None:
        self.parts = parts
        self.work = work
        self.rest = rest


class _Commits:
    """How many topics a commit waits for, and who waits for it."""

    __slots__ = ("error", "parts", "told")

    def __init__(self, parts: int, told: list[Told]) -> None:
        self.parts = parts
        self.told = told
        self.error: FlintError | None = None
