"""A thread that keeps one connection to the broker, sends what is due over it, and passes on what arrives.

It never runs the application's code, so the broker keeps hearing from a member of a group whatever the application
does.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from math import inf

from ...protocol.errors import BrokerError, ConnectionFailed, FlintError, RemoteProtocolError
from ..core.rpc.connection_errors import SilenceLimit, share_seconds
from ..core.rpc.operation import Backoff, Request, is_retriable
from ..core.rpc.session import Answer, Asked
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from ..errors import ClientFailed
from ..sync.connection import Connection, Waiter
from ..sync.rpc import Dialer

log = logging.getLogger(__name__)

CONGESTED_SECONDS = 0.01
"""Pause before the next attempt to write to a socket whose buffer is full."""


class ConnectionThread(ABC):
    """The thread of one member of a group; subclasses say what is due and what responses mean.

    One lock guards the state that it shares with other threads; no thread waits for anything while holding it.
    ``owner`` names the member in log lines; ``seconds``: the time within which its requests must be answered, except
    for that during which the broker holds them.
    """

    def __init__(self, name: str, owner: str, seconds: float, dialer: Dialer) -> None:
        self.failure: FlintError | None = None
        """The error after which the thread cannot continue."""
        self._name = name
        self._owner = owner
        self._seconds = seconds
        self._dialer = dialer
        self._lock = threading.RLock()
        self._waiter = Waiter()
        self._connection: Connection | None = None
        self._requests: dict[int, Request] = {}
        """Requests that were sent and not answered, by request id."""
        self._silence: SilenceLimit | None = None
        """Set while there are such requests."""
        self._silence_seconds = inf
        self._heard_at = 0.0
        self._backoff = Backoff()
        self._doom: FlintError | None = None
        self._thread: threading.Thread | None = None

    # ---- for other threads

    def start(self) -> None:
        """Start the thread unless it was started before."""
        with self._lock:
            if self._thread is None:
                self._waiter.open()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def die(self, error: FlintError) -> None:
        """End with an error, which all waiting callers get."""
        with self._lock:
            self._doom = self._doom or error
        self._waiter.wake()

    @property
    def running(self) -> bool:
        """True after the start, until the thread has ended."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trouble(self) -> FlintError | None:
        """The current problem with the broker, None after a success."""
        return self._backoff.trouble

    def heard_seconds(self) -> float:
        """Return the time since the broker's last response; infinite if there was none."""
        return time.monotonic() - self._heard_at if self._heard_at else inf

    # ---- what subclasses define, on this thread

    @property
    @abstractmethod
    def _left(self) -> bool:
        """True if the thread has nothing left to do."""

    @abstractmethod
    def _may_connect(self, now: float) -> bool:
        """Do what is due without a connection; return whether to connect."""

    @abstractmethod
    def _connected(self) -> None:
        """Schedule the first request on a new connection; called under the lock."""

    @abstractmethod
    def _send_due(self, connection: Connection, now: float) -> float:
        """Send what is due, under the lock; return how long nothing needs to be done unless something arrives."""

    @abstractmethod
    def _asked(self, asked: Asked, connection: Connection) -> None:
        """Handle a request of the broker; a raised ``BrokerError`` is the response to it."""

    @abstractmethod
    def _ended(self, error: FlintError | None) -> None:
        """Tell waiting callers that the thread ends, and why."""

    @abstractmethod
    def _disconnected(self) -> None:
        """Forget what was true of the lost connection only; called under the lock."""

    @abstractmethod
    def _pass_on(self) -> None:
        """Pass on what has arrived or become due; called after each response and each round, without the lock."""

    # ---- the thread

    def _run(self) -> None:
        error: FlintError | None = None
        try:
            while not self._left:
                self._round()
                if self._doom is not None:
                    raise self._doom
        except FlintError as failure:
            error = failure
        except BaseException as failure:
            log.critical("the thread of %s failed", self._owner, exc_info=True)
            error = ClientFailed(f"its thread ended with {type(failure).__name__}: {failure}", failure)
        finally:
            self.failure = error or self.failure
            if self._connection is not None:
                self._connection.close()
            self._waiter.close()
            self._ended(error)

    def _round(self) -> None:
        """Do one round: send what is due, wait for an event, take what has arrived."""
        try:
            if self._connection is None:
                self._connect()
            else:
                self._exchange(self._connection)
        except FlintError as error:
            if not (is_retriable(error) or isinstance(error, RemoteProtocolError)):
                raise
            self._disconnect(error)
        self._pass_on()

    def _connect(self) -> None:
        now = time.monotonic()
        if not self._may_connect(now):
            return
        pause = self._backoff.seconds(now)
        if pause > 0:
            self._waiter.wait(None, pause)
            return
        # Without the lock: this can take seconds, and other threads must not wait for it.
        connection = self._dialer.dial(CONNECT_SECONDS_MAX)
        with self._lock:
            self._connection = connection
            self._heard_at = time.monotonic()
            self._connected()
        self._waiter.watch(connection.fileno())

    def _disconnect(self, error: FlintError) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._silence = None
            self._backoff.record_failure(error, time.monotonic())
            requests, self._requests = self._requests, {}
            self._disconnected()
            self._lose(list(requests.values()), error)
        if connection is not None:
            self._dialer.log.lost(error)
            self._waiter.watch(None)
            self._dialer.mark_failed(connection.address, error)
            connection.close()

    @staticmethod
    def _lose(requests: list[Request], error: FlintError) -> None:
        """Fail unanswered requests; each is due again on the next connection.

        They all get ``ConnectionFailed``: the error that made the connection unusable says nothing about them.
        """
        lost = error
        if not isinstance(error, ConnectionFailed):
            lost = ConnectionFailed(str(error))
            lost.__cause__ = error
        for _, answered in requests:
            answered(None, lost)

    def _exchange(self, connection: Connection) -> None:
        with self._lock:
            seconds = self._send_due(connection, time.monotonic())
        if self._left:
            return
        if not self._requests:
            self._silence, self._silence_seconds = None, inf
        elif self._silence is None:
            self._silence = SilenceLimit(self._seconds, time.monotonic())
            self._silence_seconds = share_seconds(self._seconds)
        seconds = min(seconds, self._silence_seconds)
        self._waiter.wait(connection, min(seconds, CONGESTED_SECONDS) if connection.congested else seconds)
        answers = connection.receive(0)
        if answers:
            self._heard_at = time.monotonic()
            for answer in answers:
                self._take(answer)
        elif self._silence is not None:
            self._silence_seconds = self._silence.check(connection, time.monotonic())
        for asked in connection.take_asked():
            try:
                self._asked(asked, connection)
            except BrokerError as error:
                if asked.wants_answer:
                    connection.reply(asked, error.code, error.fields())

    def _send(self, connection: Connection, due: list[Request]) -> None:
        """Send requests that are already marked as in flight; the ones that cannot be sent are failed."""
        for number, (operation, answered) in enumerate(due):
            try:
                request_id = connection.request(operation.command, operation.fields, operation.body)
            except FlintError as error:
                self._lose(due[number:], error)
                raise
            self._requests[request_id] = (operation, answered)

    def _take(self, answer: Answer) -> None:
        with self._lock:
            if answer.request_id not in self._requests:
                raise RemoteProtocolError(f"a response to request {answer.request_id}, which was not sent")
            operation, answered = self._requests.pop(answer.request_id)
            try:
                result = operation.result(answer)
            except RemoteProtocolError as error:
                answered(None, error)
                raise
            except FlintError as error:
                answered(None, error)
            else:
                answered(result, None)
        self._pass_on()  # before the next response is decoded: decoding a pull takes long
