"""How a push consumer is, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import FlintError
from .claims import QueueKey


@dataclass(slots=True)
class Counts:
    """What happened since the start, in messages."""

    consumed: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    stuck: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """How a push consumer is.

    ``alive``: whether it can go on; ``error``: why it cannot. ``joined``: whether it is in its group; ``trouble``: what
    keeps it from its broker, None since something succeeded; else ``TopicNotExist`` while some of its topics are not
    there. ``queues``: those it holds, ``giving_up``: how many of them are on their way to another member.
    ``pending_messages``, ``pending_bytes``: pulled and not done; ``running``: works with a listener,
    ``longest_seconds``: since when the oldest of them; ``heard_seconds``: since the broker was heard.

    Since the start, in messages: ``consumed`` by the listener, ``failed`` in it, ``retried`` and ``dead``: sent back to
    be tried again, or as dead letters; ``skipped``: removed by retention before they were read or could be stored
    again, or failed where nobody tries again (broadcasting); ``stuck``: works that were given up because the listener
    did not come back. ``taken``: queues that were taken from this member before it had finished with them, because it
    was not heard of in time (frozen, or without a network), the group's offsets were moved, or the topic is gone.

    ``refused``: of its queues, those whose last pull the broker refused, and why: a damaged message, a missing
    permission. They are asked again and again; all others go on. ``commit_trouble``: why the broker refused to keep
    some of the progress when it was last told of it; None if it did not.
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
