"""Files that fail: one call with an I/O error, or every call that needs room while the disk is full."""

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
"""What a full disk refuses. A size is no room, a rename mostly none: it fails where it is what failed first."""
WRITTEN_IN_PLACE = frozenset({"checkpoint"})
"""Files that have all of their blocks since the start."""
WRITTEN_ONCE = ("commitlog", "consumequeue", "index", "checkpoint")
"""Files and folders of which what did not reach the disk is not written again."""


class FailingFiles(HookedFiles):
    """The ``nth`` call of ``operation`` on a file whose path matches ``path`` fails with ``number``.

    ``fills``, with ENOSPC: from then on whatever needs room fails too, until there is ``room`` again.
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
        """Operation and path of the call that failed; empty: the fault did not come yet."""

    def can_fail(self, operation: str, path: str) -> bool:
        """Whether the fault may come at such a call."""
        needs_no_room = self._number == errno.ENOSPC and operation == "write" and path in WRITTEN_IN_PLACE
        return operation == self._operation and not needs_no_room and self._path.fullmatch(path) is not None

    def before(self, operation: str, path: str) -> None:
        """Raise the error where it is due."""
        with self._counting:
            if self.can_fail(operation, path):
                self._left -= 1
                if self._left == 0:
                    self.failed = f"{operation} {path}"
                    self.say()
                    self._fail(path)
            if self.full and operation in self._needs_room and path not in WRITTEN_IN_PLACE:
                self._fail(path)

    def say(self) -> None:
        """Called when the fault comes."""

    @property
    def full(self) -> bool:
        """Whether the disk is full now."""
        return self._fills and bool(self.failed) and not self.room()

    def room(self) -> bool:
        """Whether there is room again after the fault."""
        return self._made_room

    def make_room(self) -> None:
        """From now on there is."""
        self._made_room = True

    def _fail(self, path: str) -> None:
        raise OSError(self._number, os.strerror(self._number), path)

    def free_bytes(self, path: Path) -> int:
        """Next to nothing while the disk is full."""
        return 4096 if self.full else super().free_bytes(path)


class FailingInBroker(FailingFiles):
    """In a broker's process. It fills until the file ``until`` is there; ``witness`` is told of the fault."""

    def __init__(
        self, root: Path, operation: str, nth: int, number: int, witness: int, *, path: str = ".*", until: str = ""
    ) -> None:
        super().__init__(root, operation, nth, number, path=path, fills=number == errno.ENOSPC and bool(until))
        self._witness = witness
        self._until = Path(until)
        self._store: MessageStore | None = None

    def watch(self) -> None:
        """Know the store, and so how much of the log it holds for flushed. In a process of one broker."""
        original = MessageStore.open

        @functools.wraps(original)
        def noted(store: MessageStore, *arguments: Any, **options: Any) -> Any:
            self._store = store
            return original(store, *arguments, **options)

        setattr(MessageStore, "open", noted)  # noqa: B010 - mypy knows no other way

    def say(self) -> None:
        """With how much of the log is flushed."""
        flushed = self._store.flushed_offset if self._store is not None else 0
        os.write(self._witness, f"error {self.failed} {flushed}\n".encode())

    def room(self) -> bool:
        """Once the harness made the file."""
        return self._until.exists()
