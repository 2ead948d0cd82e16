"""The connection of a member of a group to the broker: sends what is due over it, and passes on what arrives.

The connections of all members live in one thread of the process. It never runs the application's code, so the broker
keeps hearing from a member whatever the application does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import inf

from ...protocol.errors import BrokerError, ConnectionFailed, FlintError, RemoteProtocolError
from ..aio.connection import Connection
from ..aio.rpc import Dialer
from ..aio.runtime import Timer
from ..core.rpc.connection_errors import SilenceLimit, share_seconds
from ..core.rpc.operation import Backoff, Request, is_retriable
from ..core.rpc.session import Answer, Asked
from ..core.rpc.timeouts import CONNECT_SECONDS_MAX
from ..errors import ClientFailed
from . import shared_threads

log = logging.getLogger(__name__)


class MemberConnection(ABC):
    """The connection of one member of a group; subclasses say what is due and what responses mean.

    Everything happens on the I/O thread, except what is said to be for other threads. One lock guards the state that
    both share; no thread waits for anything while holding it. ``owner`` names the member in log lines; ``seconds``: the
    time within which its requests must be answered, except for that during which the broker holds them.
    """

    def __init__(self, owner: str, seconds: float, dialer: Dialer) -> None:
        self.failure: FlintError | None = None
        """The error after which the member cannot continue."""
        self.ended: Future[None] = Future()
        """Done when the member has ended, and its connection is closed."""
        self._owner = owner
        self._seconds = seconds
        self._dialer = dialer
        self._life = dialer.life
        self._timer = Timer(self._life, self._go_on)
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.Context()
        """Of the rounds, whichever thread asks for one."""
        self._threads = shared_threads.io_thread
        self._woken = True
        """True if the next round will see what has changed; also before the first round, and after the last one."""
        self._is_over = False
        self._dialing = False
        self._connection: Connection | None = None
        self._requests: dict[int, Request] = {}
        """Requests that were sent and not answered, by request id."""
        self._silence: SilenceLimit | None = None
        """Set while there are such requests."""
        self._silence_at = inf
        self._heard_at = 0.0
        self._backoff = Backoff()
        self._doom: FlintError | None = None

    # ---- for other threads

    def start(self) -> None:
        """Begin to connect, unless that was begun before."""
        with self._lock:
            if self._loop is None:
                self._loop = self._threads.enter()
                self._loop.call_soon_threadsafe(self._begin_rounds, context=self._context)

    def wake(self) -> None:
        """Have what is due done soon. Cheap if already called."""
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the member has ended, and the loop is closed
                self._loop.call_soon_threadsafe(self._go_on, context=self._context)

    def die(self, error: FlintError) -> None:
        """End with an error, which all waiting callers get."""
        with self._lock:
            self._doom = self._doom or error
        self.wake()

    @property
    def running(self) -> bool:
        """True after the start, until the end."""
        return self._loop is not None and not self.ended.done()

    @property
    def trouble(self) -> FlintError | None:
        """The current problem with the broker, None after a success."""
        return self._backoff.trouble

    def heard_seconds(self) -> float:
        """Return the time since the broker's last response; infinite if there was none."""
        return time.monotonic() - self._heard_at if self._heard_at else inf

    # ---- what subclasses define

    @property
    @abstractmethod
    def _left(self) -> bool:
        """True if the member has nothing left to do."""

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
        """Tell waiting callers that the member has ended, and why."""

    @abstractmethod
    def _disconnected(self) -> None:
        """Forget what was true of the lost connection only; called under the lock."""

    @abstractmethod
    def _pass_on(self) -> None:
        """Pass on what has arrived or become due; called after each response and each round, without the lock."""

    # ---- rounds

    def _begin_rounds(self) -> None:
        self._life.enter()
        self._life.add(self)
        self._go_on()

    def _go_on(self, first: Callable[[], None] | None = None) -> None:
        """Do one round: ``first``, then what is due."""
        if self._is_over:
            return
        self._woken = False
        error: FlintError | None = None
        try:
            try:
                if first is not None:
                    first()
                self._do_due()
            except FlintError as failure:
                if not (is_retriable(failure) or isinstance(failure, RemoteProtocolError)):
                    raise
                self._disconnect(failure)
            self._pass_on()
            error = self._doom
        except FlintError as failure:
            error = failure
        except BaseException as failure:
            log.critical("%s failed", self._owner, exc_info=True)
            error = ClientFailed(f"its engine ended with {type(failure).__name__}: {failure}", failure)
        if error is not None or self._left:
            self._end(error)

    def _do_due(self) -> None:
        now = time.monotonic()
        if self._connection is not None:
            with self._lock:
                seconds = self._send_due(self._connection, now)
            self._timer.wake(min(now + seconds, self._look_for_silence(self._connection, now)))
        elif not self._dialing and self._may_connect(now):
            pause = self._backoff.seconds(now)
            if pause > 0:
                self._timer.wake(now + pause)
            else:
                self._dialing = True
                self._life.start("connecting", self._dial())

    def _look_for_silence(self, connection: Connection, now: float) -> float:
        """Return when to look again; raise ``ConnectionFailed`` if the broker has been silent for too long."""
        if not self._requests:
            self._silence, self._silence_at = None, inf
        elif self._silence is None:
            self._silence = SilenceLimit(self._seconds, now)
            self._silence_at = now + share_seconds(self._seconds)
        elif now >= self._silence_at:
            self._silence_at = now + self._silence.check(connection, now)
        return self._silence_at

    # ---- the connection

    async def _dial(self) -> None:
        try:
            connection = await self._dialer.dial(CONNECT_SECONDS_MAX)
        except FlintError as error:
            self._dialing = False
            self._go_on(partial(self._fail, error))
            return
        self._dialing = False
        connection.receiver, connection.on_asked = self, self._asked_all
        with self._lock:
            self._connection = connection
            self._heard_at = time.monotonic()
            self._connected()
        self._go_on()

    @staticmethod
    def _fail(error: FlintError) -> None:
        raise error

    def lost(self, error: FlintError) -> None:
        """Handle the loss of the connection, unless this side closed it."""
        self._go_on(partial(self._disconnect, error))

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
            self._dialer.mark_failed(connection.address, error)
            connection.abort()
        self._timer.wake(0.0)

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

    def _send(self, connection: Connection, due: list[Request]) -> None:
        """Send requests that are already marked as in flight."""
        for operation, answered in due:
            self._requests[connection.request(operation)] = (operation, answered)

    def writable(self) -> None:
        """Do what is due."""
        self._go_on()

    def received(self, answers: list[Answer]) -> None:
        """Handle responses."""
        self._heard_at = time.monotonic()
        self._go_on(partial(self._take_all, answers))

    def _take_all(self, answers: list[Answer]) -> None:
        for answer in answers:
            self._take(answer)
            self._pass_on()  # before the next response is decoded: decoding a pull takes long

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

    def _asked_all(self, requests: list[Asked]) -> None:
        self._go_on(partial(self._answer_all, requests))

    def _answer_all(self, requests: list[Asked]) -> None:
        connection = self._connection
        if connection is None:
            return
        for asked in requests:
            try:
                self._asked(asked, connection)
            except BrokerError as error:
                connection.reply(asked, error.code, error.fields())

    # ---- the end

    def fail(self, error: FlintError) -> None:
        """End with an error of the connection's reader or of a timer."""
        self._end(error)

    def _end(self, error: FlintError | None) -> None:
        if self._is_over:
            return
        self._is_over = self._woken = True
        self.failure = error or self.failure
        if self._connection is not None:
            self._connection.abort()
        self._timer.stop()
        self._life.end()
        assert self._loop is not None
        self._ending = self._loop.create_task(self._close(error))

    async def _close(self, error: FlintError | None) -> None:
        try:
            await self._life.end_tasks()
            for connection in list(self._life.connections):
                connection.abort()
                await connection.closed
            self._connection = None
            self._ended(error)
        finally:
            self.ended.set_result(None)
            self._threads.leave()
