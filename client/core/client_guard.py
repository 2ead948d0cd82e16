"""Check that a client may still be used: it is not closed, and this is not a forked child of its process."""

from __future__ import annotations

import os

from ..errors import ClientClosed, ForkedClient


class Guard:
    """Remembers the process that created a client, and whether the client was closed. ``name``: the client's class."""

    __slots__ = ("_name", "_pid", "closed")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        """True in a child process of the one that created the client."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``ClientClosed`` or ``ForkedClient`` if the client cannot be used."""
        self.check_fork()
        if self.closed:
            raise ClientClosed(f"this {self._name} was closed; create a new one")

    def check_fork(self) -> None:
        """Raise ``ForkedClient`` in a child process of the one that created the client."""
        if os.getpid() != self._pid:
            raise ForkedClient(
                f"this {self._name} was created in process {self._pid} and is used in its child {os.getpid()}, where "
                f"its connections belong to the parent; create a new {self._name} after the fork"
            )
