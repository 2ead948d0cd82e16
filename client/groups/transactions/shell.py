"""The common part of both transactional producers and of their transactions: arguments, state, outcome."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from ....protocol.errors import FlintError
from ...aio.rpc import Dialer
from ...aio.runtime import ClientRuntime
from ...core.client_guard import Guard
from ...core.compression import Compression
from ...core.produce.delivery import Outbox
from ...core.produce.packer import Flush
from ...core.produce.receipts import Receipt
from ...core.rpc.access import AccessOptions, access_for
from ...core.rpc.address import parse_addresses
from ...endpoint import ConnectionLog
from ...message import Message
from . import registration
from .decisions import Decisions, Outcome
from .registration import Question, Questions, Registration

# ---- The state and counters of a transactional producer.


@dataclass(frozen=True, slots=True)
class TransactionHealth:
    """The state and counters of a transactional producer.

    ``alive``: it can continue; ``error``: why it cannot. ``registered``: the broker knows it and can send it checks;
    ``trouble``: what prevents that. ``open``: transactions that this producer has begun and whose end the broker has
    not confirmed; ``checked``: number of checks answered with an outcome, ``check_failures``: number of checks that
    failed because ``check`` raised or did not return an ``Outcome`` (``last_check_error``); ``checking``: transactions
    that wait for ``check``. ``heard_seconds``: time since the broker's last response.
    """

    alive: bool
    registered: bool
    group: str
    member: str
    open: int
    checked: int
    check_failures: int
    checking: int
    heard_seconds: float
    error: FlintError | None
    trouble: FlintError | None
    last_check_error: BaseException | None


def health_of(
    registration: Registration, questions: Questions, decisions: Decisions, *, closed: bool
) -> TransactionHealth:
    """Return the health of the producer with these parts."""
    return TransactionHealth(
        alive=registration.alive and not closed,
        registered=registration.registered.is_set(),
        group=registration.group,
        member=registration.member,
        open=len(decisions),
        checked=questions.checked_count,
        check_failures=questions.failed_count,
        checking=questions.waiting,
        heard_seconds=registration.heard_seconds(),
        error=registration.failure,
        trouble=registration.trouble,
        last_check_error=questions.last_error,
    )


class HalfOptions(AccessOptions, total=False):
    """Keyword arguments that a transactional producer shares with ``Producer``, which describes them."""

    delivery_timeout: float
    compress_over: int | None
    compression: Compression | None
    flush: Flush | None


_OWN_OPTIONS = HalfOptions.__annotations__.keys() - AccessOptions.__annotations__.keys()


class HalfProducer:
    """Base of both producers that send half messages, besides ``Producer``; a subclass defines ``guard``."""

    _delivery: Outbox

    @property
    def delivery(self) -> Outbox:
        """The delivery that sends them."""
        return self._delivery

    @property
    def guard(self) -> Guard:
        """The check whether the producer can be used."""
        raise NotImplementedError


HalvesT = TypeVar("HalvesT", bound=HalfProducer)
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
        session_timeout: float = registration.SESSION_SECONDS,
        **options: Unpack[HalfOptions],
    ) -> None:
        access = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
        entry = access_for(self, access, _OWN_OPTIONS)
        self._check = self._checked(check)
        self._group = registration.check_group(group)
        seconds = registration.check_session(session_timeout)
        self._halves = self._new_halves(addresses, options)
        self._halves.delivery.frames.common = registration.half_common(self._group)
        self._decisions = Decisions(self._halves.delivery)
        self._questions = Questions(self._decisions, self._check_later)
        connection_log = ConnectionLog(f"producer group {self._group}", logging.WARNING)
        life = ClientRuntime(type(self).__name__)
        dialer = Dialer(parse_addresses(addresses), entry, connection_log, life)
        self._registration = Registration(self._group, registration.new_member(), seconds, dialer, self._questions.ask)
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
        return health_of(self._registration, self._questions, self._decisions, closed=self._halves.guard.closed)
