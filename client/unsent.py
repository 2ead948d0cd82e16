"""Warnings about messages that a producer leaves behind if it ends without ``close`` or cannot wait for them."""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from abc import ABC, abstractmethod

log = logging.getLogger(__name__)


class TrackedProducer(ABC):
    """A producer."""

    remains_told = True
    """True if the remaining messages have been reported; initially there are none."""

    @abstractmethod
    def undelivered(self) -> tuple[int, int]:
        """Return how many messages of ``send_async`` are not acknowledged yet, and how many failed without the
        application reading the outcome from their futures."""

    def __del__(self) -> None:
        if not self.remains_told:
            abandoned(self, "its last reference is gone")


_open: weakref.WeakSet[TrackedProducer] = weakref.WeakSet()


def watch(producer: TrackedProducer) -> None:
    """Check ``producer`` when the interpreter exits, unless it is closed before."""
    _open.add(producer)


def closed(producer: TrackedProducer, raised: BaseException | None) -> None:
    """Record that ``producer`` was closed. If ``raised`` prevents it from raising the failures of its messages, log
    them."""
    _open.discard(producer)
    producer.remains_told = True
    if raised is not None and (text := _left(producer)):
        log.warning("a producer was closed by %s: %s", type(raised).__name__, text)


def abandoned(producer: TrackedProducer, when: str) -> None:
    """Report a producer that can no longer be closed: if messages remain, log and warn."""
    if producer.remains_told:
        return
    producer.remains_told = True
    if text := _left(producer):
        text = f"{when}, and a producer was not closed: {text}; call its close() or flush(), or use it in a with block"
        log.warning(text)
        warnings.warn(text, ResourceWarning, stacklevel=2, source=producer)


def _left(producer: TrackedProducer) -> str:
    unacknowledged, failed = producer.undelivered()
    parts = []
    if unacknowledged:
        parts.append(f"{unacknowledged:,} messages of send_async are not acknowledged and may be lost")
    if failed:
        parts.append(f"{failed:,} messages of send_async failed, and the application did not look at their futures")
    return "; ".join(parts)


@atexit.register
def _at_exit() -> None:
    for producer in list(_open):
        abandoned(producer, "the interpreter is exiting")
