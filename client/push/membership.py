"""Being in a group: heartbeats, what they are answered, and leaving. Without sockets; the engine's lock is held."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Any, NoReturn

from ...protocol.errors import (
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberNameTaken,
    MemberUnknown,
    RemoteProtocolError,
    TopicNotExist,
)
from ..core.operations import Operation
from ..core.retry import backoff_seconds, is_retriable
from . import requests
from .claims import Claims
from .options import Options

log = logging.getLogger(__name__)

Answered = Callable[[Any, FlintError | None], None]
"""Gets the result of a request, or why there is none."""
Request = tuple[Operation[Any], Answered]


class Membership:
    """One member's. ``assigned``: called with True after each answer to joining, with False after any other."""

    def __init__(
        self, options: Options, claims: Claims, clock: Callable[[], float], assigned: Callable[[bool], None]
    ) -> None:
        self.epoch = 0
        """Of the present assignment; 0: the broker does not know this member (any more), and it has to join."""
        self.last_epoch = 0
        """Of the last assignment that there was; 0: none yet."""
        self.retry_times_max = 16
        self.missing: tuple[str, ...] = ()
        """Topics that this member wants and that the broker does not have, or does not let anybody read."""
        self.leaving = False
        self.left = False
        """Nothing is left to be said to the broker."""
        self.beat_at = 0.0
        self._options = options
        self._claims = claims
        self._clock = clock
        self._assigned = assigned
        self._beating = False
        self._parting = False
        self._interval_seconds = 1.0
        self._refused_since = inf
        self._run = 0
        """Which start of the broker answered last."""

    @property
    def parting(self) -> bool:
        """Whether the broker was told that this member goes."""
        return self._parting or self.left

    def beat_soon(self) -> None:
        """The assignment may have changed: ask for it."""
        self.beat_at = 0.0

    def due_at(self) -> float:
        """When the next heartbeat is due."""
        return inf if self._beating or self._parting else self.beat_at

    def due(self, now: float, *, may_leave: bool) -> list[Request]:
        """A heartbeat or the farewell, where it is time. ``may_leave``: nothing else is under way."""
        if self._parting:
            return []
        if self.leaving and may_leave and not len(self._claims):
            return [self._leave_request()]
        if now >= self.beat_at and not self._beating:
            return [self._beat_request()]
        return []

    def _beat_request(self) -> Request:
        self._beating = True
        self.beat_at = inf
        epoch = self.epoch
        operation = requests.heart_beat(self._options, epoch, self._claims.owned())
        return operation, lambda answer, error: self._beaten(epoch, answer, error)

    def _beaten(self, epoch: int, answer: requests.Assignment | None, error: FlintError | None) -> None:
        now = self._clock()
        self._beating = False
        # Told meanwhile that the assignment changed: this answer may be older than that.
        at_once = self.beat_at == 0.0
        if answer is None:
            assert error is not None
            self._refused(error, now)
            return
        self._refused_since = inf
        self._interval_seconds = answer.interval_seconds
        self.beat_at = 0.0 if at_once else now + answer.interval_seconds
        self.epoch = self.last_epoch = answer.epoch
        self.retry_times_max = answer.retry_times_max
        self._claims.assign(answer.rows, rejoined=not epoch, forgetful=answer.run != self._run)
        self._run = answer.run
        self._note_missing(answer.missing)
        if self.leaving:
            self._claims.revoke_all()
        self._assigned(not epoch)

    def _note_missing(self, missing: tuple[str, ...]) -> None:
        """Say once of each topic that it is not there, and that it is there after all."""
        group = self._options.group
        for topic in missing:
            if topic not in self.missing:
                log.warning(
                    "group %s: the broker has no topic %s that can be read: nothing of it is consumed until there is; "
                    "is its name right? (flintmq topic list shows them, flintmq topic create makes one)",
                    group, topic,
                )  # fmt: skip
        for topic in self.missing:
            if topic not in missing:
                log.info("group %s: topic %s is there now", group, topic)
        self.missing = missing

    @property
    def trouble(self) -> TopicNotExist | None:
        """What is wrong with the topics of this member, if something is."""
        if not self.missing:
            return None
        names = ", ".join(self.missing)
        several = len(self.missing) > 1
        return TopicNotExist(
            f"the broker has no {'topics' if several else 'topic'} {names} that can be read: nothing of "
            f"{'them' if several else 'it'} is consumed until there is; are the names right?"
        )

    def _refused(self, error: FlintError, now: float) -> None:
        self.beat_at = now + self._interval_seconds
        if isinstance(error, ConnectionFailed | RemoteProtocolError):
            return  # the next connection begins with a heartbeat
        if isinstance(error, MemberUnknown) and self.last_epoch:
            self.epoch = 0
            self.beat_at = 0.0
            if self.leaving:
                self._claims.lose_all()
                self.left = True
            return
        self._refused_since = min(self._refused_since, now)
        # After a broken connection the broker may take this member for another one until the old session is over.
        again = isinstance(error, MemberNameTaken) and self.last_epoch
        if is_retriable(error) or (again and now < self._refused_since + self._options.session_seconds):
            self.beat_at = now + backoff_seconds(4, error)
            return
        _give_up(error)

    def _leave_request(self) -> Request:
        self._parting = True

        def left(_: None, error: FlintError | None) -> None:
            if error is not None and not isinstance(error, MemberUnknown | EpochFenced):
                log.warning("group %s: leaving failed: %s", self._options.group, error)
            self.left = True

        return requests.leave(self._options, self.epoch), left


def _give_up(error: FlintError) -> NoReturn:
    """Nothing can go on: the engine ends with it."""
    raise error
