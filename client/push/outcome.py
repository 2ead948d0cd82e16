"""What a listener can say of messages beside that they are done."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ...protocol.delivery import DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX
from ..core.batch import Batch
from ..core.stored import StoredMessage
from ..errors import InvalidArgument

log = logging.getLogger(__name__)

Failed = list[tuple[StoredMessage, int]]
"""Messages to be tried again, and the delay level of each."""


class TryLater(Exception):
    """Raised by a listener: the message (of a batch: those in ``messages``, or all) is to be tried again later.

    ``delay_level``: 1 to 18 (1 s to 2 h), 0: what the group does anyway, longer with every try. Any other exception
    does the same, and is logged.
    """

    def __init__(self, delay_level: int = 0, messages: Iterable[StoredMessage] | None = None) -> None:
        if type(delay_level) is not int or not 0 <= delay_level <= DELAY_LEVEL_MAX:
            raise InvalidArgument(f"delay_level is {delay_level!r}; it must be 0 to {DELAY_LEVEL_MAX}")
        super().__init__(f"to be tried again, delay level {delay_level}")
        self.delay_level = delay_level
        self.messages = None if messages is None else list(messages)


class GiveUp(TryLater):
    """Raised by a listener: the message (of a batch: those in ``messages``, or all) is not to be tried again. It
    becomes a dead letter at once."""

    def __init__(self, messages: Iterable[StoredMessage] | None = None) -> None:
        super().__init__(0, messages)
        self.delay_level = DEAD_LETTER_LEVEL


def failed_with(error: BaseException, group: str, handed: Any, messages: Iterable[StoredMessage]) -> Failed:
    """What is to be tried again after a listener, called with ``handed``, raised ``error``. Logs what is no
    ``TryLater``."""
    if isinstance(error, TryLater):
        return [(message, error.delay_level) for message in error.messages or messages]
    what = handed if isinstance(handed, StoredMessage | Batch) else f"{len(handed)} messages"
    log.warning("group %s: the listener failed with %r", group, what, exc_info=error)
    return [(message, 0) for message in messages]
