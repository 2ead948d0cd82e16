"""The primary that a member follows: the connection to it, and the tables that it sends."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ....protocol.commands import ReplicateTableRequest
from ....protocol.errors import AuthenticationFailed, FlintError, InvalidParameter
from ...addresses import parse_address
from ..core.messages import Hello, Message, PositionReport, Refusal, Welcome
from .primary_link import LinkAccess, PrimaryLink
from .table_writer import TableWriter
from .tables import TableCopy

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 5.0
"""Pause after the primary did not accept the password: each attempt delays the others from this host."""


class FollowingMember(Protocol):
    """The member that follows. All methods are called on the loop."""

    def primary_connected(self, number: int) -> None:
        """Note that the connection is open."""

    def primary_lost(self, number: int, refused: bool) -> None:
        """Note that there is no connection; ``refused``: the primary's host said that no process listens."""

    def primary_alive(self, number: int) -> None:
        """Note that bytes of the primary have come."""

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        """Take a message; ``body``: the bytes of a piece, valid during the call."""


class FollowedPrimary:
    """The primary of one member; it has at most one connection. ``number``: the core's number of the connection."""

    def __init__(
        self, access: LinkAccess, tables: TableCopy, member: FollowingMember, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._access = access
        self._tables = TableWriter(tables, self._table_saved, self._table_failed, loop)
        self._member = member
        self._loop = loop
        self.refusal = ""
        """Why this member does not follow: it cannot connect, or the primary refuses it; empty if it does."""
        self._link: PrimaryLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._number = 0
        """Number of the connection that was opened last, or is being opened."""
        self._logged = ""
        """Refusal that was logged last."""
        self._refused = ("", 0.0)
        """Address that refused the password last, and the time before which it is not asked again."""
        self._last_report: PositionReport | None = None
        self._epoch = -1
        """Epoch of which tables are taken now; -1: of none, because no primary has welcomed this member."""

    def connect(self, number: int, address: str) -> None:
        """Open the connection, to HOST:PORT."""
        self._number = number
        self._connecting = self._loop.create_task(self._connect(number, address))

    async def _connect(self, number: int, address: str) -> None:
        refused_by, until = self._refused
        if refused_by == address:
            await asyncio.sleep(until - self._loop.time())
        link = PrimaryLink(number, self, self._loop)
        try:
            host, port = parse_address(address)
            await link.open(host, port, self._access)
        # The host lives and no broker listens: the core counts these for a quick takeover.
        except ConnectionRefusedError:
            self._member.primary_lost(number, True)
        except (OSError, TimeoutError, FlintError) as error:
            reason = f"cannot follow the primary at {address}: {error or type(error).__name__}"
            if reason != self.refusal:
                log.warning("%s; trying again", reason)
            self.refusal = reason
            if isinstance(error, AuthenticationFailed):
                self._refused = address, self._loop.time() + REFUSED_PAUSE_S
            self._member.primary_lost(number, False)
        else:
            self._link = link
            self._member.primary_connected(number)

    def _current(self, number: int) -> PrimaryLink | None:
        return self._link if self._link is not None and self._link.number == number else None

    def greet(self, number: int, hello: Hello, file_bytes: int) -> None:
        """Send the first message; ``file_bytes``: size of the log's files."""
        link = self._current(number)
        if link is not None:
            self._last_report = None
            self._tables.begin(number)
            link.send_hello(hello, file_bytes)

    def report(self, number: int, report: PositionReport) -> None:
        """Report the position."""
        link = self._current(number)
        if link is not None:
            self._last_report = report
            link.send_report(report, self._tables.saved)

    def close(self, number: int) -> None:
        """Close the connection; the member hears nothing more of it."""
        link = self._current(number)
        if link is not None:
            link.close()
            self._forget_link()
        elif number == self._number and self._connecting is not None:
            self._connecting.cancel()

    def _forget_link(self) -> None:
        self._link, self._epoch = None, -1

    async def finish_tables(self) -> None:
        """Return when nothing of a primary before is written any more: this member begins to lead, and what has arrived
        is on disk first."""
        await self._tables.finish()

    async def stop(self) -> None:
        """Close the connection, drop the tables that wait, and wait for the one that is being written: the next life
        reads the same files."""
        if self._link is not None:
            self._link.close()
            self._forget_link()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._tables.drop()
        await self._tables.finish()

    # ---- what the link calls ----

    def link_received(self, link: PrimaryLink, message: Message, body: memoryview) -> None:
        """Take a message of the core."""
        refusal = message.reason if isinstance(message, Refusal) else ""
        if refusal and self.refusal == refusal != self._logged:  # the first one may only be early
            log.warning("the primary refuses this member: %s; trying again", refusal)
            self._logged = refusal
        self.refusal = refusal
        self._member.primary_said(link.number, message, body)
        # The core may have closed the connection, for a welcome that it does not accept.
        if isinstance(message, Welcome) and link is self._link:
            self._epoch = message.epoch
            self._tables.drop()

    def link_alive(self, link: PrimaryLink) -> None:
        """Note that bytes have come."""
        self._member.primary_alive(link.number)

    def link_table(self, link: PrimaryLink, part: ReplicateTableRequest, body: bytes) -> None:
        """Take a part of a table, of the primary that has welcomed this member."""
        if part.epoch != self._epoch or link is not self._link:
            raise InvalidParameter(f"table {part.table} of epoch {part.epoch} came without a welcome to that epoch")
        try:
            self._tables.add(part, body)
        except ValueError as error:
            raise InvalidParameter(str(error)) from error

    def link_lost(self, link: PrimaryLink, reason: str) -> None:
        """Take the end of the connection."""
        if link is self._link:
            self._forget_link()
        log.info("the connection to the primary ended: %s", reason)
        self._member.primary_lost(link.number, False)

    def _table_saved(self) -> None:
        # At once, because a caller at the primary may wait for it; but the first report of a connection is the core's,
        # which says by it that the log is cut.
        if self._link is not None and self._last_report is not None:
            self._link.send_report(self._last_report, self._tables.saved)

    def _table_failed(self) -> None:
        link = self._link
        if link is not None:
            # A link that this side closes is silent, so the member is told here.
            link.close()
            self.link_lost(link, "a table cannot be written")
