"""The tables of a simulated member: the broker's own sender and writer of tables, on an event loop of simulated time.

A table has rows, and the newest change of each: (epoch, number). Changes of a later epoch follow those of an earlier
one, and within an epoch there is one primary, so the order of the pairs is the order of the changes.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from flintmq.broker.replication.core.messages import Hello, PositionReport
from flintmq.broker.replication.member.links import FollowedPrimary, LinkAccess
from flintmq.broker.replication.member.tables import TableCopy
from flintmq.protocol.commands import TABLE_BYTES_MAX, Command, ReplicateTableRequest
from flintmq.protocol.errors import ReplicationRefused

from .disk import Rows
from .network import Connection, Parcel

if TYPE_CHECKING:
    from .member import Member

ACKNOWLEDGED, PROGRESS = "topics", "offsets"
"""The tables: changes of the first are acknowledged, those of the second are not waited for."""
FULL_LINE_BYTES = 1 << 30
SYNCS = 4
"""A table costs the disk so many times what a flush does."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one opening of a member's store. It stands still while the process does."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._life = member.life
        self._starts_task = False

    def time(self) -> float:
        """Return the member's time."""
        return self._member.clock

    def get_debug(self) -> bool:
        """Return that futures need not be traced."""
        return False

    def call_soon(  # type: ignore[override]  # simpler types
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call in this moment, after what is due already."""
        handle = asyncio.Handle(callback, args, self, context)
        if self._starts_task:
            self._starts_task = False
            self._call(handle)
        else:
            self._member.world.after(0.0, self._enter, handle)
        return handle

    def call_later(  # type: ignore[override]  # simpler types
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call after a time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # simpler types
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        seconds = max(0.0, when - self.time()) / self._member.clock_rate
        self._member.world.after(seconds, self._enter, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled handle does nothing when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # simpler types
        self, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """Run a coroutine; its first step at once, because no task is running."""
        self._starts_task = True
        task = asyncio.Task(coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own
        task.add_done_callback(_check)
        return task

    def run_in_executor(  # type: ignore[override]  # simpler types
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Let the disk do it."""
        future = self.create_future()
        self._member.work_on_tables(func, future.set_result)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """No callback may fail."""
        raise context["exception"]

    def _enter(self, handle: asyncio.Handle) -> None:
        self._member.enter(self._life, self._call, handle)

    def _call(self, handle: asyncio.Handle) -> None:
        if handle.cancelled() or self._member.loop is not self:
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)


def _check(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.result()


class SimulatedTable:
    """A table as the process has it; the disk keeps its rows."""

    def __init__(self, name: str, member: Member) -> None:
        self.name = name
        self._member = member
        self._disk = member.disk
        self.rows: Rows = dict(member.disk.tables.get(name, {}))
        self._changes = 0

    def version(self) -> object:
        """Return the number of changes."""
        return self._changes

    def read(self) -> bytes:
        """Return the rows."""
        return json.dumps(self.rows).encode()

    def write(self, content: bytes) -> None:
        """Replace the rows by those of a primary."""
        self._member.world.judge.table_replaced(self._member, self.name)
        self.rows = {key: (epoch, number) for key, (epoch, number) in json.loads(content).items()}
        self._changes += 1
        self.save()

    def change(self, key: str, change: tuple[int, int]) -> None:
        """Change a row, in memory."""
        self.rows[key] = change
        self._changes += 1

    def save(self) -> None:
        """Put the rows on disk."""
        self._disk.tables[self.name] = dict(self.rows)


class SimulatedHandle:
    """A follower's end of a connection that this member accepted."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.number = 0

    def welcome(self, answer: Any, body: bytes) -> None:
        """Not called: the member sends the core's messages itself."""

    def refuse(self, error: ReplicationRefused) -> None:
        """Not called either."""

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a part of a table."""
        self._member.send(self.number, Parcel(request, body=bytes(body)))

    def unsent_bytes(self) -> int:
        """Return 0 as long as everything is taken."""
        return FULL_LINE_BYTES if self._member.lines_are_full else 0

    def close(self) -> None:
        """Close the connection."""
        self._member.hang_up(self.number)


class SimulatedLink:
    """The connection to a primary."""

    def __init__(self, member: Member, number: int) -> None:
        self._member = member
        self.number = number

    def send_hello(self, hello: Hello, file_bytes: int) -> None:
        """Send the first message."""
        self._member.send(self.number, Parcel(hello))

    def send_report(self, report: PositionReport, tables: int) -> None:
        """Report the position, and the tables that are on disk."""
        self._member.send(self.number, Parcel(report, tables=tables))

    def notice(self, report: PositionReport, tables: int, sent: Callable[[], None]) -> Callable[[], None]:
        """Return what the disk does with the report when the log is on disk."""

        def send() -> None:
            if self.number in self._member.connections:
                self.send_report(report, tables)
                sent()

        return send

    def close(self) -> None:
        """Close the connection."""
        self._member.hang_up(self.number)


class SimulatedPrimary(FollowedPrimary):
    """The primary that a member follows, over the simulated network."""

    def __init__(self, member: Member, tables: list[SimulatedTable]) -> None:
        super().__init__(LinkAccess(member.name), TableCopy(tables, TABLE_BYTES_MAX), member, member.loop)

    def opened(self, number: int, connection: Connection) -> None:
        """Use a connection that the network has opened."""
        self._link = SimulatedLink(connection.opener.member, number)  # type: ignore[assignment]  # not over TCP

    def take(self, number: int, parcel: Parcel) -> bool:
        """Take what arrived on a connection; return whether it is the current one."""
        link = self._current(number)
        if link is None:
            return False
        if isinstance(parcel.message, ReplicateTableRequest):
            self.link_table(link, parcel.message, parcel.body)
        elif parcel.message is None:
            self.link_lost(link, "the primary closed it")
        else:
            self.link_received(link, parcel.message, memoryview(b""))
        return True
