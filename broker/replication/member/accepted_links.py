"""The connections of followers to this primary. Each has a negative number, so that the core can tell it from the
connections that this member opened itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ....protocol import commands
from ....protocol.commands import Command, ReplicateTableRequest
from ....protocol.errors import ReplicationRefused
from ..core.messages import LogPiece, Message, Refusal, Welcome
from .wire import answer_of, encode_epochs, frame_of

PART_BYTES = 1024 * 1024
"""Maximum size of a part of a table."""


class FollowerHandle(Protocol):
    """The other end of a connection that asked to follow this member. All methods are for the event loop."""

    def welcome(self, answer: Any, body: bytes) -> None:
        """Respond to its REPLICATE."""

    def refuse(self, error: ReplicationRefused) -> None:
        """Respond to its REPLICATE with an error."""

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class AcceptedLink:
    """A follower's connection."""

    handle: FollowerHandle
    member: str
    welcomed: bool = False
    tables: int = 0
    """Number of the last change of a table that the follower has on disk."""


class AcceptedLinks:
    """All of them. ``read_log``: function that returns the log's bytes between two physical offsets."""

    def __init__(self, read_log: Callable[[int, int], bytearray]) -> None:
        self._read_log = read_log
        self._links: dict[int, AcceptedLink] = {}
        self._count = 0

    def add(self, handle: FollowerHandle, member: str) -> int:
        """Take over a connection; return its number."""
        self._count += 1
        self._links[-self._count] = AcceptedLink(handle, member)
        return -self._count

    def remove(self, number: int) -> None:
        """Forget a connection that has ended."""
        self._links.pop(number, None)

    def get(self, number: int) -> AcceptedLink | None:
        """Return the connection with a number, None if it has ended."""
        return self._links.get(number)

    def close(self, number: int) -> None:
        """Close and forget a connection."""
        link = self._links.pop(number, None)
        if link is not None:
            link.handle.close()

    def send(self, number: int, message: Message) -> None:
        """Send a message of the core, if the connection is still there."""
        link = self._links.get(number)
        if link is None:
            return
        match message:
            case Welcome():
                link.welcomed = True
                link.handle.welcome(answer_of(message), encode_epochs(message.epochs))
            case Refusal():
                link.handle.refuse(ReplicationRefused(message.reason, epoch=message.epoch))
            case LogPiece():
                log = self._read_log(message.offset, message.end) if message.end > message.offset else b""
                link.handle.tell(commands.REPLICATE_LOG, frame_of(message), log)

    def send_table(self, epoch: int, table: str, version: int, content: bytes, only: int | None = None) -> None:
        """Send a table to all followers that were welcomed, or only to the connection ``only``."""
        numbers: Iterable[int] = self._links if only is None else (only,)
        # A follower without a welcome gets all tables with it.
        links = [link for number in numbers if (link := self._links.get(number)) is not None and link.welcomed]
        # An empty table is one empty part: the follower must report its number, too.
        for at in range(0, max(len(content), 1), PART_BYTES):
            part = content[at : at + PART_BYTES]
            is_last = at + PART_BYTES >= len(content)
            request = ReplicateTableRequest(epoch=epoch, table=table, version=version, last=is_last)
            for link in links:
                link.handle.tell(commands.REPLICATE_TABLE, request, part)

    def saved_by(self, members: Iterable[str]) -> int:
        """Return the number of the last table that all these members have on disk; 0 for one without a connection."""
        found = {link.member: link.tables for link in self._links.values() if link.welcomed}
        return min((found.get(member, 0) for member in members), default=0)
