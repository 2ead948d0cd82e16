"""A thread that follows the log of an exchange for a queue that belongs to this process alone."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from flintmq.client import (
    ClientClosed,
    ConnectionFailed,
    Consumer,
    FlintError,
    OffsetOutOfRange,
    RequestTimeout,
    StoredMessage,
    SystemBusy,
)

_log = logging.getLogger("flintmq.celery")
_AWAY = (ConnectionFailed, RequestTimeout, SystemBusy)
PENDING_MAX = 1000
"""Number of messages that a reader has received, and that have not been handed over, at which it waits."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue's binding to an exchange: ``topic`` is the exchange's log, which is read from ``offset`` on;
    ``routing_key`` and ``pattern``: the messages to take, by equality or by a regular expression; None: all."""

    topic: str
    offset: int
    routing_key: str | None = None
    pattern: str | None = None

    def takes(self, routing_key: str) -> bool:
        """Return whether the queue gets a message with this routing key."""
        if self.pattern is not None:
            return re.match(self.pattern, routing_key) is not None
        return self.routing_key is None or self.routing_key == routing_key


class ExchangeReader:
    """Follows the log of an exchange until it is closed, however long the broker is away.

    ``receive`` and ``fail`` are called on the reader's thread: with each message and a function to be called when the
    message has been handed over, and with the error that ends the reader.
    """

    def __init__(
        self,
        consumer: Consumer,
        binding: Binding,
        receive: Callable[[StoredMessage, Callable[[], None]], None],
        fail: Callable[[FlintError], None],
    ) -> None:
        self._consumer = consumer
        self._topic = binding.topic
        self._next = binding.offset
        self._receive = receive
        self._fail = fail
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._pending = 0
        self._closed = False
        threading.Thread(target=self._run, name=f"flintmq-{binding.topic}", daemon=True).start()

    def close(self) -> None:
        """Stop."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._consumer.close()

    stop = close

    def _run(self) -> None:
        while not self._closed:
            try:
                for message in self._consumer.iter(self._topic, from_={0: self._next}):
                    self._next = message.queue_offset + 1
                    self._wait_for_room()
                    self._receive(message, self._handed_over)
            except _AWAY as error:
                _log.info("topic %s cannot be read at present, tried again: %s", self._topic, error)
            except OffsetOutOfRange as error:
                _log.warning("messages of topic %s were deleted before this process read them: %s", self._topic, error)
                self._next = error.max_offset
            except ClientClosed as error:
                if not self._closed:
                    self._fail(error)
                return
            except FlintError as error:
                self._fail(error)
                return

    def _wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pending < PENDING_MAX)
            self._pending += 1

    def _handed_over(self) -> None:
        with self._changed:
            self._pending -= 1
            self._changed.notify()
