"""One delivery: a message that an application received, and settles when and where it likes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

from ...core.consume.stored import StoredMessage
from ...core.hooks import Observation
from ...core.rpc.timeouts import check_timeout
from ...errors import InvalidArgumentType
from .outcome import GiveUp, TryLater


class Delivery:
    """A message that a ``GroupConsumer`` handed out, until it is settled: by ``ack``, ``retry`` or ``dead``.

    Deliveries are settled in any order, from any thread (those of an asyncio consumer too); no call blocks. The first
    outcome counts: later calls change nothing. All raise ``DeliveryLost`` if the message is no longer this member's, so
    that it is handled again whatever the caller did: its queue was given to another member because the broker had not
    heard from this one for ``session_timeout``, ``listener_timeout`` has passed, its lease is over (``mode="work"``),
    or the consumer has ended. They raise ``ForkedClient`` in a forked child.
    """

    __slots__ = ("_settled", "_source", "_work", "handling", "message")

    message: StoredMessage
    """The message. It does not keep the bytes of other messages."""

    def __init__(self, source: DeliverySource, work: Any) -> None:
        self.message = work.messages[0]
        self._source = source
        self._work = work
        self._settled = False
        self.handling: Observation | None = None
        """Set by hooks: it ends when the delivery is settled or lost."""

    def ack(self) -> None:
        """Settle the message as handled. Its progress is committed with the next commit."""
        self._settle(None)

    def retry(self, delay_level: int = 0, reason: str | None = None) -> None:
        """Have the message redelivered later, to any member.

        ``delay_level``: 1 to 18 (1 s to 2 h), 0: the group's delay, which increases with every attempt. ``reason`` is
        stored with the message (``StoredMessage.retry_reason``); by default it is the exception that is being handled,
        if any.
        """
        self._settle(TryLater(delay_level, reason=_checked(reason)))

    def dead(self, reason: str | None = None) -> None:
        """Make the message a dead letter, without redelivery. ``reason``: as for ``retry``."""
        self._settle(GiveUp(reason=_checked(reason)))

    def _settle(self, told: TryLater | None) -> None:
        handling = self.handling
        if handling is None:
            self._source.settle(self, told)
            return
        try:
            self._source.settle(self, told)
        except BaseException as error:
            handling.end(error)
            raise
        handling.end(told)

    def renew(self, seconds: float) -> None:
        """Let the lease end this many seconds from now, and stop renewing it automatically.

        Does nothing if the consumer is not in the mode ``work``: then the message stays here as long as the member
        does.
        """
        self._source.renew(self, check_timeout("seconds", seconds))

    @property
    def settled(self) -> bool:
        """True after ``ack``, ``retry`` or ``dead`` has succeeded."""
        return self._settled

    @property
    def lost(self) -> bool:
        """True if the message is no longer this member's, and is handled again. In the mode ``work`` this may turn out
        after the delivery was settled: the outcome reached the broker too late."""
        return self._source.is_lost(self)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "settled" if self._settled else "open"
        return f"<Delivery {state} {self.message!r}>"


class DeliverySource(ABC):
    """The messages of one member that wait to be received, and its open deliveries. Thread-safe."""

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        """Notified with every change."""
        self.ended = False
        """True if nothing more is handed out."""

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of deliveries that receivers can take; read it under ``condition``."""

    @property
    def available(self) -> bool:
        """True if a receiver need not wait; read it under ``condition``."""
        return self.ended or self.ready > 0

    @property
    @abstractmethod
    def open_count(self) -> int:
        """Number of open deliveries."""

    @abstractmethod
    def expect(self, count: int) -> None:
        """Note that receivers wait for this many more messages, or (if negative) for fewer."""

    @abstractmethod
    def take(self, max_count: int) -> list[Delivery]:
        """Open up to ``max_count`` deliveries; returns none if none is available."""

    @abstractmethod
    def settle(self, delivery: Delivery, told: TryLater | None) -> None:
        """Settle a delivery: as handled, or with what a listener would have raised."""

    @abstractmethod
    def renew(self, delivery: Delivery, seconds: float) -> None:
        """Let the lease of a delivery end this many seconds from now."""

    @abstractmethod
    def is_lost(self, delivery: Delivery) -> bool:
        """Return whether the message of a delivery is no longer this member's."""

    @abstractmethod
    def end(self, *, abandon: bool) -> None:
        """Hand out nothing more, and give back the waiting messages. ``abandon``: forget the open deliveries."""


def _checked(reason: str | None) -> str:
    if not isinstance(reason, str | None):
        raise InvalidArgumentType(f"reason must be a str or None, not {type(reason).__name__}")
    return reason or ""
