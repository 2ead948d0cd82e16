"""Telling the broker how far the queues are done. Without sockets; the engine's lock is held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from ...protocol.errors import ConnectionFailed, EpochFenced, FlintError, MemberUnknown
from . import requests
from .claims import Claim, Claims
from .membership import Membership, Request
from .options import Options

log = logging.getLogger(__name__)

Told = Callable[[FlintError | None], None]
"""Called when the broker knows, or with what kept it from knowing."""


class Progress:
    """One member's."""

    def __init__(self, options: Options, claims: Claims, membership: Membership, clock: Callable[[], float]) -> None:
        self._options = options
        self._claims = claims
        self._membership = membership
        self._clock = clock
        self._commit_at = inf
        self._told: list[Told] = []
        self.committing = False
        """Whether an answer is waited for."""

    @property
    def by_itself(self) -> bool:
        """Whether what is done is committed without being asked to."""
        return self._options.commits and self._options.auto_commit

    def ask(self, told: Told) -> None:
        """Commit at once; ``told`` is called when that is over."""
        self._told.append(told)
        self._commit_at = 0.0

    def take_told(self) -> list[Told]:
        """Who waits to be told, and will not be by this."""
        told, self._told = self._told, []
        return told

    def moved(self, claim: Claim) -> None:
        """Something of a queue may have been done: it is committed when the interval is over."""
        if self._commit_at == inf and self._options.auto_commit and claim.commit_offset > claim.committed:
            self._commit_at = self._clock() + self._options.commit_seconds

    def moved_anything(self) -> None:
        """As ``moved``, of all queues: a broker that was killed may have forgotten what it knew."""
        for claim in self._claims:
            self.moved(claim)

    def look_after(self, now: float) -> None:
        """A queue that is to be given up does not wait for the interval."""
        if self.by_itself and any(
            claim.revoked and claim.drained and claim.commit_offset > claim.committed for claim in self._claims
        ):
            self._commit_at = min(self._commit_at, now)

    def due_at(self) -> float:
        """When the next commit is due."""
        return inf if self.committing else self._commit_at

    def due(self, now: float) -> list[Request]:
        """One request for each topic of which the broker should know more."""
        if now < self.due_at():
            return []
        self._commit_at = inf
        told = self.take_told()
        commits = self._claims.commits() if self._options.commits else {}
        if not commits:
            for tell in told:
                tell(None)
            return []
        self.committing = True
        under_way = _UnderWay(len(commits), told)
        return [self._request(under_way, topic, offsets) for topic, offsets in commits.items()]

    def _request(self, under_way: _UnderWay, topic: str, offsets: dict[int, int]) -> Request:
        operation = requests.commit(self._options, self._membership.epoch, topic, offsets)
        return operation, lambda _, error: self._answered(under_way, topic, offsets, error)

    def _answered(self, under_way: _UnderWay, topic: str, offsets: dict[int, int], error: FlintError | None) -> None:
        if error is None:
            self._claims.committed(topic, offsets)
        else:
            under_way.error = under_way.error or error
            if isinstance(error, EpochFenced | MemberUnknown):
                self._membership.beat_soon()
            elif not isinstance(error, ConnectionFailed):
                log.warning("group %s: progress in topic %s was not kept: %s", self._options.group, topic, error)
        under_way.topics -= 1
        if under_way.topics:
            return
        self.committing = False
        if under_way.error is not None:
            self._commit_at = min(self._commit_at, self._clock() + self._options.commit_seconds)
        for tell in under_way.told:
            tell(under_way.error)


class _UnderWay:
    """How many topics a commit waits for, and who waits for it."""

    __slots__ = ("error", "told", "topics")

    def __init__(self, topics: int, told: list[Told]) -> None:
        self.topics = topics
        self.told = told
        self.error: FlintError | None = None
