"""A store of dozens of messages in which every kind of file rolls: small enough to fail at each of its calls."""

from __future__ import annotations

from flintmq.broker.store import StoreSettings
from tests.store_tools import Message

from .power_cut_life import EVERY_KEY

KIB = 1024
SMALLEST = StoreSettings(
    commitlog_file_bytes=16 * KIB,
    consumequeue_file_bytes=20 * 12,
    index_slots=20,
    index_entries=40,
    message_bytes_max=6 * KIB,
    allocate_step_bytes=4 * KIB,
    verify_at_start_bytes=0,
    flush_policy="sync",
)
"""Settings with which every kind of file rolls; a start trusts the checkpoint, as in a store too large to be checked
completely."""
SIZES = (0, 10, 300, 1000, 3000, 1, 500)


class SmallMessages:
    """Numbered messages of several sizes."""

    def __init__(self) -> None:
        self._number = 0

    def take(self, count: int, queue: int) -> list[Message]:
        made = []
        for number in range(self._number, self._number + count):
            body = (b"%d " % number).ljust(SIZES[number % len(SIZES)], bytes([33 + number % 90]))
            made.append(Message(body, keys=(f"k{number}", f"{EVERY_KEY}-{queue}"), tags="eu" * (number % 2)))
        self._number += count
        return made
