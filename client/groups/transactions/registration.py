"""The registration of a producer with the broker, over its own connection, on which the broker's checks arrive."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TypeVar

from ....protocol import commands
from ....protocol.commands import CHECK_TRANSACTION_STATE, CheckTransactionStateAnswer, CheckTransactionStateRequest
from ....protocol.errors import (
    SUCCESS,
    BrokerError,
    BrokerFailure,
    ConnectionFailed,
    FlintError,
    InvalidParameter,
    UnknownCommand,
)
from ....protocol.fields import decode_fields, encode_fields
from ....protocol.names import check_name
from ....protocol.storage.delivery import PROPERTY_HALF, PROPERTY_PRODUCER_GROUP
from ....protocol.times import duration_millis
from ...aio.connection import Connection
from ...aio.rpc import Dialer
from ...application_code import described
from ...core.admin import end_half
from ...core.consume.batch import StoredMessage
from ...core.produce.receipts import Receipt
from ...core.rpc.operation import Operation, Request, nothing, operation
from ...core.rpc.session import Answer, Asked
from ...core.rpc.timeouts import check_timeout
from ...errors import ClientFailed, InvalidArgument, InvalidArgumentType
from ..callables import is_coroutine_function, is_generator_function, name_of
from ..member_connection import MemberConnection
from .decisions import Decisions, Outcome

# ---- The requests of a transactional producer, as operations.

T = TypeVar("T")

PRODUCER = "producer"
SESSION_SECONDS = 10.0
"""Time without a heartbeat after which the broker asks another producer of the group."""


def check_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """Return ``check`` if it can be called; else raise ``InvalidArgument``."""
    if not callable(check):
        raise InvalidArgumentType(
            "check must be a function that takes a StoredMessage and returns an Outcome: without it no process could "
            "tell the outcome of a transaction whose sender was killed"
        )
    if is_generator_function(check):
        raise InvalidArgument(f"check {name_of(check)} is a generator function: calling it would run none of its code")
    return check


def check_plain_check(check: Callable[..., T] | None) -> Callable[..., T]:
    """Return ``check`` if a thread can call it; raise ``InvalidArgument`` if it must be awaited."""
    found = check_check(check)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"check {name_of(found)} is a coroutine function (async def), but this producer would never await its "
            "result: use flintmq.client.aio.TransactionProducer, or pass a plain function (def)"
        )
    return found


def check_group(group: object) -> str:
    """Return ``group`` if it is a valid name of a producer group; else raise ``InvalidArgument``."""
    if not isinstance(group, str):
        raise InvalidArgumentType(f"group must be a str, not {type(group).__name__}")
    try:
        return check_name("group", group)
    except InvalidParameter as error:
        raise InvalidArgument(str(error)) from None


def check_session(seconds: object) -> float:
    """Return ``session_timeout`` in seconds; raise ``InvalidArgument`` if it is not valid."""
    checked = check_timeout("session_timeout", seconds)
    if not 1 <= checked <= 300:
        raise InvalidArgument(f"session_timeout is {checked:g}; it must be 1 to 300 seconds")
    return checked


def new_member() -> str:
    """Return a unique member name that tells the host and the process."""
    return f"{socket.gethostname()[:60]}@{os.getpid()}@{uuid.uuid4().hex[:8]}"


def half_common(group: str) -> str:
    """Return the common properties of a frame of half messages."""
    return f"{PROPERTY_HALF}\x01true\x02{PROPERTY_PRODUCER_GROUP}\x01{group}\x02"


def heart_beat(group: str, member: str, session_seconds: float) -> Operation[float]:
    """Register as a producer of the group, or stay registered; the result is the heartbeat interval in seconds."""

    def decode(answer: Answer) -> float:
        return decode_fields(commands.HeartBeatAnswer, answer.fields).interval_ms / 1000

    return operation(
        commands.HEART_BEAT,
        decode,
        group=group,
        member=member,
        kind=PRODUCER,
        session_timeout_ms=duration_millis(session_seconds),
    )


def leave(group: str, member: str) -> Operation[None]:
    """Unregister the producer."""
    return operation(commands.UNREGISTER_CLIENT, nothing, group=group, member=member, kind=PRODUCER)


def end_transaction(group: str, receipt: Receipt, outcome: Outcome) -> Operation[None]:
    """Commit or roll back the transaction of a half message; succeeds if it has already ended that way."""
    return end_half(
        receipt.message_id,
        group,
        commit=outcome is Outcome.COMMIT,
        half_queue_offset=receipt.queue_offset,
        half_physical_offset=receipt.physical_offset,
    )


log = logging.getLogger(__name__)

LEAVE_SECONDS_MAX = 1.0
"""Maximum time for unregistering. Without it the broker notices that the connection is gone."""


class Question:
    """A check of the broker. ``message``: the half message; ``connection``: the one on which the check arrived."""

    __slots__ = ("asked", "connection", "message", "transaction_id")

    def __init__(self, asked: Asked, connection: Connection) -> None:
        request = decode_fields(CheckTransactionStateRequest, asked.fields)
        self.asked = asked
        self.connection = connection
        self.transaction_id = request.transaction_id
        self.message = StoredMessage(len(asked.body), 0, asked.body, request.topic)


class Registration(MemberConnection):
    """The registration of one producer. ``ask`` is called on the I/O thread with each check and must not block;
    ``answer`` answers it."""

    def __init__(
        self, group: str, member: str, session_seconds: float, dialer: Dialer, ask: Callable[[Question], None]
    ) -> None:
        super().__init__(f"producer group {group}", session_seconds, dialer)
        self.group = group
        self.member = member
        self.registered = threading.Event()
        """Set while the broker knows the producer."""
        self._session_seconds = session_seconds
        self._ask = ask
        self._answers: deque[tuple[Question, Outcome | BrokerError, bool]] = deque()
        self._beat_at = 0.0
        self._leave_by = inf
        self._has_left = False

    # ---- for other threads

    def check(self) -> None:
        """Raise ``ClientFailed`` if it has ended with an error."""
        if self.failure is not None:
            raise ClientFailed(
                f"the producer of group {self.group} can no longer answer the broker's checks: {self.failure}; "
                "create a new one",
                self.failure,
            )

    @property
    def alive(self) -> bool:
        """True until the end, also before the start."""
        return self.failure is None and not self.ended.done()

    def answer(self, question: Question, outcome: Outcome | BrokerError, *, running: bool = False) -> None:
        """Answer a check with the outcome, or with the error that prevented it. ``running``: the transaction is open in
        this producer."""
        self._answers.append((question, outcome, running))
        self.wake()

    def fail_checks(self, error: BaseException) -> None:
        """End after an error because of which checks can no longer be answered."""
        self.failure = ClientFailed(f"check ended its thread with {type(error).__name__}: {error}", error)
        self.die(self.failure)

    def leave(self) -> None:
        """Stop receiving checks, and wait for the end. Idempotent."""
        with self._lock:
            self._leave_by = min(self._leave_by, time.monotonic() + LEAVE_SECONDS_MAX)
        if self.running:
            self.wake()
            self.ended.result()

    # ---- on the I/O thread

    @property
    def _left(self) -> bool:
        return self._has_left

    def _may_connect(self, now: float) -> bool:
        if self._leave_by != inf:
            self._has_left = True  # without a connection there is nothing to unregister
        return not self._has_left

    def _connected(self) -> None:
        self._beat_at = 0.0

    def _disconnected(self) -> None:
        self.registered.clear()

    def _pass_on(self) -> None:
        return  # checks are passed on as they arrive

    def _ended(self, error: FlintError | None) -> None:
        self.registered.clear()
        if error is not None and not isinstance(error, ClientFailed):
            log.error("producer group %s: %s", self.group, error)

    def _send_due(self, connection: Connection, now: float) -> float:
        leaving = self._leave_by != inf
        self._send_answers(connection)
        due: list[Request] = []
        if leaving and self._beat_at != inf:
            due.append((leave(self.group, self.member), self._answered))
        elif now >= self._beat_at:
            due.append((heart_beat(self.group, self.member, self._session_seconds), self._answered))
        if due:
            self._beat_at = inf  # until the response arrives
        self._send(connection, due)
        if leaving and (not self._requests or now >= self._leave_by):
            self._has_left = True
        return max(0.0, min(self._beat_at, self._leave_by, now + self._session_seconds) - now)

    def _answered(self, interval: float | None, error: FlintError | None) -> None:
        """Handle the response to a heartbeat, or to unregistering, which has no interval."""
        if isinstance(error, ConnectionFailed):
            return  # the next connection begins with a heartbeat
        if error is not None:
            raise error
        if interval is None:
            return
        self._backoff.record_success()
        self._beat_at = time.monotonic() + interval
        if not self.registered.is_set():
            log.info("producer %s of group %s is registered for the broker's checks", self.member, self.group)
            self.registered.set()

    # ---- checks

    def _asked(self, asked: Asked, connection: Connection) -> None:
        self._heard_at = time.monotonic()
        if asked.code != CHECK_TRANSACTION_STATE.code:
            raise UnknownCommand(f"a transactional producer does not know command {asked.code}")
        self._ask(Question(asked, connection))

    def _send_answers(self, connection: Connection) -> None:
        while self._answers:
            question, outcome, running = self._answers.popleft()
            if question.connection is not connection:
                continue  # the broker will ask again, or another producer
            if isinstance(outcome, Outcome):
                fields = encode_fields(CheckTransactionStateAnswer(outcome.value, running))
                connection.reply(question.asked, SUCCESS, fields)
            else:
                connection.reply(question.asked, outcome.code, outcome.fields())


def failure_of(error: BaseException) -> BrokerFailure:
    """Return the error to answer a check with after ``check`` failed, so that the broker asks again."""
    return BrokerFailure(f"check raised {described(error)}"[:500])


# ---- The broker's checks: answered from what this process knows, else by the application's ``check``.


class Questions:
    """Counts and answers the broker's checks. ``check_later`` calls the application's ``check``, once at a time for
    each transaction, and then ``check_returned`` or ``check_failed``. Thread-safe."""

    def __init__(self, decisions: Decisions, check_later: Callable[[Question], None]) -> None:
        self.checked_count = 0
        self.failed_count = 0
        self.last_error: BaseException | None = None
        self._decisions = decisions
        self._check_later = check_later
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Question]] = {}
        self.registration: Registration
        """Set by the creator of both."""

    @property
    def waiting(self) -> int:
        """Number of transactions that wait for the application."""
        return len(self._waiting)

    def ask(self, question: Question) -> None:
        """Answer a check of the broker, now or later. Does not block."""
        known = self._decisions.known(question.transaction_id)
        if known is not None:
            with self._lock:
                self.checked_count += 1
            self.registration.answer(question, known, running=known is Outcome.UNKNOWN)
            return
        with self._lock:
            waiting = self._waiting.get(question.transaction_id)
            if waiting is not None:
                waiting.append(question)  # the broker asked again while the application was still checking
                return
            self._waiting[question.transaction_id] = [question]
        self._check_later(question)

    def check_returned(self, question: Question, outcome: object) -> None:
        """Answer with the result of ``check``."""
        if not isinstance(outcome, Outcome):
            self.check_failed(
                question,
                InvalidArgumentType(f"check must return an Outcome, not {type(outcome).__name__} ({outcome!r:.60})"),
            )
            return
        waiting = self._take(question)
        with self._lock:
            self.checked_count += 1
        for each in waiting:
            self.registration.answer(each, outcome)

    def check_failed(self, question: Question, error: BaseException) -> None:
        """Answer that ``check`` failed, so that the broker asks again later."""
        log.error(
            "producer group %s: check failed for transaction %s; the broker will ask again",
            self.registration.group,
            question.transaction_id,
            exc_info=error,
        )
        self.last_error = error
        waiting = self._take(question)
        self.failed_count += 1
        for each in waiting:
            self.registration.answer(each, failure_of(error))

    def _take(self, question: Question) -> list[Question]:
        with self._lock:
            return self._waiting.pop(question.transaction_id)
