"""The common part of both transactional producers and of their transactions: arguments, state, outcome."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, Unpack

from ...connection_log import ConnectionLog
from ...core.compression import Compression
from ...core.produce.delivery import Outbox
from ...core.produce.grouping import Flush
from ...core.produce.receipts import Receipt
from ...core.rpc.access import AccessOptions, access_for
from ...core.rpc.address import parse_addresses
from ...message import Message
from ...sync.pool import Dialer
from . import requests
from .decisions import Decisions
from .health import TransactionHealth, health_of
from .outcome import Outcome
from .questions import Questions
from .registration import Question, Registration


class HalfOptions(AccessOptions, total=False):
    """Keyword arguments that a transactional producer shares with ``Producer``, which describes them."""

    delivery_timeout: float
    compress_over: int | None
    compression: Compression | None
    flush: Flush | None


_OWN_OPTIONS = HalfOptions.__annotations__.keys() - AccessOptions.__annotations__.keys()


class Halves(Protocol):
    """The producer that sends half messages."""

    @property
    def delivery(self) -> Outbox:
        """The delivery that sends them."""

    @property
    def closed(self) -> bool:
        """True after ``close``."""


HalvesT = TypeVar("HalvesT", bound=Halves)
CheckT = TypeVar("CheckT", bound=Callable[..., Any])
ProducerT = TypeVar("ProducerT")


class TransactionShell(Generic[ProducerT]):
    """A message that waits for its commit. ``message_id``: its id, the same in the message that ``check`` gets."""

    __slots__ = ("__weakref__", "_outcome", "_producer", "message", "receipt")

    def __init__(self, producer: ProducerT, message: Message, receipt: Receipt) -> None:
        self.message = message
        self.receipt = receipt
        """Receipt of the half message: its location differs from that of the delivered message."""
        self._producer = producer
        self._outcome: Outcome | None = None

    @property
    def message_id(self) -> str:
        """The message's id, which is also the transaction's."""
        return self.receipt.message_id

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, None while the transaction is open."""
        return self._outcome

    def __repr__(self) -> str:
        return f"<Transaction {self.message_id} {self._outcome or 'open'}>"


class TransactionProducerShell(ABC, Generic[HalvesT, CheckT]):
    """A transactional producer without the threads or tasks that run ``check``."""

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        group: str = "",
        check: CheckT | None = None,
        *,
        session_timeout: float = requests.SESSION_SECONDS,
        **options: Unpack[HalfOptions],
    ) -> None:
        access = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
        entry = access_for(self, access, _OWN_OPTIONS)
        self._check = self._checked(check)
        self._group = requests.check_group(group)
        seconds = requests.check_session(session_timeout)
        self._halves = self._new_halves(addresses, options)
        self._halves.delivery.frames.common = requests.half_common(self._group)
        self._decisions = Decisions(self._halves.delivery)
        self._questions = Questions(self._decisions, self._check_later)
        connection_log = ConnectionLog(f"producer group {self._group}", logging.WARNING)
        dialer = Dialer(parse_addresses(addresses), entry, connection_log)
        self._registration = Registration(self._group, requests.new_member(), seconds, dialer, self._questions.ask)
        self._questions.registration = self._registration

    @staticmethod
    @abstractmethod
    def _checked(check: Any) -> CheckT:
        """Return ``check``; raises unless it is of a kind that this producer calls."""

    @abstractmethod
    def _new_halves(self, addresses: str | Iterable[str] | None, options: HalfOptions) -> HalvesT:
        """Create the producer that sends half messages; called once, after the other arguments are checked."""

    @abstractmethod
    def _check_later(self, question: Question) -> None:
        """Have ``check`` called for a check of the broker. Called on the registration's thread; must not block."""

    @property
    def group(self) -> str:
        """The producer group's name."""
        return self._group

    def health(self) -> TransactionHealth:
        """Return the producer's current state and counters."""
        return health_of(self._registration, self._questions, self._decisions, closed=self._halves.closed)
