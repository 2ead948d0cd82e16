"""Commits of the queues' progress. Without sockets; the engine holds its lock during every call."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from ....protocol.errors import (
    CommitIllegal,
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberUnknown,
    OffsetOutOfRange,
    QueueNotExist,
    TopicNotExist,
)
from ....protocol.storage.delivery import DEAD_LETTER_LEVEL, PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX, dead_letter_topic
from ...core.consume.batch import Batch, StoredMessage
from ...core.rpc.operation import Request, backoff_seconds, is_retriable
from . import requests
from .assignments import Claim, Claims, WorkItem
from .membership import Membership
from .options import Options
from .outcome import Counts, Failed, Failure, describe

log = logging.getLogger(__name__)

Told = Callable[[FlintError | None], None]
"""Callback when the broker knows the progress, or with the error that prevented it."""


class Progress:
    """The progress of one member."""

    def __init__(self, options: Options, claims: Claims, membership: Membership, clock: Callable[[], float]) -> None:
        self._options = options
        self._claims = claims
        self._membership = membership
        self._clock = clock
        self._commit_at = inf
        self._told: list[Told] = []
        self.committing = False
        """True while a response is outstanding."""
        self.trouble: FlintError | None = None
        """Error of the last commit, None if it succeeded."""

    @property
    def by_itself(self) -> bool:
        """True if progress is committed automatically."""
        return self._options.commits and self._options.auto_commit

    def ask(self, told: Told) -> None:
        """Commit at once; ``told`` is called with the outcome."""
        self._told.append(told)
        self._commit_at = 0.0

    def take_told(self) -> list[Told]:
        """Return and remove the waiting callbacks; the caller must call them."""
        told, self._told = self._told, []
        return told

    def moved(self, claim: Claim) -> None:
        """Schedule a commit after the interval, if messages of the queue are done."""
        if self._commit_at == inf and self._options.auto_commit and claim.commit_offset > claim.committed:
            self._commit_at = self._clock() + self._options.commit_interval

    def moved_anything(self) -> None:
        """Schedule commits for all queues: a broker that was killed may have forgotten commits."""
        for claim in self._claims:
            self.moved(claim)

    def look_after(self, now: float) -> None:
        """Commit a queue that is to be released at once, without waiting for the interval."""
        if self.by_itself and any(
            claim.revoked and claim.drained and claim.commit_offset > claim.committed for claim in self._claims
        ):
            self._commit_at = min(self._commit_at, now)

    def due_at(self) -> float:
        """Return when the next commit is due: not before the broker knows this member."""
        return inf if self.committing or not self._membership.epoch else self._commit_at

    def due(self, now: float) -> list[Request]:
        """Return one request for each topic with progress that the broker does not know."""
        if now < self.due_at():
            return []
        self._commit_at = inf
        told = self.take_told()
        commits = self._claims.commits() if self._options.commits else {}
        if not commits:
            self.trouble = None
            for tell in told:
                tell(None)
            return []
        self.committing = True
        under_way = _UnderWay(len(commits), told, self._membership.epoch)
        return [self._request(under_way, topic, offsets) for topic, offsets in commits.items()]

    def _request(self, under_way: _UnderWay, topic: str, offsets: dict[int, int]) -> Request:
        operation = requests.commit(self._options, under_way.epoch, topic, offsets)
        return operation, lambda _, error: self._answered(under_way, topic, offsets, error)

    def _answered(self, under_way: _UnderWay, topic: str, offsets: dict[int, int], error: FlintError | None) -> None:
        if error is None:
            self._claims.committed(topic, offsets)
        else:
            under_way.error = under_way.error or error
            under_way.again |= self._refused(under_way.epoch, topic, offsets, error)
        under_way.parts -= 1
        if under_way.parts:
            return
        self.committing = False
        if not isinstance(under_way.error, ConnectionFailed):
            self.trouble = under_way.error
        if under_way.error is not None:
            pause = 0.0 if under_way.again else self._options.commit_interval
            self._commit_at = min(self._commit_at, self._clock() + pause)
            if isinstance(under_way.error, ConnectionFailed) and under_way.told:
                # Those who wait have a deadline of their own, and there may be another connection before it.
                self._told = under_way.told + self._told
                self._commit_at = 0.0
                return
        for tell in under_way.told:
            tell(under_way.error)

    def _refused(self, epoch: int, topic: str, offsets: dict[int, int], error: FlintError) -> bool:
        """Drop what the broker refuses permanently, so that the rest can be committed. Returns whether to retry at
        once."""
        if isinstance(error, EpochFenced):
            self._membership.beat_soon()
            refused = error.details.get("refused")
            return self._drop(epoch, topic, refused if isinstance(refused, list | tuple) else offsets, error)
        if isinstance(error, QueueNotExist):
            self._membership.beat_soon()
            queues = error.details.get("queues")
            gone = [queue for queue in offsets if not isinstance(queues, int) or queue >= queues]
            return self._drop(epoch, topic, gone, error)
        if isinstance(error, TopicNotExist):
            self._membership.beat_soon()
            return self._drop(epoch, topic, None, error)
        if isinstance(error, MemberUnknown):
            self._membership.beat_soon()
            return False
        if isinstance(error, CommitIllegal):
            queue, max_offset = error.details.get("queue"), error.details.get("max_offset")
            if isinstance(queue, int) and isinstance(max_offset, int):
                log.warning("group %s: %s; continuing from there", self._options.group, error)
                return self._claims.cut_off(topic, queue, max_offset, epoch)
        if not isinstance(error, ConnectionFailed):
            log.warning("group %s: progress in topic %s was not committed: %s", self._options.group, topic, error)
        return False

    def _drop(self, epoch: int, topic: str, queues: Iterable[int] | None, error: FlintError) -> bool:
        dropped = self._claims.refuse(topic, epoch, queues)
        if dropped:
            log.warning(
                "group %s: queues %s of topic %s were taken from this member, which dropped their messages; "
                "messages that it had handled but not committed may be handled twice: %s",
                self._options.group,
                ", ".join(map(str, dropped)),
                topic,
                error,
            )
        return bool(dropped)


class _UnderWay:
    """A commit in progress: the number of requests that it waits for, the waiting callbacks, and its epoch. ``again``:
    retry at once."""

    __slots__ = ("again", "epoch", "error", "parts", "told")

    def __init__(self, parts: int, told: list[Told], epoch: int) -> None:
        self.parts = parts
        self.told = told
        self.epoch = epoch
        self.error: FlintError | None = None
        self.again = False


# ---- The outcome of works: done, retried in their place, sent back to the broker, or given up. Without
# sockets; the engine holds its lock during every call.

SEND_BACK_MAX = 256
"""Maximum number of messages to send back in one request."""
REASONS_BYTES_MAX = 24 * 1024
"""Maximum bytes of different reasons in one such request."""


class AckTracker:
    """The works of one member. ``to_begin``: works for a listener now. ``stuck``: called with a work whose listener
    does not return."""

    def __init__(
        self,
        options: Options,
        claims: Claims,
        membership: Membership,
        progress: Progress,
        clock: Callable[[], float],
        stuck: Callable[[WorkItem], None],
    ) -> None:
        self.counts = Counts()
        self.to_begin: list[WorkItem] = []
        self._options = options
        self._claims = claims
        self._membership = membership
        self._progress = progress
        self._clock = clock
        self._stuck = stuck
        self._later: list[tuple[float, WorkItem]] = []
        """Works that begin at a given time."""
        self._back: deque[tuple[_Left, Failed, int]] = deque()
        """Messages to send back: their work, the failures, and their common delay level."""
        self._back_at = 0.0
        self._sending_back = False
        self._look_at = 0.0
        """When to look for listeners that take too long: it takes a look at every work."""

    # ---- results of listeners

    def finish_work(self, work: WorkItem, failed: Failed, handled: int) -> None:
        """Record that all messages were handled except ``failed``, which are to be sent back."""
        if work.given_up:
            return  # its messages were sent back when the listener exceeded its time
        self.counts.consumed += handled
        self._claims.took(self._clock() - work.taken_at, len(work.messages))
        if failed and not work.claim.lost:
            self._send_back(work, failed)
        else:
            self._complete(work)

    def keep_back(self, work: WorkItem, handled: int, failed: Failed, reason: str) -> None:
        """Keep the message after the first ``handled``, which failed in orderly mode, to retry it in its place.

        ``failed``: messages before it that are to be sent back anyway; ``reason``: why this one failed.
        """
        if work.given_up:
            return
        self.counts.consumed += handled - len(failed)
        self.counts.failed += 1
        self._claims.took(self._clock() - work.taken_at, handled + 1)
        rest = work.messages[handled:]
        tries = 1 if handled else work.tries + 1
        if failed and not work.claim.lost:
            self._send_back(work, failed, rest)
        elif tries > self._retry_times_max() and not work.claim.stopped:
            self._send_back(work, [Failure(rest[0], DEAD_LETTER_LEVEL, reason)], rest[1:])
        else:
            self._keep(work, rest, tries)
            if work.claim.stopped:  # the progress before it is recorded: only the rest goes to another member
                self._drop(work)
            else:
                self._begin_later(work)

    def give_back(self, work: WorkItem) -> None:
        """Return a work that was not begun, because its queue is being released."""
        if work.given_up:
            return
        if work.claim.stopped:
            self._drop(work)
        else:  # the queue was assigned again in the meantime
            self.to_begin.append(work)

    def _retry_times_max(self) -> int:
        asked = self._options.retry_times_max
        return self._membership.retry_times_max if asked < 0 else asked

    def _complete(self, work: WorkItem) -> None:
        if not work.given_up:  # a given-up work is no longer counted as running
            work.claim.running -= 1
        work.claim.complete(work)
        self._after(work.claim)

    def _drop(self, work: WorkItem) -> None:
        """Drop the rest of a work, which another member will get."""
        work.dropped = True
        work.claim.running -= 1
        self._after(work.claim)

    def _after(self, claim: Claim) -> None:
        self._progress.moved(claim)
        if self._options.orderly:
            self.to_begin += self._claims.next_in_order(claim)

    def _keep(self, work: WorkItem, rest: Sequence[StoredMessage], tries: int) -> None:
        """Reduce a work to ``rest``, which is still to be handled."""
        claim = work.claim
        work.tries = tries
        work.begun_at = inf
        claim.messages -= len(work.messages) - len(rest)
        work.messages = rest
        if claim.works and claim.works[0] is work:
            claim.commit_offset = max(claim.commit_offset, rest[0].queue_offset)

    def _begin_later(self, work: WorkItem) -> None:
        self._later.append((self._clock() + self._options.suspend, work))

    # ---- time

    def due_at(self) -> float:
        """Return when a work is to begin, or messages are to be sent back."""
        at = min((at for at, _ in self._later), default=inf)
        waits = self._back and not self._sending_back and self._membership.epoch
        return min(at, self._back_at) if waits else at

    def look_after(self, now: float) -> None:
        """Begin the works that are due, and give up those whose listener takes too long."""
        due = [work for at, work in self._later if at <= now or work.claim.stopped]
        if due:
            self._later = [(at, work) for at, work in self._later if work not in due]
        for work in due:
            if work.claim.stopped:
                self._drop(work)
            else:
                self.to_begin.append(work)
        if now < self._look_at:
            return
        self._look_at = now + min(self._options.listener_timeout / 10, 1.0)
        for claim in self._claims:
            for work in list(claim.works):
                if not work.done and now - work.begun_at >= self._options.listener_timeout:
                    self._give_up(work, now)

    def _give_up(self, work: WorkItem, now: float) -> None:
        claim = work.claim
        receives = self._options.receives
        log.error(
            "group %s: %s of topic %s, queue %d, from offset %d, for %.0f s (listener_timeout): they will "
            "be redelivered to this or another member",
            self._options.group,
            "the application has not settled a message"
            if receives
            else f"the listener has not returned from {len(work.messages)} messages",
            claim.topic,
            claim.queue,
            work.messages[0].queue_offset,
            now - work.begun_at,
        )
        self.counts.stuck += 1
        work.given_up = True
        claim.running -= 1
        late = f"{'it was not settled' if receives else 'the listener did not return'} within"
        late = f"{late} {self._options.listener_timeout:g} s"
        reason = late if self._options.retry_reason else ""
        self._send_back(work, [Failure(message, 0, reason) for message in work.messages])
        self._stuck(work)

    def abandon(self) -> None:
        """Stop waiting for running works."""
        for claim in self._claims:
            claim.running = 0
            for work in claim.works:
                work.given_up = True
        self._later.clear()
        self._back.clear()

    # ---- sending back

    @property
    def sending_back(self) -> bool:
        """True if there are messages to send back."""
        return bool(self._back)

    def _send_back(self, work: WorkItem, failed: Failed, rest: Sequence[StoredMessage] = ()) -> None:
        """Send messages back. The work is done when the broker has them, unless it has a ``rest``."""
        self.counts.failed += len(failed)
        work.begun_at = inf
        if self._options.broadcasting:  # each member gets its own copy, so no other member could retry
            self.counts.skipped += len(failed)
            self._sent_back(_Left(1, work, rest))
            return
        by_level: dict[int, Failed] = {}
        for failure in failed:
            by_level.setdefault(failure.delay_level or self._options.delay_level, []).append(failure)
        parts = [(part, level) for level, failures in by_level.items() for part in _parts(failures)]
        left = _Left(len(parts), work, rest)
        self._back.extend((left, part, level) for part, level in parts)

    def _sent_back(self, left: _Left) -> None:
        left.parts -= 1
        if left.parts:
            return
        work = left.work
        if not left.rest or work.claim.lost:
            self._complete(work)
            return
        if work.given_up:  # it no longer counts as running; count its rest again
            work.given_up = False
            work.claim.running += 1
        self._keep(work, sorted(left.rest, key=lambda message: message.queue_offset), left.tries)
        self._begin_later(work)

    def due(self, now: float) -> list[Request]:
        """Return the request for the next messages to send back, once the broker knows this member."""
        while self._back and self._back[0][0].work.claim.lost and not self._sending_back:
            # A lost queue's new member gets these messages, because they are not committed.
            self._sent_back(self._back.popleft()[0])
        epoch = self._membership.epoch
        if not self._back or self._sending_back or not epoch or now < self._back_at:
            return []
        left, failed, level = self._back[0]
        self._sending_back = True
        operation = requests.send_back(self._options, epoch, failed, level, self._options.retry_times_max)
        return [(operation, lambda answer, error: self._answered(left, failed, epoch, answer, error))]

    def _answered(self, left: _Left, failed: Failed, epoch: int, answer: Any, error: FlintError | None) -> None:
        self._sending_back = False
        if not self._back or self._back[0][1] is not failed:
            return  # abandoned in the meantime
        if isinstance(error, EpochFenced):
            self._fenced(left.work.claim, epoch, error)
            return
        if error is not None and not self._not_sent_back(left, [failure.message for failure in failed], error):
            return
        if error is None:
            self.counts.retried += answer.retried
            self.counts.dead += answer.dead
            if answer.dead:
                self._log_dead(failed, answer.dead, left.work.tries)
        self._back.popleft()
        self._sent_back(left)

    def _log_dead(self, failed: Failed, count: int, tries: int) -> None:
        """Log which ``count`` of the messages became dead letters: those with the most attempts."""
        messages = sorted((failure.message for failure in failed), key=lambda message: -message.reconsume_times)
        log.warning(
            "group %s: moved to %s as dead letters: %s",
            self._options.group,
            dead_letter_topic(self._options.group),
            describe(messages[:count], tries),
        )

    def _fenced(self, claim: Claim, epoch: int, error: FlintError) -> None:
        """Handle a queue that belongs to another member, which gets the failed messages with all uncommitted ones."""
        self._membership.beat_soon()
        if self._claims.refuse(claim.topic, epoch, [claim.queue]):
            log.warning(
                "group %s: queue %d of topic %s was taken from this member, which dropped its messages: %s",
                self._options.group,
                claim.queue,
                claim.topic,
                error,
            )
        else:
            self._back_at = self._clock() + backoff_seconds(3)

    def _not_sent_back(self, left: _Left, messages: list[StoredMessage], error: FlintError) -> bool:
        """Handle a failed request to send back. Returns whether the matter is settled without a retry of the
        request."""
        if isinstance(error, ConnectionFailed):
            return False  # resent on the next connection
        if isinstance(error, MemberUnknown):
            self._membership.beat_soon()
            self._back_at = self._clock() + backoff_seconds(3)
            return False
        if is_retriable(error):
            self._back_at = self._clock() + backoff_seconds(6, error)
            if (left_out := self._options.log_rate.admit()) is not None:
                log.info("group %s: retrying to send messages back: %s%s", self._options.group, error, left_out)
            return False
        left.tries = left.work.tries + 1
        if left.tries > self._retry_times_max():
            log.error(
                "group %s: %d messages failed for the last time, and cannot be stored as dead letters: %s",
                self._options.group,
                len(messages),
                error,
            )
            self.counts.skipped += len(messages)
            return True
        log.error(
            "group %s: %d failed messages could not be sent back, so this member retries them: %s",
            self._options.group,
            len(messages),
            error,
        )
        left.rest = [*messages, *left.rest]
        return True


def _parts(failed: Failed) -> Iterator[Failed]:
    """Split failures with the same delay level into parts that fit one request each."""
    part: Failed = []
    reasons_bytes = 0
    for failure in failed:
        reason_bytes = len(failure.reason.encode()) + 1
        if len(part) >= SEND_BACK_MAX or (part and reasons_bytes + reason_bytes > REASONS_BYTES_MAX):
            yield part
            part, reasons_bytes = [], 0
        part.append(failure)
        reasons_bytes += reason_bytes
    if part:
        yield part


class _Left:
    """The number of requests that a work waits for until its failed messages are sent back, and its rest after that;
    ``tries``: the number of attempts on this member."""

    __slots__ = ("parts", "rest", "tries", "work")

    def __init__(self, parts: int, work: WorkItem, rest: Sequence[StoredMessage]) -> None:
        self.parts = parts
        self.work = work
        self.rest = rest
        self.tries = 0


# ---- Pulls of the queues that a member holds. Without sockets; the engine holds its lock during every call.

REFUSED_PAUSE_SECONDS = 1.0
"""Pause before pulling again from a queue that the broker refused to read."""


class Prefetch:
    """The pulls of one member. ``paused``: topics that are not pulled."""

    def __init__(
        self,
        options: Options,
        claims: Claims,
        membership: Membership,
        progress: Progress,
        acks: AckTracker,
        clock: Callable[[], float],
    ) -> None:
        self.paused: frozenset[str] = frozenset()
        self._options = options
        self._claims = claims
        self._membership = membership
        self._progress = progress
        self._acks = acks
        self._clock = clock

    def due(self, now: float) -> list[Request]:
        """Return the pulls that are due."""
        if not self._membership.epoch or self._membership.leaving:
            return []
        for claim in self._claims.newly_blocked():
            if (left_out := self._options.log_rate.admit()) is None:
                continue
            log.warning(
                "group %s: queue %d of topic %s waits: the message at offset %d is not settled, and %d messages behind "
                "it are (max_uncommitted)%s",
                self._options.group,
                claim.queue,
                claim.topic,
                claim.commit_offset,
                claim.ahead,
                left_out,
            )
        return [self._request(claim) for claim in self._claims.to_pull(now, self.paused)]

    def due_at(self, now: float) -> float:
        """Return when a refused queue is pulled again."""
        return min((c.retry_at for c in self._claims if c.retry_at > now), default=float("inf"))

    def _request(self, claim: Claim) -> Request:
        claim.asked = True
        operation = requests.pull(
            self._options, self._membership.epoch, claim, self._claims.pull_count, self._claims.pull_bytes
        )
        return operation, lambda batch, error: self._answered(claim, batch, error)

    def _answered(self, claim: Claim, batch: Batch | None, error: FlintError | None) -> None:
        claim.asked = False
        if batch is not None:
            claim.refused = None
            if claim.topic in self.paused:
                return  # pulled again, from the same offset, after ``resume``
            messages = batch.messages
            if claim.topic.startswith(RETRY_TOPIC_PREFIX):
                for message in messages:
                    message.shown_in(message.properties.get(PROPERTY_RETRY_TOPIC, claim.topic))
            self._acks.to_begin += self._claims.arrived(claim, batch, messages)
            self._progress.moved(claim)
        elif isinstance(error, OffsetOutOfRange) and not claim.stopped:
            self._moved(claim, error)
        elif not claim.stopped and not isinstance(error, ConnectionFailed):
            claim.retry_at = self._clock() + REFUSED_PAUSE_SECONDS
            if isinstance(error, EpochFenced | MemberUnknown):
                self._membership.beat_soon()
            elif isinstance(error, TopicNotExist | QueueNotExist):
                self._membership.beat_soon()  # the response omits the queue and names the missing topic
                claim.refused = error
            else:
                claim.refused = error
                log.warning(
                    "group %s: topic %s, queue %d cannot be read: %s",
                    self._options.group,
                    claim.topic,
                    claim.queue,
                    error,
                )

    def _moved(self, claim: Claim, error: OffsetOutOfRange) -> None:
        """Continue at the nearest existing offset, after retention or a crash removed the next messages."""
        before = claim.position
        claim.position = min(max(before, error.min_offset), error.max_offset)
        log.warning(
            "group %s: topic %s, queue %d holds %d to %d, not %d: continuing from %d",
            self._options.group,
            claim.topic,
            claim.queue,
            error.min_offset,
            error.max_offset,
            before,
            claim.position,
        )
        self._acks.counts.skipped += max(claim.position - before, 0)
        if not claim.works:
            claim.commit_offset = claim.position
