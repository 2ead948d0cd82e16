"""A thread that receives the messages of one queue, as a member of the queue's group."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from flintmq.client import ClientClosed, Delivery, FlintError, GroupConsumer, ListenerTimeout

from .window import Window

_log = logging.getLogger("flintmq.celery")
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
