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


class FailingFiles(HookedFiles):
    """The ``nth`` call of ``operation`` fails with ``number``.

    ``number`` ENOSPC: from then on whatever needs room fails too, until the file ``until`` is there.
    """

    def __init__(
        self, root: Path, operation: str, nth: int, number: int, witness: int, *, path: str = ".*", until: str = ""
    ) -> None:
        super().__init__(root)
        self._operation = operation
        self._left = nth
        self._number = number
        self._witness = witness
        self._path = re.compile(path)
        self._needs_room = NEEDS_ROOM | {operation}
        self._until = Path(until) if until else None
        self._fired = False
        self._store: MessageStore | None = None

    def watch(self) -> None:
        """Know the store, and so how much of the log it holds for flushed. In a process of one broker."""
        original = MessageStore.open

        @functools.wraps(original)
        def noted(store: MessageStore, *arguments: Any, **options: Any) -> Any:
            self._store = store
            return original(store, *arguments, **options)

        setattr(MessageStore, "open", noted)  # noqa: B010 - mypy knows no other way

    def before(self, operation: str, path: str) -> None:
        """Raise the error where it is due."""
        if self._number == errno.ENOSPC and operation == "write" and path in WRITTEN_IN_PLACE:
            return
        with self._counting:
            if operation == self._operation and self._path.fullmatch(path):
                self._left -= 1
                if self._left == 0:
                    self._fired = True
                    flushed = self._store.flushed_offset if self._store is not None else 0
                    os.write(self._witness, f"error {operation} {path} {flushed}\n".encode())
                    self._fail(path)
            if self._fired and self._full and operation in self._needs_room:
                self._fail(path)

    @property
    def _full(self) -> bool:
        return self._number == errno.ENOSPC and self._until is not None and not self._until.exists()

    def _fail(self, path: str) -> None:
        raise OSError(self._number, os.strerror(self._number), path)

    def free_bytes(self, path: Path) -> int:
        """Next to nothing while the disk is full."""
        return 4096 if self._fired and self._full else super().free_bytes(path)
