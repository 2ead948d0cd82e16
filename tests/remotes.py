"""A client connection as delivery sees it, for tests without a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flintmq.broker.delivery.client_handle import Answered
from flintmq.broker.security.users import UserRights
from flintmq.protocol.commands import Command


class FakeRemote:
    """Client connection that collects notifications and requests."""

    def __init__(self, client: str = "test", port: int = 50_000) -> None:
        self.client = client
        self.address = ("127.0.0.1", port)
        self.user_name = ""
        self.lost = False
        self.access: UserRights | None = None
        self.allowed: set[str] | None = None
        """Topics that its user may publish to; None: all."""
        self.told: list[tuple[Command, Any, bytes]] = []
        self.asked: list[tuple[Command, Any, bytes, Answered]] = []
        self._when_lost: list[Callable[[], None]] = []

    def tell(self, command: Command, request: Any, body: bytes = b"") -> None:
        """Note a notification."""
        self.told.append((command, request, body))

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Note a request and its callback."""
        self.asked.append((command, request, body, answered))

    def may_publish(self, topic: str, group: str = "") -> bool:
        """Return whether the user may publish to the topic."""
        return self.allowed is None or topic in self.allowed

    def may_be_sent(self) -> bool:
        """Return True."""
        return True

    def when_lost(self, call: Callable[[], None], kept_bytes: int = 0) -> Callable[[], None]:
        """Note a callback for the connection's end."""
        self._when_lost.append(call)
        return lambda: self._when_lost.remove(call) if call in self._when_lost else None

    def lose(self) -> None:
        """End the connection."""
        self.lost = True
        for call in list(self._when_lost):
            call()
