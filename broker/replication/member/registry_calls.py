"""The member's calls to the registry, as tasks whose answers go to the core."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from ..core.configuration import Proposal, ProposalOutcome
from ..registry.errors import RegistryError
from ..registry.interface import LeaseAnswer, Registry, RegistryView

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause after a read of the registry that failed."""

_HELD = {LeaseAnswer.HELD: True, LeaseAnswer.REFUSED: False, LeaseAnswer.UNKNOWN: None}


class RegistryCalls:
    """The calls of one member. ``on_view`` is called with each state of the registry that is read, ``fatal`` with what
    failed and an error that is not the registry's: the core would wait for its answer for ever."""

    def __init__(
        self,
        registry: Registry,
        member: str,
        on_view: Callable[[RegistryView], None],
        fatal: Callable[[str, BaseException], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._member = member
        self._on_view = on_view
        self._fatal = fatal
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._lease = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.problem = ""
        """Why the last read failed; empty if it did not."""

    def start(self) -> None:
        """Watch the registry."""
        self._watch = self._spawn(self._follow())

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch()) as views:
            async for view in views:
                self.problem = ""
                self._on_view(view)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # The loop itself refers to tasks only weakly.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fatal("a call to the registry of the replica set", error)

    def read(self) -> None:
        """Read the registry, unless a read runs."""
        if self._reading is None or self._reading.done():
            self._reading = self._spawn(self._read())

    async def _read(self) -> None:
        """Read until an answer comes, so that ``problem`` is not shown longer than it lasts."""
        while True:
            try:
                view = await self._registry.read()
            except RegistryError as error:
                if str(error) != self.problem:
                    self.problem = str(error)
                    log.warning("cannot read the registry of the replica set: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                self.problem = ""
                self._on_view(view)
                return

    def propose(
        self, proposal: Proposal, addresses: Mapping[str, str], answered: Callable[[int, ProposalOutcome, int], None]
    ) -> None:
        """Send a proposal; ``answered`` is called with its number, its outcome and the new version."""

        async def run() -> None:
            try:
                answer = await self._registry.propose(proposal, addresses)
            except RegistryError as error:
                log.warning("a change of the replica set was not made: %s", error)
                # By the registry's contract, a change that raises this was not applied and never will be.
                answered(proposal.number, ProposalOutcome.LOST, 0)
                return
            if answer.outcome is ProposalOutcome.UNKNOWN:
                log.warning("the registry may have made a change of the replica set: %s", answer.reason)
            answered(proposal.number, answer.outcome, answer.version)

        self._spawn(run())

    def hold_lease(self, epoch: int, number: int, answered: Callable[[int, bool | None], None]) -> None:
        """Take or renew the lease; ``answered`` is called with the number and whether it is held, None: unknown."""

        async def run() -> None:
            try:
                # The registry's contract: one call for the lease at a time.
                async with self._lease:
                    answer = await self._registry.hold_lease(self._member, epoch)
            except RegistryError as error:
                log.error("the registry does not give the lease: %s", error)
                answer = LeaseAnswer.UNKNOWN
            answered(number, _HELD[answer])

        self._spawn(run())

    def release_lease(self) -> None:
        """Give the lease back."""

        async def run() -> None:
            async with self._lease:
                await self._registry.release_lease()

        self._spawn(run())

    async def stop(self, timeout_s: float) -> None:
        """End the watch, and wait for the other calls at most this time."""
        endless = [task for task in (self._watch, self._reading) if task is not None]
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        if self._tasks:
            # The lease may be among them: if it is not given back, the others wait for its end.
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
