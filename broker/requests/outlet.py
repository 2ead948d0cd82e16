"""The way out for messages: the parts of the broker that answer pulls and pops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from ..background.held_pulls import PullRequestHoldService, Selections
    from ..background.loop_work import ColdReads
    from ..budgets import SendBudget
    from ..delivery.groups.coordinator import GroupCoordinator, OffsetMover
    from ..store import MessageStore
    from .counters import Counters
    from .dispatch import DispatchScheduler


@dataclass(frozen=True, slots=True, eq=False)
class Outlet:
    """The parts of the broker with which it reads messages for clients, lets clients wait for some, and bounds the
    answers. Both protocols use it."""

    store: MessageStore
    dispatch: DispatchScheduler
    holds: PullRequestHoldService
    selections: Selections
    groups: GroupCoordinator
    offset_mover: OffsetMover
    send_memory: SendBudget
    cold_reads: ColdReads
    counters: Counters
    loop: asyncio.AbstractEventLoop
    frame_bytes_max: int
    """Size of the largest response, without its length field."""
    follows: Callable[[], bool]
    """Returns whether another member of the replica set leads: it may have more of a queue. Any thread."""
