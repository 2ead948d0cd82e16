"""Pulls of the queues that a member holds. Without sockets; the engine holds its lock during every call."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ....protocol.errors import (
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberUnknown,
    OffsetOutOfRange,
    QueueNotExist,
    TopicNotExist,
)
from ....protocol.storage.delivery import PROPERTY_RETRY_TOPIC, RETRY_TOPIC_PREFIX
from ...core.consume.batch import Batch
from ...core.rpc.operation import Request
from . import requests
from .ack_tracker import AckTracker
from .assignments import Claims
from .claim import Claim
from .membership import Membership
from .options import Options
from .progress import Progress

log = logging.getLogger(__name__)

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
