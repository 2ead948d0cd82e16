"""One request after another over one connection, each sent before the caller works on the previous response."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from ..core.rpc.connection_errors import unanswered
from ..core.rpc.operation import Operation
from ..core.rpc.retry import is_retriable
from ..core.rpc.session import Answer
from ..core.rpc.silence import SilenceLimit, share_seconds
from .connection import Connection
from .pool import Caller

T = TypeVar("T")


class Asker(Generic[T]):
    """Sends a broker one request after another, each before the caller works on the previous response.

    ``ask`` only sends. ``answer`` waits; if the connection is lost or the broker is busy, it asks again until
    ``timeout`` seconds are over. The caller must close it.
    """

    def __init__(self, caller: Caller, timeout: float) -> None:
        self._caller = caller
        self._timeout = timeout
        self._connection: Connection | None = None
        self._asked: Operation[T] | None = None
        self._request_id = 0

    @property
    def is_asked(self) -> bool:
        """Return whether a response is outstanding."""
        return self._asked is not None

    def ask(self, operation: Operation[T]) -> None:
        """Send a request; the previous one must have been answered."""
        assert self._asked is None
        self._asked = operation
        try:
            if self._connection is None:
                self._connection = self._caller.pool.acquire(self._timeout)
                self._connection.in_use.acquire()
            self._request_id = self._connection.request(operation.command, operation.fields, operation.body)
        except ConnectionFailed as error:
            self._give_up(error)

    def answer(self) -> T:
        """Return the response to the request. Raises the broker's error, ``ConnectionFailed`` or ``RequestTimeout``."""
        operation = self._asked
        assert operation is not None
        deadline = time.monotonic() + self._timeout
        try:
            if self._connection is not None:
                return operation.result(self._wait(self._connection, operation, deadline))
        except FlintError as error:
            if not is_retriable(error) or isinstance(error, RequestTimeout):
                raise
        finally:
            self._asked = None
        return self._caller.call(operation, deadline)

    def _wait(self, connection: Connection, operation: Operation[T], deadline: float) -> Answer:
        seconds = operation.own_seconds(self._timeout)
        silence, look_seconds = SilenceLimit(seconds, time.monotonic()), share_seconds(seconds)
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                answers = connection.receive(min(remaining, look_seconds))
                if not answers:
                    look_seconds = silence.check(connection, time.monotonic())
            except ConnectionFailed as error:
                self._give_up(error)
                raise
            for answer in answers:
                if answer.request_id == self._request_id:
                    return answer
        late = unanswered(connection.address, operation.command.name, self._timeout)
        self._give_up(late)
        raise late

    def _give_up(self, error: FlintError) -> None:
        """Discard the connection, which is no longer usable."""
        if self._connection is not None:
            self._connection.in_use.release()
            self._caller.pool.discard(self._connection, error)
            self._connection = None

    def close(self) -> None:
        """Return the connection to the pool, or close it if a response is outstanding."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.in_use.release()
            if self._asked is None:
                self._caller.pool.release(connection)
            else:
                self._caller.pool.discard(connection)
