"""The state and counters of a group's member."""

from __future__ import annotations

from dataclasses import dataclass

from ....protocol.errors import FlintError
from .claim import QueueKey


@dataclass(slots=True)
class Counts:
    """Counters since the start, in messages."""

    consumed: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    stuck: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The state and counters of a group's member.

    ``alive``: it can continue; ``error``: why it cannot. ``joined``: it is in its group; ``trouble``: the problem with
    its broker, None after a success, or ``TopicNotExist`` while some of its topics are missing. ``queues``: those it
    holds, ``giving_up``: number of those that are being released to another member. ``pending_messages``,
    ``pending_bytes``: pulled and not done; ``running``: number of works with a listener, or of open deliveries,
    ``longest_seconds``: age of the oldest of them; ``ahead``: number of messages that are done, but behind one of their
    queue that is not, so that they would come again after a crash; ``heard_seconds``: time since the broker's last
    response.

    Counters since the start, in messages: ``consumed``: handled by the listener, ``failed``: failed in it, ``retried``
    and ``dead``: sent back for redelivery, or as dead letters; ``skipped``: removed by retention before they were read
    or could be stored again, or failed without a retry (broadcasting); ``stuck``: works given up because the listener
    did not return. ``taken``: queues that were taken from this member before it had finished with them, because the
    broker did not hear from it in time (frozen, or without a network), the group's offsets were moved, or the topic was
    deleted.

    ``refused``: those of its queues whose last pull the broker refused, and the error: a damaged message, a missing
    permission. The consumer keeps retrying them; all others continue. ``commit_trouble``: the broker's error for the
    last commit, None if it succeeded.
    """

    alive: bool
    joined: bool
    connected: bool
    group: str
    member: str
    epoch: int
    queues: tuple[QueueKey, ...]
    giving_up: int
    pending_messages: int
    pending_bytes: int
    running: int
    ahead: int
    longest_seconds: float
    heard_seconds: float
    consumed: int
    failed: int
    retried: int
    dead: int
    stuck: int
    skipped: int
    taken: int
    error: FlintError | None
    trouble: FlintError | None
    refused: dict[QueueKey, FlintError]
    commit_trouble: FlintError | None
