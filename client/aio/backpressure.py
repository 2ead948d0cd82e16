"""Messages that cannot be added to the delivery yet, because there is no room or a queue must be looked up first.

They wait in order, and later messages wait after them, so that a message never overtakes an earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

from ...protocol.errors import FlintError
from ..core.produce.accumulator import Single
from ..core.produce.producer_core import ASK, Prepared, ProducerCore
from ..core.rpc.retry import detached
from ..message import Message
from .deadlines import Watch
from .rpc import RpcClient
from .runtime import ClientRuntime


class Held:
    """One message that waits to be added. ``future``: its sender's; ``single``: set when it is added; ``passed``: set
    if a task waits for that."""

    __slots__ = ("future", "message", "passed", "prepared", "single")

    def __init__(self, message: Message, prepared: Prepared, future: asyncio.Future[object]) -> None:
        self.message = message
        self.prepared = prepared
        self.future = future
        self.single: Single | None = None
        self.passed: asyncio.Event | None = None

    @property
    def deadline(self) -> float:
        """Deadline by which the message must be settled."""
        return self.prepared[3]


class Admission:
    """Adds the waiting messages one after the other, as soon as possible. ``add``: adds a message to the delivery;
    ``drained``: called when no message waits any longer."""

    def __init__(
        self,
        sending: ProducerCore,
        caller: RpcClient,
        life: ClientRuntime,
        watch: Watch,
        add: Callable[[Message, Prepared, asyncio.Future[object]], Single],
        drained: Callable[[], None],
    ) -> None:
        self.held: deque[Held] = deque()
        self._sending = sending
        self._caller = caller
        self._life = life
        self._watch = watch
        self._add = add
        self._drained = drained
        self._room: asyncio.Future[None] | None = None
        self._running = False
        life.add(self)
        watch.add(self)

    def hold(self, message: Message, prepared: Prepared, future: asyncio.Future[object]) -> Held:
        """Put a message in the waiting line."""
        held = Held(message, prepared, future)
        self.held.append(held)
        self._watch.wake(held.deadline)
        if not self._running:
            self._running = True
            self._life.start("admission", self._admit())
        return held

    def progressed(self) -> None:
        """Try again to add messages: there may be room."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def passed(self) -> None:
        """Return when all messages that wait now have been added."""
        if self.held:
            last = self.held[-1]
            last.passed = last.passed or asyncio.Event()
            await last.passed.wait()

    async def _admit(self) -> None:
        held, delivery = self.held, self._sending.delivery
        try:
            while held:
                first = held[0]
                queue, row, flush, deadline = first.prepared
                if first.future.done():
                    pass
                elif queue == ASK:
                    plan = self._sending.sharded_queue(first.message, self._watch.now())
                    try:
                        first.prepared = (await self._caller.run(plan, deadline), row, flush, deadline)
                        continue
                    except FlintError as error:
                        self._refuse(first, error)
                elif delivery.has_room(len(row[0])):
                    first.single = self._add(first.message, first.prepared, first.future)
                else:
                    self._room = self._life.loop.create_future()
                    await self._room
                    continue
                held.popleft()
                if first.passed is not None:
                    first.passed.set()
        finally:
            self._running = False
        self._drained()

    def _refuse(self, held: Held, error: FlintError) -> None:
        if not held.future.done():
            held.future.set_exception(detached(error))

    # ---- deadlines and the end

    def next_due(self, now: float) -> float:
        """Return the earliest deadline of the waiting messages."""
        return min((held.deadline for held in self.held if not held.future.done()), default=inf)

    def judge(self, now: float) -> None:
        """Fail the messages whose deadline is over."""
        for held in self.held:
            if held.deadline <= now and not held.future.done():
                self._refuse(held, self._sending.no_room())
        # Failed messages at the front leave the line now.
        self.progressed()

    def fail(self, error: FlintError) -> None:
        """Fail all waiting messages with ``error``."""
        for held in self.held:
            self._refuse(held, error)
            if held.passed is not None:
                held.passed.set()
        self.held.clear()
