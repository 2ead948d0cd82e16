"""The interface of the thread behind a member of a group, for the classes that applications use."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable

from ....protocol.errors import FlintError
from ...errors import ClientClosed, ClientFailed
from ...sync.pool import Dialer
from ..connection_thread import ConnectionThread
from .health import Health
from .options import Options
from .progress import Told


class MemberEngine(ConnectionThread):
    """The connection thread of one member. ``ended``: called once, with the fatal error, if there was one."""

    def __init__(self, options: Options, dialer: Dialer, ended: Callable[[FlintError | None], None]) -> None:
        seconds = min(options.timeout_seconds, options.session_seconds)
        super().__init__(f"flintmq-group-{options.group}", f"group {options.group}", seconds, dialer)
        self.joined = threading.Event()
        """Set when the broker has accepted the member, or when the engine ends."""
        self._options = options
        self._on_end = ended

    def check(self) -> None:
        """Raise if the engine has ended with an error."""
        if self.failure is not None:
            raise ClientFailed(
                f"the consumer of group {self._options.group} ended: {self.failure}; create a new one", self.failure
            )

    @abstractmethod
    def leave(self) -> None:
        """Begin no more works, let the running ones finish, commit, leave the group, and end."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave the group and end, without waiting for running works."""

    @property
    @abstractmethod
    def paused(self) -> frozenset[str]:
        """Topics that are not pulled."""

    @abstractmethod
    def set_paused(self, topics: frozenset[str]) -> None:
        """Stop pulling these topics, and only these."""

    @abstractmethod
    def commit(self, told: Told) -> None:
        """Commit progress now; ``told`` is called with the outcome."""

    @abstractmethod
    def health(self) -> Health:
        """Return the current state and counters."""


def consumer_closed() -> ClientClosed:
    """Return the error of a call that waits when a consumer is closed."""
    return ClientClosed("this consumer was closed")
