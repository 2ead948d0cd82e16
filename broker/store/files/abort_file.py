"""The file ``abort``, which marks a store that a broker is running on. RocketMQ has the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .file_system import Files


class AbortFile:
    """``abort`` in the store's folder. If it exists at a start, the last process did not stop in an orderly way."""

    def __init__(self, files: Files, store: Path) -> None:
        self._files = files
        self._path = store / "abort"

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self._path.exists()

    def create(self) -> None:
        """Create the file with the number of this process, durably."""
        fd = self._files.open(self._path, create=True)
        try:
            self._files.resize(fd, 0)
            self._files.write(fd, str(os.getpid()).encode(), 0)
            self._files.sync_data(fd)
        finally:
            self._files.close(fd)
        self._files.sync_folder(self._path.parent)

    def remove(self) -> None:
        """Remove the file, durably. Everything else must be on disk."""
        self._files.unlink(self._path)
        self._files.sync_folder(self._path.parent)
