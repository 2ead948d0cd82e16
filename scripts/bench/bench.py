"""What a case is given: how much to do, and brokers to do it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .broker import Broker, temporary_store
from .load import QUEUES, TOPIC
from .machine import touch_memory
from .raw import RawClient

_QUICK_SHARE = 1 / 500
_QUICK_COUNT_MIN = 200


@dataclass(frozen=True, slots=True)
class Bench:
    """``runs`` of each case, stores under ``folder``; ``quick``: only see that everything works; ``alone``: without
    Kafka beside it.

    ``touched_gib``: memory that is touched before each run; see ``touch_memory``. ``notes``: what a reader of the table
    has to know of what was run, such as versions.
    """

    runs: int
    folder: Path
    quick: bool = False
    alone: bool = False
    touched_gib: float = 0.0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Have ``text`` below the table, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, count: int) -> int:
        """How many messages to send where ``count`` are wanted."""
        return max(_QUICK_COUNT_MIN, int(count * _QUICK_SHARE)) if self.quick else count

    @contextmanager
    def store(self) -> Iterator[Path]:
        """A folder for a store, gone afterwards."""
        with temporary_store(self.folder) as store:
            yield store

    @contextmanager
    def broker(self, flush: str = "async", *options: str) -> Iterator[Broker]:
        """A broker on an empty store that has the topic; gone afterwards, with everything it stored. ``options``: more
        of its command line."""
        with self.store() as store, Broker(store, flush, *options) as broker:
            with RawClient(broker.address) as client:
                client.create_topic(TOPIC, QUEUES)
            touch_memory(self.touched_gib, self.folder)
            yield broker
