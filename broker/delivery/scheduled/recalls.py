"""Recalls of timed messages.

A recall is a timed record of the broker, as RocketMQ writes it: it is due in the same second as its message and has
that message's topic and unique key. Delivery leaves out the recalls of a second, and the messages that they name. So
the log alone decides whether a message is recalled, on every member of a replica set and after every restart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from ..routing import SECOND_MS
from .redelivery import PLACES, RECORDS_A_STEP, chosen_places

if TYPE_CHECKING:
    from ...store.read.record_copies import WaitingRecords
    from .redelivery import Redeliverer

_DIGEST_BYTES = 16
_DIGEST = f"S{_DIGEST_BYTES}"


class RecallsOfSecond:
    """The messages that are recalled in the second being delivered: 16 bytes in memory for each."""

    def __init__(self, redeliverer: Redeliverer) -> None:
        self._redeliverer = redeliverer
        self._second = -1
        self._examined = 0
        self._recalled = np.empty(0, _DIGEST)

    async def read(self, second: int, places: bytearray) -> None:
        """Read the recalls of a second, except those that were read before; ``places``: all its ``PLACES``."""
        if second != self._second:
            self._second, self._examined, self._recalled = second, 0, np.empty(0, _DIGEST)
        # Late messages extend the second while it is delivered. A copy, because a bytearray with a view cannot grow.
        fresh = np.frombuffer(bytes(places[self._examined :]), PLACES)
        self._examined = len(places)
        recalls = fresh[fresh["size"] < 0]
        found = [self._recalled]
        for at in range(0, len(recalls), RECORDS_A_STEP):
            waiting = await self._redeliverer.read_records(chosen_places(recalls[at : at + RECORDS_A_STEP]))
            found.append(_digests(waiting, waiting.recalled_keys()))
        self._recalled = np.concatenate(found) if len(found) > 1 else self._recalled

    def of(self, waiting: WaitingRecords) -> np.ndarray:
        """Return the mask of the records that are recalled, or are recalls themselves."""
        if not len(self._recalled):
            return waiting.is_recall
        return waiting.is_recall | np.isin(_digests(waiting, waiting.names()), self._recalled)


def _digests(waiting: WaitingRecords, names: list[bytes]) -> np.ndarray:
    """Return a digest of the name and the second of each record: late messages of several seconds come up together."""
    seconds = (waiting.due_ms // SECOND_MS).tolist()
    named = [b"%d %b" % pair for pair in zip(seconds, names, strict=True)]
    return np.array([blake2b(each, digest_size=_DIGEST_BYTES).digest() for each in named], _DIGEST)
