"""The tables that a primary sends to its followers, and the callers that wait until these have a change on disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....protocol import commands
from ....protocol.commands import Command, ReplicateTableRequest
from ....protocol.errors import ReplicationRefused
from ..core.messages import LogPiece, Message, Refusal, Welcome
from .primary_link import answer_of, encode_epochs, frame_of
from .tables import Table

# ---- The connections of followers to this primary. Each has a negative number, so that the core can tell it
# from the connections that this member opened itself.

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


POLL_S = 0.1
"""Time between two looks at the versions of all tables."""
SEND_S = 0.005
"""Time between two looks whether a follower has taken what was sent to it, while there is more."""
BYTES_PER_S = 10_000_000
"""A large table that changes all the time is sent at most at this rate, unless a caller waits."""

log = logging.getLogger(__name__)


class TableSender:
    """The sender of one leadership. ``members``: function that returns the followers that must have a change, None if
    too few members are in sync for any change to be confirmed."""

    def __init__(
        self,
        tables: Sequence[Table],
        links: AcceptedLinks,
        epoch: int,
        members: Callable[[], frozenset[str] | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._links = links
        self._epoch = epoch
        self._members = members
        self._loop = loop
        self._kick = asyncio.Event()
        self._seen: dict[str, object] = {}
        self._read: dict[str, bytes] = {}
        """Content, by table."""
        self._rest_until: dict[str, float] = {}
        """Time before which a table is not sent again."""
        self._count = 0
        self._needed: int | None = None
        """Number of the last change that must be on a follower's disk before it joins the members in sync or takes the
        leadership over: all tables as they were at first, and what was confirmed or asked for since. None: they were
        not read yet."""
        self._unread: deque[Callable[[int], None]] = deque()
        """Callers whose change has not been read yet; they are called with its number."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """(number of a change, caller that waits until the members have it)."""
        self._needs = 0
        """Number of calls of ``need`` whose tables have not been read yet."""
        self._again: asyncio.TimerHandle | None = None
        self._task = loop.create_task(self._run())

    def greet(self, number: int) -> None:
        """Send all tables to a follower that was just welcomed on the connection ``number``."""
        link = self._links.get(number)
        if link is not None:
            for name, content in self._read.items():
                # The first change, not the newest one: its disk may lack any of them.
                link.put(name, 1, content, self._loop.time())
            self._send()

    def when_saved(self, call: Callable[[], None]) -> None:
        """Call ``call`` once all members in sync have on disk what the tables contain now."""
        self._unread.append(lambda number: self._waiting.append((number, call)))
        self._kick.set()

    def need(self) -> None:
        """Let ``is_equipped`` require the tables as they are now."""
        self._needs += 1
        self._unread.append(self._need)
        self._kick.set()

    def _need(self, number: int) -> None:
        self._needs -= 1
        self._needed = max(self._needed or 0, number)

    def reported(self, link: AcceptedLink, versions: int) -> None:
        """Note how many versions of tables a follower has on disk."""
        link.reported(versions)
        self.saved()
        self._send()

    def saved(self) -> None:
        """Look again at what the followers have saved: one has reported, or the members in sync are others."""
        members = self._members() if self._waiting else None
        if members is None:
            return
        # If no follower is in sync, there is none to wait for.
        saved = min(map(self._saved_by, members), default=self._count)
        while self._waiting and self._waiting[0][0] <= saved:
            number, call = self._waiting.popleft()
            # Before the call, which acknowledges the change: a follower that joins from here on needs it too.
            self._needed = max(self._needed or 0, number)
            call()

    def _saved_by(self, member: str) -> int:
        """Return the number of the last change that a member has on disk together with all earlier ones; 0 for one
        without a connection."""
        link = self._links.of_member(member)
        if link is None:
            return 0
        return min((first - 1 for first, _ in link.unsaved()), default=self._count)

    def is_equipped(self, member: str) -> bool:
        """Return whether a follower has on disk what it needs to lead."""
        return self._needed is not None and not self._needs and self._saved_by(member) >= self._needed

    def behind_s(self, member: str) -> float:
        """Return for how many seconds a follower has lacked a change of a table; 0.0 for one without a connection."""
        link = self._links.of_member(member)
        now = self._loop.time()
        return max((now - since for _, since in link.unsaved()), default=0.0) if link is not None else 0.0

    def _send(self) -> None:
        """Send what the followers take, and look again soon if they will take more."""
        if self._again is not None:
            self._again.cancel()
        more = [link.send_parts(self._epoch) for link in self._links.welcomed()]
        self._again = self._loop.call_later(SEND_S, self._send) if any(more) else None

    async def stop(self) -> None:
        """Send nothing more; callers that wait are not called."""
        if self._again is not None:
            self._again.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # Not wait_for, which loses a cancellation that arrives together with the kick (before Python 3.12).
            with contextlib.suppress(TimeoutError):  # then it is time to look
                async with asyncio.timeout(POLL_S):
                    await self._kick.wait()
            self._kick.clear()
            callers, self._unread = self._unread, deque()
            try:
                await self._step(urgent=bool(callers))
            except OSError as error:
                log.error("cannot read a table to send it to the followers: %s; trying again", error)
                # In front of the callers that came during the step, and in their order.
                self._unread.extendleft(reversed(callers))
                continue
            if self._needed is None:
                self._needed = self._count
            # The callers' changes are among those counted: all tables were looked at after they asked.
            for call in callers:
                call(self._count)
            self.saved()

    async def _step(self, *, urgent: bool) -> None:
        for table in self._tables:
            if not urgent and self._loop.time() < self._rest_until.get(table.name, 0.0):
                continue
            version = table.version()  # before the content, which may be newer
            if table.name in self._seen and self._seen[table.name] == version:
                continue
            content = await self._loop.run_in_executor(None, table.read)
            self._seen[table.name] = version
            # The version changes with each write, also of the same content.
            if self._read.get(table.name) == content:
                continue
            self._count += 1
            now = self._loop.time()
            self._rest_until[table.name] = now + len(content) / BYTES_PER_S
            self._read[table.name] = content
            for link in self._links.welcomed():
                link.put(table.name, self._count, content, now)
            self._send()
