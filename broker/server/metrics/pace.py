"""Long loops of a thread that runs beside the event loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

ITEMS = 512
"""As many are gone through in less than half a millisecond."""
PAUSE_S = 0.0001


def giving_way(items: Iterable[T]) -> Iterator[T]:
    """The items, with a pause now and then.

    The event loop takes the interpreter several times a turn, and a thread that does not let go of it by itself keeps
    it half a millisecond each time.
    """
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS:
            time.sleep(PAUSE_S)
