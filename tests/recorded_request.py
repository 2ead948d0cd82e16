"""A request for tests of handlers, without a connection or a broker: it keeps the responses, and every wait is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from flintmq.broker.requests.connected_client import ConnectedClient
from flintmq.broker.requests.request import Request
from flintmq.broker.store import WouldBlock
from flintmq.protocol.commands import Command
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import REQUEST, Frame
from tests.remotes import FakeRemote

T = TypeVar("T")


class RecordedRequest(Request):
    """A request of a client without a user; its handler's responses and audit entries are kept, its errors raised."""

    __slots__ = ("answers", "audited")

    def __init__(self, command: Command, params: Any, body: bytes = b"") -> None:
        self.frame = Frame(REQUEST, command.code, 1, encode_fields(params), bytearray(body), 0, len(body))
        self.peer = cast(ConnectedClient, FakeRemote())
        self.answers: list[tuple[Any, bytes]] = []
        self.audited: list[tuple[Command, str, Any, Any]] = []

    def respond(self, answer: Any, body: bytes | bytearray = b"") -> None:
        """Keep a response."""
        self.answers.append((answer, bytes(body)))

    def audit(self, command: Command, target: str, before: Any = None, after: Any = None) -> None:
        """Keep an entry of the audit log."""
        self.audited.append((command, target, before, after))

    async def dispatched(self) -> None:
        """Return at once."""

    written = replicated = saved = dispatched

    async def read(self, read: Callable[[bool], T]) -> T:
        """Read as a reader thread would if the first attempt would block."""
        try:
            return read(True)
        except WouldBlock:
            return read(False)
