"""Pacing of long loops in a thread that runs beside the event loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

ITEMS = 512
"""Number of items between two pauses; a loop over as many takes less than half a millisecond."""
PAUSE_S = 0.0001


def giving_way(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a short pause after every ``ITEMS``.

    The event loop needs the GIL several times per turn. A thread that does not release it voluntarily keeps it for the
    switch interval, half a millisecond, each time.
    """
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS:
            time.sleep(PAUSE_S)
