"""Whether a client may still be used: not after it was closed, nor in a process that was forked from its own."""

from __future__ import annotations

import os

from ..errors import ClientClosed, ForkedClient


class Guard:
    """Knows the process that a client was made in, and whether it was closed. ``name``: of the client's class."""

    __slots__ = ("_name", "_pid", "closed")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``ClientClosed`` or ``ForkedClient`` where the client cannot be used."""
        if os.getpid() != self._pid:
            raise ForkedClient(
                f"this {self._name} was made in process {self._pid} and is used in its child {os.getpid()}, where its "
                f"connections belong to the parent; make a new {self._name} after the fork"
            )
        if self.closed:
            raise ClientClosed(f"this {self._name} was closed; make a new one")
