"""The clients of one connection in one process, and which of their errors kombu may try again."""

from __future__ import annotations

import os
import threading
from typing import Any

from kombu.transport import virtual

from flintmq.client import (
    Admin,
    ClientClosed,
    ClientFailed,
    ConnectionFailed,
    Consumer,
    DeliveryLost,
    FlushDiskTimeout,
    ForkedClient,
    GroupConsumer,
    ListenerTimeout,
    NotEnoughReplicas,
    NotPrimary,
    Producer,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
)

CONNECTION_ERRORS: tuple[type[Exception], ...] = (
    *virtual.Transport.connection_errors,
    ClientClosed,
    ClientFailed,
    ConnectionFailed,
    DeliveryLost,
    FlushDiskTimeout,
    ForkedClient,
    ListenerTimeout,
    NotEnoughReplicas,
    NotPrimary,
    OSError,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
)
"""Errors that a new connection may cure. Other refusals, such as of a password, a message that is too large or a
missing permission, are raised as they are."""


class ClientPool:
    """Makes the clients of a connection: a producer and an admin that all threads share, and consumers.

    ``access``: keyword arguments of every client (``user``, ``tls`` …); ``connect_seconds``: time within which the
    broker must answer an admin's call. A forked child gets clients of its own, and leaves its parent's alone.
    """

    def __init__(self, addresses: str | None, access: dict[str, Any], connect_seconds: float) -> None:
        self._addresses = addresses
        self._access = access
        self._connect_seconds = connect_seconds
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    @property
    def producer(self) -> Producer:
        with self._own():
            if self._producer is None:
                self._producer = Producer(self._addresses, **self._access)
            return self._producer

    @property
    def admin(self) -> Admin:
        with self._own():
            if self._admin is None:
                self._admin = Admin(self._addresses, timeout=self._connect_seconds, **self._access)
            return self._admin

    def consumer(self) -> Consumer:
        """Return a new consumer, which its user closes."""
        return Consumer(self._addresses, **self._access)

    def group_consumer(self, group: str, topic: str, options: dict[str, Any]) -> GroupConsumer:
        """Return a new member of a group, which its user starts and closes."""
        return GroupConsumer(self._addresses, group, topic, start="first", **options, **self._access)

    def close(self) -> None:
        """Close the producer and the admin; in a forked child, forget them."""
        if os.getpid() == self._pid:
            for client in (self._producer, self._admin):
                if client is not None:
                    client.close()
        self._producer = self._admin = None

    def _own(self) -> threading.Lock:
        """Forget the parent's clients in a forked child; return the lock."""
        if os.getpid() != self._pid:
            self._lock = threading.Lock()  # another thread of the parent may have held it
            self._producer = self._admin = None
            self._pid = os.getpid()
        return self._lock
