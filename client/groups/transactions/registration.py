"""The thread that registers a producer with the broker, over a separate connection, and receives the broker's checks.

It never runs the application's code, so the producer stays registered however long a check takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from ....protocol.commands import CHECK_TRANSACTION_STATE, CheckTransactionStateAnswer, CheckTransactionStateRequest
from ....protocol.errors import SUCCESS, BrokerError, BrokerFailure, FlintError, RemoteProtocolError, UnknownCommand
from ....protocol.fields import decode_fields, encode_fields
from ...core.consume.stored import StoredMessage
from ...core.rpc.connection_errors import silent
from ...core.rpc.operation import Operation
from ...core.rpc.retry import Backoff, is_retriable
from ...core.rpc.session import Answer, Asked
from ...core.rpc.timeouts import CONNECT_SECONDS_MAX, SILENCE_SECONDS_MAX
from ...errors import ClientFailed
from ...sync.connection import Connection
from ...sync.pool import Dialer
from ...sync.wakeable_poll import Waiter
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


class Registration:
    """The registration of one producer. ``ask`` is called on its thread with each check and must not block; ``answer``
    answers it.

    ``failure``: the error after which it cannot continue.
    """

    def __init__(
        self, group: str, member: str, session_seconds: float, dialer: Dialer, ask: Callable[[Question], None]
    ) -> None:
        self.group = group
        self.member = member
        self.failure: FlintError | None = None
        self.registered = threading.Event()
        """Set while the broker knows the producer."""
        self._session_seconds = session_seconds
        self._dialer = dialer
        self._ask = ask
        self._lock = threading.Lock()
        self._waiter = Waiter()
        self._connection: Connection | None = None
        self._requests: dict[int, Operation[Any]] = {}
        self._answers: deque[tuple[Question, Outcome | BrokerError]] = deque()
        self._backoff = Backoff()
        self._heard_at = 0.0
        self._beat_at = 0.0
        self._leave_by = inf
        self._left = False
        self._thread: threading.Thread | None = None

    # ---- for other threads

    def start(self) -> None:
        """Start the thread unless it is running."""
        with self._lock:
            if self._thread is None:
                self._waiter.open()
                name = f"flintmq-producer-group-{self.group}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

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
        return self.failure is None and (self._thread is None or self._thread.is_alive())

    @property
    def trouble(self) -> FlintError | None:
        """The current problem with the broker, None after a success."""
        return self._backoff.trouble

    def heard_seconds(self) -> float:
        """Return the time since the broker's last response; infinite if there was none."""
        return time.monotonic() - self._heard_at if self._heard_at else inf

    def answer(self, question: Question, outcome: Outcome | BrokerError) -> None:
        """Answer a check with the outcome, or with the error that prevented it."""
        self._answers.append((question, outcome))
        self._waiter.wake()

    def fail(self, error: BaseException) -> None:
        """End after an error because of which checks can no longer be answered."""
        self.failure = ClientFailed(f"check ended its thread with {type(error).__name__}: {error}", error)
        self._left = True
        self._waiter.wake()

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

    def _run(self) -> None:
        try:
            while not self._left:
                self._turn()
        except FlintError as error:
            log.error("producer group %s: %s", self.group, error)
            self.failure = error
        except BaseException as error:
            log.critical("the thread of producer group %s failed", self.group, exc_info=True)
            self.failure = ClientFailed(f"its thread ended with {type(error).__name__}: {error}", error)
        finally:
            self.registered.clear()
            if self._connection is not None:
                self._connection.close()
            self._waiter.close()

    def _turn(self) -> None:
        """Do one round: send what is due, wait for an event, take what has arrived."""
        try:
            if self._connection is None:
                self._connect()
            else:
                self._exchange(self._connection)
        except FlintError as error:
            if not (is_retriable(error) or isinstance(error, RemoteProtocolError)):
                raise
            self._disconnected(error)

    def _connect(self) -> None:
        now = time.monotonic()
        if self._leave_by != inf:
            self._left = True  # without a connection there is nothing to unregister
            return
        pause = self._backoff.seconds(now)
        if pause > 0:
            self._waiter.wait(None, pause)
            return
        connection = self._connection = self._dialer.dial(CONNECT_SECONDS_MAX)
        self._heard_at = time.monotonic()
        self._beat_at = 0.0
        self._waiter.watch(connection.fileno())

    def _disconnected(self, error: FlintError) -> None:
        self.registered.clear()
        self._backoff.failed(error, time.monotonic())
        self._requests.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._dialer.log.lost(error)
            self._waiter.watch(None)
            self._dialer.failed(connection.address)
            connection.close()

    def _exchange(self, connection: Connection) -> None:
        now = time.monotonic()
        leaving = self._leave_by != inf
        self._send_answers(connection)
        if leaving and self._beat_at != inf:
            self._beat_at = inf
            self._request(connection, requests.leave(self.group, self.member))
        elif now >= self._beat_at:
            self._beat_at = inf  # until the response arrives
            self._request(connection, requests.heart_beat(self.group, self.member, self._session_seconds))
        if leaving and (not self._requests or now >= self._leave_by):
            self._left = True
            return
        seconds = max(0.0, min(self._beat_at, self._leave_by, now + self._session_seconds) - now)
        self._waiter.wait(connection, min(seconds, 0.01) if connection.congested else seconds)
        answers = connection.receive(0)
        if answers:
            self._heard_at = time.monotonic()
            for answer in answers:
                self._answered(answer)
        elif self._requests and time.monotonic() > self._heard_at + self._session_seconds + SILENCE_SECONDS_MAX:
            raise silent(connection.address, self._session_seconds + SILENCE_SECONDS_MAX)
        for asked in connection.take_asked():
            self._asked(asked, connection)

    def _request(self, connection: Connection, operation: Operation[Any]) -> None:
        self._requests[connection.request(operation.command, operation.fields, operation.body)] = operation

    def _answered(self, answer: Answer) -> None:
        operation = self._requests.pop(answer.request_id, None)
        if operation is None:
            raise RemoteProtocolError(f"a response to request {answer.request_id}, which was not sent")
        interval = operation.result(answer)
        if interval is None:
            return  # the response to unregistering
        self._backoff.succeeded()
        self._beat_at = time.monotonic() + interval
        if not self.registered.is_set():
            log.info("producer %s of group %s is registered for the broker's checks", self.member, self.group)
            self.registered.set()

    # ---- checks

    def _asked(self, asked: Asked, connection: Connection) -> None:
        self._heard_at = time.monotonic()
        try:
            if asked.code != CHECK_TRANSACTION_STATE.code:
                raise UnknownCommand(f"a transactional producer does not know command {asked.code}")
            question = Question(asked, connection)
        except BrokerError as error:
            connection.reply(asked, error.code, error.fields())
        else:
            self._ask(question)

    def _send_answers(self, connection: Connection) -> None:
        while self._answers:
            question, outcome = self._answers.popleft()
            if question.connection is not connection:
                continue  # the broker will ask again, or another producer
            if isinstance(outcome, Outcome):
                fields = encode_fields(CheckTransactionStateAnswer(outcome=outcome.value))
                connection.reply(question.asked, SUCCESS, fields)
            else:
                connection.reply(question.asked, outcome.code, outcome.fields())


def failure_of(error: BaseException) -> BrokerFailure:
    """Return the error to answer a check with after ``check`` failed, so that the broker asks again."""
    return BrokerFailure(f"check raised {type(error).__name__}: {error}"[:500])
