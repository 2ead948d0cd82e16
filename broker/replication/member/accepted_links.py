"""The connections of followers to this primary. Each has a negative number, so that the core can tell it from the
connections that this member opened itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....protocol import commands
from ....protocol.commands import Command, ReplicateTableRequest
from ....protocol.errors import ReplicationRefused
from ..core.messages import LogPiece, Message, Refusal, Welcome
from .wire import answer_of, encode_epochs, frame_of

PART_BYTES = 256 * 1024
"""Maximum size of a part of a table. On a slow line nothing else is sent while it is, heartbeats included."""
UNSAVED_MAX = 1_000
"""Maximum number of versions of tables that were sent to a follower and that it does not have on disk: further ones
wait until it reports, and give way to newer ones meanwhile."""


class FollowerHandle(Protocol):
    """The other end of a connection that asked to follow this member. All methods are for the event loop."""

    def welcome(self, answer: Any, body: bytes) -> None:
        """Respond to its REPLICATE."""

    def refuse(self, error: ReplicationRefused) -> None:
        """Respond to its REPLICATE with an error."""

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame."""

    def unsent_bytes(self) -> int:
        """Return how much of what it was told waits here because the other end does not take it."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _Version:
    """A version of a table that a follower does not have on disk."""

    table: str
    first: int
    """Number of the oldest change of the table that it does not have on disk either."""
    since: float
    """Time at which that change was made."""
    content: bytes
    sent_bytes: int = 0


@dataclass(slots=True)
class AcceptedLink:
    """A follower's connection, and the tables that it does not have on disk."""

    handle: FollowerHandle
    member: str
    welcomed: bool = False
    versions: int = 0
    """Number of versions of tables that were sent on this connection; the follower reports such a number."""
    _due: dict[str, _Version] = field(default_factory=dict)
    """By table, the newest version, of which nothing was sent yet."""
    _sending: _Version | None = None
    _sent: deque[tuple[int, int, float]] = field(default_factory=deque)
    """Versions that were sent and not reported: number on this connection, ``first`` and ``since``."""
    _told_bytes: int = 0
    _part_end: int = 0
    """Number of bytes told up to the end of the last part of a table."""
    _taken_bytes: int = 0
    _unsent_bytes: int = 0

    def put(self, table: str, change: int, content: bytes, now: float) -> None:
        """Note a new version of a table; ``change``: number of the oldest change that the other end may lack."""
        earlier = self._due.get(table)
        # In the place of the earlier one, so that a table which changes all the time has its turn, and no more.
        first, since = (earlier.first, earlier.since) if earlier is not None else (change, now)
        self._due[table] = _Version(table, first, since, content)

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame."""
        self._told_bytes += len(body)
        self.handle.tell(command, request, body)

    def send_parts(self, epoch: int) -> bool:
        """Send parts of tables as long as the other end takes them. Return whether more can be sent once it does."""
        while self.handle.unsent_bytes() <= self._told_bytes - self._part_end:
            if self._sending is None:
                if not self._due or len(self._sent) >= UNSAVED_MAX:
                    return False
                self._sending = self._due.pop(next(iter(self._due)))
                self.versions += 1
            version = self._sending
            at = version.sent_bytes
            part = version.content[at : at + PART_BYTES]
            version.sent_bytes += len(part)
            is_last = version.sent_bytes == len(version.content)
            # An empty table is one empty part: the follower must report its number, too.
            request = ReplicateTableRequest(epoch=epoch, table=version.table, version=self.versions, last=is_last)
            self.tell(commands.REPLICATE_TABLE, request, part)
            self._part_end = self._told_bytes
            if is_last:
                self._sent.append((self.versions, version.first, version.since))
                self._sending = None
        return True

    def reported(self, versions: int) -> None:
        """Note that the follower has all versions up to this number on disk."""
        while self._sent and self._sent[0][0] <= versions:
            self._sent.popleft()

    def unsaved(self) -> list[tuple[int, float]]:
        """Return the number and the time of changes that the follower does not have on disk; the oldest is among
        them."""
        waiting = [*self._due.values(), *([self._sending] if self._sending is not None else [])]
        return [*((first, since) for _, first, since in self._sent), *((each.first, each.since) for each in waiting)]

    def takes_bytes(self) -> bool:
        """Return whether the other end has taken bytes, of more than it had room for, since the last call."""
        unsent = self.handle.unsent_bytes()
        taken = self._told_bytes - unsent
        # Without a backlog it is the system that takes what is told, also for a process that hangs.
        takes = self._unsent_bytes > 0 and taken > self._taken_bytes
        self._unsent_bytes, self._taken_bytes = unsent, taken
        return takes


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
                link.tell(commands.REPLICATE_LOG, frame_of(message), log)

    def welcomed(self) -> list[AcceptedLink]:
        """Return the connections that get tables: a follower without a welcome gets all of them with it."""
        return [link for link in self._links.values() if link.welcomed]

    def of_member(self, member: str) -> AcceptedLink | None:
        """Return a member's newest connection that was welcomed, None if there is none."""
        return next((link for link in reversed(self.welcomed()) if link.member == member), None)

    def that_take_bytes(self) -> list[int]:
        """Return the numbers of the connections whose other end has taken bytes since the last call."""
        return [number for number, link in self._links.items() if link.takes_bytes()]
