"""The threads behind a channel: one receives the messages of a queue, one follows the log of an exchange."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .. import (
    ClientClosed,
    ConnectionFailed,
    Consumer,
    Delivery,
    FlintError,
    GroupConsumer,
    ListenerTimeout,
    OffsetOutOfRange,
    RequestTimeout,
    StoredMessage,
    SystemBusy,
)
from .envelope import Window

# ---- A thread that follows the log of an exchange for a queue that belongs to this process alone.

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


# ---- A thread that receives the messages of one queue, as a member of the queue's group.

CLOSE_SECONDS = 1e9
"""How long tasks may run on after the end: as long as a client can wait."""
LEAVE_SECONDS_MAX = 15.0
"""Maximum time that a channel waits at its end until its readers have left their groups."""


class QueueMember:
    """Receives deliveries of a queue while its channel's window has room.

    ``receive`` and ``fail`` are called on the reader's thread: with each delivery, and with the error that ends it. If
    several queues share a window, each may exceed it by one message, which it has received while there was still room.
    """

    def __init__(
        self,
        consumer: GroupConsumer,
        window: Window,
        receive: Callable[[Delivery], None],
        fail: Callable[[FlintError], None],
    ) -> None:
        self._consumer = consumer
        self._window = window
        self._receive = receive
        self._fail = fail
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._leaving: threading.Thread | None = None
        consumer.start()
        self._start(self._run)

    def stop(self) -> None:
        """Receive nothing more. The member leaves its group when its open deliveries have been settled."""
        if self._ends():
            self._leaving = self._start(self._leave)

    @property
    def has_left(self) -> bool:
        """True if it was stopped and has left its group."""
        return self._leaving is not None and not self._leaving.is_alive()

    def close(self) -> None:
        """Leave the group; messages of open deliveries go to other members."""
        if self._ends():
            with contextlib.suppress(ListenerTimeout):
                self._consumer.close(0)
        elif self._leaving is not None and os.getpid() == self._pid:
            self._leaving.join(LEAVE_SECONDS_MAX)

    def _ends(self) -> bool:
        """Stop the thread; returns False if it was stopped before, or is the parent's."""
        if self._stopped.is_set() or os.getpid() != self._pid:
            return False
        self._stopped.set()
        self._window.wake()
        return True

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"flintmq-{self._consumer.group}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            while self._window.wait_for_room(self._stopped):
                for delivery in self._consumer.receive():
                    self._receive(delivery)
        except ClientClosed as error:
            if not self._stopped.is_set():
                self._fail(error)
        except FlintError as error:
            self._fail(error)

    def _leave(self) -> None:
        try:
            self._consumer.close(CLOSE_SECONDS)
        except FlintError as error:
            _log.warning("group %s was not left in order: %s", self._consumer.group, error)
