"""A follower's disk writes the tables of its primary: the newest version of each, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ....protocol.commands import ReplicateTableRequest
from ....protocol.errors import FlintError
from .tables import TableCopy

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Change:
    """A version of a table that is not on disk yet. ``connection``: that on which it came."""

    connection: int
    first: int
    """Number of the oldest version of the table that is not on disk either."""
    number: int
    write: Callable[[], None]


class TableWriter:
    """The tables that arrive on a connection, until they are on disk. A version that waits gives way to a newer one, so
    memory is bounded whatever the disk does.

    ``on_saved`` is called after a table is on disk, ``on_failed`` if one cannot be written.
    """

    def __init__(
        self,
        tables: TableCopy,
        on_saved: Callable[[], None],
        on_failed: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._loop = loop
        self._connection = 0
        """Number of the connection whose tables count."""
        self._arrived = 0
        """Number of the newest complete table of this connection."""
        self._waiting: dict[str, _Change] = {}
        self._writing: _Change | None = None
        self._work: asyncio.Future[None] | None = None

    @property
    def saved(self) -> int:
        """Number of a change of this connection that is on disk together with all earlier ones; 0: none is."""
        changes = [*self._waiting.values(), *([self._writing] if self._writing is not None else [])]
        unsaved = [change.first for change in changes if change.connection == self._connection]
        return min(unsaved) - 1 if unsaved else self._arrived

    def begin(self, connection: int) -> None:
        """Count the tables of a new connection. Those of the one before may still be written."""
        self._connection, self._arrived = connection, 0
        self._tables.forget_parts()

    def drop(self) -> None:
        """Drop what waits, as the tables of another primary replace it."""
        self._waiting.clear()

    def add(self, part: ReplicateTableRequest, body: bytes) -> None:
        """Take a part of a table. Raises ``ValueError``, see ``TableCopy.add``."""
        write = self._tables.add(part.table, body, last=part.last)
        if write is None:
            return
        earlier = self._waiting.get(part.table)
        is_newer = earlier is not None and earlier.connection == self._connection
        first = earlier.first if earlier is not None and is_newer else part.version
        # In the place of the earlier one, so that a table which changes all the time has its turn, and no more.
        self._waiting[part.table] = _Change(self._connection, first, part.version, write)
        self._arrived = part.version
        self._write_next()

    def _write_next(self) -> None:
        if self._writing is not None or not self._waiting:
            return
        self._writing = self._waiting.pop(next(iter(self._waiting)))
        self._work = self._loop.run_in_executor(None, self._writing.write)
        self._work.add_done_callback(self._written)

    def _written(self, work: asyncio.Future[None]) -> None:
        change, self._writing = self._writing, None
        assert change is not None
        # The connection may have ended during the write, and the next primary counts its tables from 0.
        is_current = change.connection == self._connection
        error = work.exception()
        if error is not None:
            log.error("cannot take over a table of the primary: %s", error, exc_info=not _is_known(error))
            if is_current:
                # The next connection sends all tables again; nothing of this one counts any more.
                self.begin(0)
                self._on_failed()
        elif is_current:
            self._on_saved()
        self._write_next()

    async def finish(self) -> None:
        """Return when all that has arrived is on disk, or could not be written."""
        while self._work is not None and self._writing is not None:
            await asyncio.wait([self._work])
            # ``_written`` is called in the same turn, perhaps after this task.
            await asyncio.sleep(0)


def _is_known(error: BaseException) -> bool:
    return isinstance(error, OSError | ValueError | FlintError)
