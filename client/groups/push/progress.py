"""Commits of the queues' progress. Without sockets; the engine holds its lock during every call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

from ....protocol.errors import (
    CommitIllegal,
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberUnknown,
    QueueNotExist,
    TopicNotExist,
)
from ...core.rpc.operation import Request
from . import requests
from .assignments import Claims
from .claim import Claim
from .membership import Membership
from .options import Options

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
        self._apart: set[str] = set()
        """Topics whose queues are committed one by one, because an older broker does not say which ones it refuses."""
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
            self._commit_at = self._clock() + self._options.commit_seconds

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
        parts = [part for topic, offsets in commits.items() for part in self._parts(topic, offsets)]
        self._apart.clear()
        under_way = _UnderWay(len(parts), told, self._membership.epoch)
        return [self._request(under_way, topic, offsets) for topic, offsets in parts]

    def _parts(self, topic: str, offsets: dict[int, int]) -> list[tuple[str, dict[int, int]]]:
        """Split a topic's offsets into parts of one request each."""
        if topic not in self._apart:
            return [(topic, offsets)]
        return [(topic, {queue: offset}) for queue, offset in offsets.items()]

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
            pause = 0.0 if under_way.again else self._options.commit_seconds
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
            named = isinstance(refused, list | tuple)
            if not named and len(offsets) > 1:
                self._apart.add(topic)
                return True
            return self._drop(epoch, topic, refused if named else offsets, error)
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
