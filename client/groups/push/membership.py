"""Group membership: heartbeats, their responses, and leaving. Without sockets; the engine holds its lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import NoReturn

from ....protocol.errors import (
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberNameTaken,
    MemberUnknown,
    RemoteProtocolError,
    TopicNotExist,
)
from ...core.rpc.operation import Request, backoff_seconds, is_retriable
from . import requests
from .assignments import Claims
from .options import Options

log = logging.getLogger(__name__)


class Membership:
    """One member's membership. ``assigned``: called with True after the response to joining, with False after
    others."""

    def __init__(
        self, options: Options, claims: Claims, clock: Callable[[], float], assigned: Callable[[bool], None]
    ) -> None:
        self.epoch = 0
        """Epoch of the present assignment; 0: the broker does not know this member, so it must join."""
        self.last_epoch = 0
        """Epoch of the last assignment; 0: there was none yet."""
        self.retry_times_max = 16
        self.missing: tuple[str, ...] = ()
        """Subscribed topics that the broker does not have, or that cannot be read."""
        self.leaving = False
        self.left = False
        """True when there is nothing left to tell the broker."""
        self.beat_at = 0.0
        self._options = options
        self._claims = claims
        self._clock = clock
        self._assigned = assigned
        self._beating = False
        self._parting = False
        self._interval_seconds = 1.0
        self._refused_since = inf
        self._unanswered = False
        """True if a heartbeat was not answered: the broker may have accepted this member nevertheless."""
        self._run = 0
        """Number of the broker's start that responded last."""

    @property
    def parting(self) -> bool:
        """True after the member told the broker that it leaves."""
        return self._parting or self.left

    def beat_soon(self) -> None:
        """Send a heartbeat soon: the assignment may have changed."""
        self.beat_at = 0.0

    def due_at(self) -> float:
        """Return when the next heartbeat is due."""
        return inf if self._beating or self._parting else self.beat_at

    def due(self, now: float, *, may_leave: bool) -> list[Request]:
        """Return a heartbeat or the request to leave, if it is due. ``may_leave``: nothing else is in progress."""
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
        # If the broker announced a change meanwhile, this response may be older than the change: ask again.
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
        forgetful = answer.run != self._run
        self._claims.assign(answer.rows, rejoined=not epoch, forgetful=forgetful, alone=self._options.broadcasting)
        self._run = answer.run
        self._note_missing(answer.missing)
        if self.leaving:
            self._claims.revoke_all()
        self._assigned(not epoch)

    def _note_missing(self, missing: tuple[str, ...]) -> None:
        """Log once for each topic that it is missing, and that it has appeared."""
        group = self._options.group
        for topic in missing:
            if topic not in self.missing:
                log.warning(
                    "group %s: the broker has no readable topic %s: nothing is consumed from it until it exists; "
                    "check its name (flintmq topic list shows all topics, flintmq topic create creates one)",
                    group,
                    topic,
                )
        for topic in self.missing:
            if topic not in missing:
                log.info("group %s: topic %s exists now", group, topic)
        self.missing = missing

    @property
    def trouble(self) -> TopicNotExist | None:
        """The error about missing topics, or None."""
        if not self.missing:
            return None
        names = ", ".join(self.missing)
        several = len(self.missing) > 1
        return TopicNotExist(
            f"the broker has no readable {'topics' if several else 'topic'} {names}: nothing is consumed from "
            f"{'them' if several else 'it'} until then; check the {'names' if several else 'name'}"
        )

    def _refused(self, error: FlintError, now: float) -> None:
        self.beat_at = now + self._interval_seconds
        if isinstance(error, ConnectionFailed | RemoteProtocolError):
            self._unanswered = True
            return  # the next connection begins with a heartbeat
        if isinstance(error, MemberUnknown) and self.last_epoch:
            self.epoch = 0
            self.beat_at = 0.0
            if self.leaving:
                self._claims.lose_all()
                self.left = True
            return
        self._refused_since = min(self._refused_since, now)
        # After a broken connection the broker may see this member as a second one until the old session expires.
        again = isinstance(error, MemberNameTaken) and (self.last_epoch or self._unanswered)
        if is_retriable(error) or (again and now < self._refused_since + self._options.session_timeout):
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
    """Raise an error after which the engine cannot continue."""
    raise error
