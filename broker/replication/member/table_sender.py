"""The tables that a primary sends to its followers, and the callers that wait until these have a change on disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from .accepted_links import AcceptedLinks
from .tables import Table

POLL_S = 0.1
"""Time between two looks at the versions of all tables."""
BYTES_PER_S = 10_000_000
"""A large table that changes all the time is sent at most at this rate, unless a caller waits."""

log = logging.getLogger(__name__)


class TableSender:
    """The sender of one leadership. ``members``: function that returns the followers that must have a change."""

    def __init__(
        self,
        tables: Sequence[Table],
        links: AcceptedLinks,
        epoch: int,
        members: Callable[[], frozenset[str]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._links = links
        self._epoch = epoch
        self._members = members
        self._loop = loop
        self._kick = asyncio.Event()
        self._seen: dict[str, object] = {}
        self._sent: dict[str, tuple[int, bytes]] = {}
        """Number of the last change and content, by table."""
        self._rest_until: dict[str, float] = {}
        """Time before which a table is not sent again."""
        self._count = 0
        self._needed: int | None = None
        """Number of the last change that must be on a follower's disk before it joins the members in sync: all tables
        as they were first sent, and what was confirmed since. None: they were not sent yet."""
        self._unsent: deque[Callable[[], None]] = deque()
        """Callers whose change has not been read yet."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """(number of a change, caller that waits for it)."""
        self._task = loop.create_task(self._run())

    def greet(self, number: int) -> None:
        """Send all tables to a follower that was just welcomed on the connection ``number``."""
        # By their numbers: a follower reports only the last number that it saved, which must include all smaller ones.
        for name, (change, content) in sorted(self._sent.items(), key=lambda item: item[1][0]):
            self._links.send_table(self._epoch, name, change, content, only=number)

    def when_saved(self, call: Callable[[], None]) -> None:
        """Call ``call`` once all members in sync have on disk what the tables contain now."""
        self._unsent.append(call)
        self._kick.set()

    def saved(self) -> None:
        """Look again at what the followers have saved: one has reported, or the members in sync are others."""
        if not self._waiting:
            return
        members = self._members()
        # If no follower is in sync, there is none to wait for.
        saved = self._links.saved_by(members) if members else self._count
        while self._waiting and self._waiting[0][0] <= saved:
            number, call = self._waiting.popleft()
            # Before the call, which acknowledges the change: a follower that joins from here on needs it too.
            self._needed = max(self._needed or 0, number)
            call()

    def is_equipped(self, member: str) -> bool:
        """Return whether a follower has on disk what it needs to lead."""
        return self._needed is not None and self._links.saved_by((member,)) >= self._needed

    async def stop(self) -> None:
        """Send nothing more; callers that wait are not called."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # Not wait_for, which loses a cancellation that arrives together with the kick (before Python 3.12).
            with contextlib.suppress(TimeoutError):  # then it is time to look
                async with asyncio.timeout(POLL_S):
                    await self._kick.wait()
            self._kick.clear()
            callers, self._unsent = self._unsent, deque()
            try:
                await self._step(urgent=bool(callers))
            except OSError as error:
                log.error("cannot read a table to send it to the followers: %s; trying again", error)
                # In front of the callers that came during the step, and in their order.
                self._unsent.extendleft(reversed(callers))
                continue
            if self._needed is None:
                self._needed = self._count
            # The callers' changes are among those counted: all tables were looked at after they asked.
            self._waiting += [(self._count, call) for call in callers]
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
            if table.name in self._sent and self._sent[table.name][1] == content:
                continue
            self._count += 1
            self._rest_until[table.name] = self._loop.time() + len(content) / BYTES_PER_S
            self._sent[table.name] = (self._count, content)
            self._links.send_table(self._epoch, table.name, self._count, content)
