"""The thread that registers a producer with the broker, over its own connection, and receives the broker's checks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf

from ....protocol.commands import CHECK_TRANSACTION_STATE, CheckTransactionStateAnswer, CheckTransactionStateRequest
from ....protocol.errors import SUCCESS, BrokerError, BrokerFailure, ConnectionFailed, FlintError, UnknownCommand
from ....protocol.fields import decode_fields, encode_fields
from ...application_code import described
from ...core.consume.stored import StoredMessage
from ...core.rpc.operation import Request
from ...core.rpc.session import Asked
from ...errors import ClientFailed
from ...sync.connection import Connection
from ...sync.pool import Dialer
from ..connection_thread import ConnectionThread
from . import requests
from .outcome import Outcome

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


class Registration(ConnectionThread):
    """The registration of one producer. ``ask`` is called on its thread with each check and must not block; ``answer``
    answers it."""

    def __init__(
        self, group: str, member: str, session_seconds: float, dialer: Dialer, ask: Callable[[Question], None]
    ) -> None:
        super().__init__(f"flintmq-producer-group-{group}", f"producer group {group}", session_seconds, dialer)
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
        """Raise ``ClientFailed`` if the thread has ended with an error."""
        if self.failure is not None:
            raise ClientFailed(
                f"the producer of group {self.group} can no longer answer the broker's checks: {self.failure}; "
                "create a new one",
                self.failure,
            )

    @property
    def alive(self) -> bool:
        """True if the thread is running or has not been started yet."""
        return self.failure is None and (self._thread is None or self.running)

    def answer(self, question: Question, outcome: Outcome | BrokerError, *, running: bool = False) -> None:
        """Answer a check with the outcome, or with the error that prevented it. ``running``: the transaction is open in
        this producer."""
        self._answers.append((question, outcome, running))
        self._waiter.wake()

    def fail_checks(self, error: BaseException) -> None:
        """End after an error because of which checks can no longer be answered."""
        self.failure = ClientFailed(f"check ended its thread with {type(error).__name__}: {error}", error)
        self.die(self.failure)

    def leave(self) -> None:
        """Stop receiving checks, and end; waits for the thread. Idempotent."""
        with self._lock:
            thread = self._thread
            self._leave_by = min(self._leave_by, time.monotonic() + LEAVE_SECONDS_MAX)
        if thread is None:
            return
        self._waiter.wake()
        if thread is not threading.current_thread():
            thread.join()

    # ---- the thread

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
            due.append((requests.leave(self.group, self.member), self._answered))
        elif now >= self._beat_at:
            due.append((requests.heart_beat(self.group, self.member, self._session_seconds), self._answered))
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
