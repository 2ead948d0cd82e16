"""The lease of one message, as the consumer of a work queue keeps it."""

from __future__ import annotations

from math import inf

from ...core.consume.stored import StoredMessage


class Lease:
    """A message that the broker has leased to this consumer. Times are seconds of the engine's clock.

    ``ends_at``: the lease is over then at the latest; ``renew_at``: when to renew it by itself; ``renew_until``: end of
    that. ``resent``: its outcome was sent before, and the response was lost.
    """

    __slots__ = (
        "begun_at",
        "ends_at",
        "lost",
        "message",
        "offset",
        "pop_ms",
        "queue",
        "renew_at",
        "renew_until",
        "resent",
        "retry",
        "topic",
    )

    tries = 0
    """Attempts in its place, of which a work queue has none."""

    def __init__(self, message: StoredMessage, topic: str, pop_ms: int, *, retry: bool) -> None:
        self.message = message
        self.topic = topic
        self.retry = retry
        self.queue = message.queue
        self.offset = message.queue_offset
        self.pop_ms = pop_ms
        self.ends_at = inf
        self.renew_at = inf
        self.renew_until = inf
        self.begun_at = inf
        self.resent = False
        self.lost = ""
        """Why it cannot be settled any more; empty: it can."""

    @property
    def messages(self) -> tuple[StoredMessage]:
        """Its message, like those of a ``WorkItem``."""
        return (self.message,)
