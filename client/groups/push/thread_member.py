"""A member of a group that threads of the application use."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Self

from ....protocol.errors import FlintError
from ...core.client_guard import Guard
from ...core.rpc.timeouts import check_timeout, wait_seconds
from ...errors import InvalidArgument
from ...sync.pool import Dialer
from .member_engine import MemberEngine
from .shell import MemberShell


class ThreadMember(MemberShell):
    """The start, the waits and the commits of a member; subclasses hand its messages to the application."""

    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        self._guard = Guard(type(self).__name__)
        self._ended = threading.Event()
        return self._engine_for(dialer)

    @abstractmethod
    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        """Create the engine, whose ``ended`` is ``_engine_ended``."""

    @abstractmethod
    def _begin_handling(self) -> None:
        """Get ready for messages, before the engine starts."""

    @abstractmethod
    def _end_handling(self) -> None:
        """Expect no more messages. Called by any thread, and more than once."""

    def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable."""
        self._launch()
        self._check_joined(self._engine.joined.wait(self._timeout))
        return self

    def _launch(self) -> None:
        self._guard.check()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._begin_handling()
        self._engine.start()

    def _check_joined(self, joined: bool) -> None:
        """Raise the error that kept the consumer from joining its group, if any."""
        if not joined:
            reason = self._not_joined()
            self._guard.closed = True
            self._engine.abandon()  # it may hang in a connection attempt; report why it could not join
            self._ended.wait(self._timeout)
            self._end_handling()
            raise reason
        if self._engine.failure is not None:
            failure = self._engine.failure
            self._end_handling()
            self._guard.closed = True
            raise failure

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue.
        """
        ended = self._ended.wait(None if timeout is None else wait_seconds(timeout))
        self._engine.check()
        return ended

    def commit(self, timeout: float | None = None) -> None:
        """Commit the progress so far and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        told = threading.Event()
        failures: list[FlintError] = []

        def tell(error: FlintError | None) -> None:
            if error is not None:
                failures.append(error)
            told.set()

        self._engine.commit(tell)
        if not told.wait(self._timeout if timeout is None else check_timeout("timeout", timeout)):
            raise self._not_confirmed()
        if failures:
            raise failures[0]

    def _check(self) -> None:
        self._guard.check()
        self._engine.check()

    def _engine_ended(self, error: FlintError | None) -> None:
        """End all waits; called on the engine's thread."""
        self._ended.set()
        self._end_handling()
