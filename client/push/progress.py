"""Telling the broker how far the queues are done. Without sockets; the engine's lock is held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

from ...protocol.errors import (
    CommitIllegal,
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberUnknown,
    QueueNotExist,
    TopicNotExist,
)
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
        self._apart: set[str] = set()
        """Topics of which each queue is committed by itself: an older broker does not say which ones it refuses."""
        self.committing = False
        """Whether an answer is waited for."""
        self.trouble: FlintError | None = None
        """Why the last commit was refused, None if it was not."""

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
        """When the next commit is due: not before the broker knows this member."""
        return inf if self.committing or not self._membership.epoch else self._commit_at

    def due(self, now: float) -> list[Request]:
        """One request for each topic of which the broker should know more."""
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
        """What goes into one request each."""
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
        for tell in under_way.told:
            tell(under_way.error)

    def _refused(self, epoch: int, topic: str, offsets: dict[int, int], error: FlintError) -> bool:
        """Drop what the broker refuses for good, so that it does not keep the rest from being committed. Return whether
        there is something new to be tried at once."""
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
                log.warning("group %s: %s; going on from there", self._options.group, error)
                return self._claims.cut_off(topic, queue, max_offset, epoch)
        if not isinstance(error, ConnectionFailed):
            log.warning("group %s: progress in topic %s was not kept: %s", self._options.group, topic, error)
        return False

    def _drop(self, epoch: int, topic: str, queues: Iterable[int] | None, error: FlintError) -> bool:
        dropped = self._claims.refuse(topic, epoch, queues)
        if dropped:
            log.warning(
                "group %s: queues %s of topic %s were taken from this member, which has dropped what it had of them; "
                "what it had done of that and not committed may be done twice: %s",
                self._options.group, ", ".join(map(str, dropped)), topic, error,
            )  # fmt: skip
        return bool(dropped)


class _UnderWay:
    """How many requests a commit waits for, who waits for it, and the epoch that it speaks of. ``again``: whether it is
    to be tried again at once."""

    __slots__ = ("again", "epoch", "error", "parts", "told")

    def __init__(self, parts: int, told: list[Told], epoch: int) -> None:
        self.parts = parts
        self.told = told
        self.epoch = epoch
        self.error: FlintError | None = None
        self.again = False
