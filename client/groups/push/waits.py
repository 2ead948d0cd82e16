"""How threads wait for what happens to a member of a group on the I/O thread."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ...core.client_guard import Guard
from .delivery import DeliverySource
from .shell import WAIT_SECONDS_MAX

T = TypeVar("T")

Awaited = Future


class Life(Guard):
    """Whether a member can still be used, with the names of an asyncio client's ``ClientRuntime``."""

    __slots__ = ()

    @property
    def guard(self) -> Guard:
        """The check for parts that other threads call."""
        return self

    def enter(self) -> None:
        """Begin a call; raises if the member is closed, or belongs to the parent process."""
        self.check()

    def check_loop(self) -> None:
        """Raise if the member belongs to the parent process."""
        self.check_fork()

    def closing(self) -> None:
        """Make every further call raise ``ClientClosed``."""
        self.closed = True


def awaited(future: Future[T]) -> Awaited[T]:
    """Return what threads wait for instead of ``future``: the same."""
    return future


def completed(future: Awaited[T], seconds: float | None) -> bool:
    """Wait at most this many seconds; returns whether the future is done."""
    concurrent.futures.wait([future], timeout=seconds)
    return future.done()


class Receivers:
    """Threads that wait for deliveries."""

    def __init__(self, life: Life) -> None:
        self.deliveries: DeliverySource
        """Set by the creator of both."""

    def changed(self) -> None:
        """Do nothing: every change notifies the condition of the deliveries."""

    def wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait for the next change, at most this many seconds, unless a condition holds already."""
        with self.deliveries.condition:
            if not holds():
                self.deliveries.condition.wait(min(seconds, WAIT_SECONDS_MAX))
