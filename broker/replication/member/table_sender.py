"""The tables that a primary sends to its followers, and the callers that wait until these have a change on disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from .accepted_links import AcceptedLink, AcceptedLinks
from .tables import Table

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
