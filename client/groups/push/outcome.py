"""Outcomes of a listener other than success."""

from __future__ import annotations

import copyreg
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from ....protocol.errors import FlintError
from ....protocol.storage.delivery import DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX, retry_note
from ...application_code import described
from ...core.consume.batch import StoredMessage
from ...errors import CompressionUnavailable, InvalidArgument, InvalidArgumentType
from .assignments import QueueKey
from .options import Options

log = logging.getLogger(__name__)

DESCRIBED_MAX = 10
"""Maximum number of messages named in one log line."""


class Failure(NamedTuple):
    """A message to redeliver, with its delay level and the reason (empty: none)."""

    message: StoredMessage
    delay_level: int
    reason: str


Failed = list[Failure]


class Tried(Protocol):
    """A ``WorkItem`` or a ``Lease``: messages that were handed out."""

    @property
    def messages(self) -> Sequence[StoredMessage]:
        """The messages."""

    @property
    def tries(self) -> int:
        """Number of failed attempts of the first message in its place."""


class TryLater(Exception):
    """Raised by a listener to have the message redelivered later (in a batch: those in ``messages``, or all).

    ``delay_level``: 1 to 18 (1 s to 2 h), 0: the group's delay, which increases with every attempt. ``reason`` is
    stored with the message; by default it is the exception from which this one was raised. Any other exception has the
    same effect, and is logged with its traceback.
    """

    def __init__(self, delay_level: int = 0, messages: Iterable[StoredMessage] | None = None, reason: str = "") -> None:
        if type(delay_level) is not int or not 0 <= delay_level <= DELAY_LEVEL_MAX:
            raise InvalidArgument(f"delay_level is {delay_level!r}; it must be 0 to {DELAY_LEVEL_MAX}")
        if not isinstance(reason, str):
            raise InvalidArgumentType(f"reason must be a str, not {type(reason).__name__}")
        super().__init__(reason or f"to be redelivered, delay level {delay_level}")
        self.delay_level = delay_level
        self.messages = None if messages is None else list(messages)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it is: its arguments are not those of the constructor."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined] # not in its stub


class GiveUp(TryLater):
    """Raised by a listener to make the message (in a batch: those in ``messages``, or all) a dead letter at once,
    without redelivery. ``GiveUp("no such account")`` passes only the reason."""

    def __init__(self, messages: Iterable[StoredMessage] | str | None = None, reason: str = "") -> None:
        if isinstance(messages, str):
            reason, messages = reason or messages, None
        super().__init__(0, messages, reason)
        self.args = (reason or "not to be redelivered",)
        self.delay_level = DEAD_LETTER_LEVEL


def failed_with(error: BaseException, options: Options, messages: Sequence[StoredMessage], work: Tried) -> Failed:
    """Log the ``error`` that a listener raised when called with ``messages`` of ``work``, and return the messages to
    redeliver."""
    reason = reason_of(error)
    first = work.messages[0] if work.messages else None  # none: the work was given up in the meantime
    tries = work.tries if first is not None and first.queue_offset == messages[0].queue_offset else 0
    delay_level = 0
    if isinstance(error, TryLater):
        messages = error.messages or messages
        delay_level = error.delay_level
        if delay_level == DEAD_LETTER_LEVEL:
            who = "the application" if options.receives else "the listener"
            log.warning("group %s: %s gave up %s: %s", options.group, who, describe(messages, tries), reason)
        elif log.isEnabledFor(logging.INFO) and (left_out := options.log_rate.admit()) is not None:
            log.info(
                "group %s: redelivered later: %s: %s%s", options.group, describe(messages, tries), reason, left_out
            )
    elif isinstance(error, CompressionUnavailable):  # its text says what to install: a traceback would add nothing
        log.error("group %s: the listener failed on %s: %s", options.group, describe(messages, tries), error)
    else:
        log.warning(
            "group %s: the listener failed with %s on %s",
            options.group,
            _repr(error),
            describe(messages, tries),
            exc_info=error,
        )
    kept = reason if options.retry_reason else ""
    return [Failure(message, delay_level, kept) for message in messages]


def _repr(error: BaseException) -> str:
    try:
        return repr(error)
    except BaseException:  # noqa: BLE001 - a broken __repr__ must not end the thread
        return described(error)


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure in one line: ``ValueError: no such account``."""
    told = error
    if isinstance(error, TryLater):
        if error.reason:
            return retry_note(error.reason)
        told = error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error
        if told is error:
            return type(error).__name__
    return retry_note(described(told))


# ---- messages in a log


def describe(messages: Sequence[StoredMessage], tries: int = 0) -> str:
    """Describe messages for a log line. ``tries``: number of attempts in their place."""
    described = "; ".join(islice(_each(messages, tries), DESCRIBED_MAX))
    if len(messages) == 1:
        return described
    more = f"; and {len(messages) - DESCRIBED_MAX} more" if len(messages) > DESCRIBED_MAX else ""
    return f"{len(messages)} messages ({described}{more})"


def _each(messages: Iterable[StoredMessage], tries: int) -> Iterator[str]:
    for message in messages:
        try:
            yield _describe(message, tries)
        except FlintError as error:  # a damaged record cannot be described
            yield str(error)


def _describe(message: StoredMessage, tries: int) -> str:
    retried = message.reconsume_times
    parts = [f"message {message.message_id} of topic {message.topic}"]
    if message.keys:
        parts.append(f"{'key' if len(message.keys) == 1 else 'keys'} {' '.join(message.keys)}")
    if not retried:  # a redelivered message is in another queue than it was sent to
        parts.append(f"queue {message.queue}, offset {message.queue_offset}")
    parts.append(f"try {retried + tries + 1}")
    return ", ".join(parts)


# ---- The state and counters of a group's member.


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
