"""The open deliveries of a channel, and how many of them there may be."""

from __future__ import annotations

import itertools
import threading

from flintmq.client import Delivery

OPEN_MAX = 1000
"""Maximum number of open deliveries of a channel without a prefetch count."""
_tags = itertools.count(1)


class Window:
    """Deliveries by delivery tag, from their receipt until they are settled. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, Delivery] = {}
        self._open_max = OPEN_MAX

    def resize(self, prefetch_count: int) -> None:
        """Set how many deliveries may be open; 0: the default."""
        with self._changed:
            self._open_max = prefetch_count or OPEN_MAX
            self._changed.notify_all()

    def add(self, delivery: Delivery) -> int:
        """Add a delivery and return its tag, which is unique in this process."""
        with self._changed:
            tag = next(_tags)
            self._open[tag] = delivery
            return tag

    def take(self, tag: int) -> Delivery | None:
        """Remove a delivery and return it; None if it is not open any more."""
        with self._changed:
            self._changed.notify_all()
            return self._open.pop(tag, None)

    def tags(self, last: int | None = None) -> list[int]:
        """Return the tags of the open deliveries, up to ``last``."""
        with self._changed:
            return [tag for tag in self._open if last is None or tag <= last]

    def wait_for_room(self, stopped: threading.Event) -> bool:
        """Wait until one more delivery may be open; returns False when ``stopped`` is set and ``wake`` is called."""
        with self._changed:
            self._changed.wait_for(lambda: stopped.is_set() or len(self._open) < self._open_max)
            return not stopped.is_set()

    def wake(self) -> None:
        """Have every waiting thread look whether it was stopped."""
        with self._changed:
            self._changed.notify_all()
