"""File system calls that fail: one call with an I/O error, or every call that needs space while the disk is full."""

from __future__ import annotations

import errno
import functools
import os
import re
from pathlib import Path
from typing import Any

from flintmq.broker.store import MessageStore

from .hooked_files import HookedFiles

NEEDS_ROOM = frozenset({"open", "allocate", "write"})
"""Operations that a full disk refuses. A resize needs no blocks and a rename rarely does: a rename fails only as the
first failure."""
WRITTEN_IN_PLACE = re.compile(r"checkpoint|commitlog/\d{20}")
"""Files of which only bytes with blocks are written."""
WRITTEN_ONCE = ("commitlog", "consumequeue", "index", "checkpoint")
"""Files and folders that are written once: data of theirs that did not reach the disk is not written again."""


class FailingFiles(HookedFiles):
    """File system on which the ``nth`` call of ``operation`` for a matching ``path`` fails with ``number``.

    ``fills``, with ENOSPC: from then on every call that needs space fails too, until there is ``room`` again.
    """

    def __init__(
        self, root: Path, operation: str, nth: int, number: int, *, path: str = ".*", fills: bool = False
    ) -> None:
        super().__init__(root)
        self._operation = operation
        self._left = nth
        self._number = number
        self._path = re.compile(path)
        self._needs_room = NEEDS_ROOM | {operation}
        self._fills = fills
        self._made_room = False
        self.failed = ""
        """Operation and path of the call that failed; empty until the fault happens."""

    def can_fail(self, operation: str, path: str) -> bool:
        """Return whether the fault may happen at such a call."""
        if operation != self._operation or (self._number == errno.ENOSPC and _needs_no_room(operation, path)):
            return False
        return self._path.fullmatch(path) is not None

    def before(self, operation: str, path: str) -> None:
        """Raise the error when it is due."""
        with self._counting:
            if self.can_fail(operation, path):
                self._left -= 1
                if self._left == 0:
                    self.failed = f"{operation} {path}"
                    self.say()
                    self._fail(path)
            if self.full and operation in self._needs_room and not _needs_no_room(operation, path):
                self._fail(path)

    def say(self) -> None:
        """Report the fault; called when it happens."""

    @property
    def full(self) -> bool:
        """Return whether the disk is full now."""
        return self._fills and bool(self.failed) and not self.room()

    def room(self) -> bool:
        """Return whether there is space again after the fault."""
        return self._made_room

    def make_room(self) -> None:
        """Provide space from now on."""
        self._made_room = True

    def _fail(self, path: str) -> None:
        raise OSError(self._number, os.strerror(self._number), path)

    def free_bytes(self, path: Path) -> int:
        """Return nearly 0 while the disk is full."""
        return 4096 if self.full else super().free_bytes(path)


def _needs_no_room(operation: str, path: str) -> bool:
    return operation == "write" and WRITTEN_IN_PLACE.fullmatch(path) is not None


class FailingInBroker(FailingFiles):
    """Failing file system in a broker's process. The disk is full until the file ``until`` exists; the fault is written
    to ``witness``."""

    def __init__(
        self, root: Path, operation: str, nth: int, number: int, witness: int, *, path: str = ".*", until: str = ""
    ) -> None:
        super().__init__(root, operation, nth, number, path=path, fills=number == errno.ENOSPC and bool(until))
        self._witness = witness
        self._until = Path(until)
        self._store: MessageStore | None = None

    def watch(self) -> None:
        """Note the process's only store, to know how much of its log is flushed."""
        original = MessageStore.open

        @functools.wraps(original)
        def noted(store: MessageStore, *arguments: Any, **options: Any) -> Any:
            self._store = store
            return original(store, *arguments, **options)

        setattr(MessageStore, "open", noted)  # noqa: B010 - a plain assignment to a method is an error for mypy

    def say(self) -> None:
        """Write the fault and the flushed offset to the witness file."""
        flushed = self._store.flushed_offset if self._store is not None else 0
        os.write(self._witness, f"error {self.failed} {flushed}\n".encode())

    def room(self) -> bool:
        """Return whether the harness has created the file."""
        return self._until.exists()
