"""File system with a hook before and after every change, where faults and named points are inserted."""

from __future__ import annotations

import threading
from pathlib import Path

from flintmq.broker.store.files.file_system import Files

OPERATIONS = ("open", "resize", "allocate", "write", "sync_data", "sync_folder", "rename", "unlink")
"""Operations that ``before`` and ``after`` are called with. ``open``: only if the file is created."""


class HookedFiles(Files):
    """The operating system's files below ``root``. Subclasses define what happens around a change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[int, str] = {}
        self._counting = threading.Lock()

    def before(self, operation: str, path: str) -> None:
        """Run before a change. ``path``: relative to the store. An exception raised here reaches the store."""

    def after(self, operation: str, path: str) -> None:
        """Run after a change."""

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else ".."

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open the file and note its path."""
        name = self._name(path)
        makes = create and not path.exists()
        if makes:
            self.before("open", name)
        fd = super().open(path, create=create)
        self._paths[fd] = name
        if makes:
            self.after("open", name)
        return fd

    def resize(self, fd: int, size: int) -> None:
        self.before("resize", self._paths[fd])
        super().resize(fd, size)
        self.after("resize", self._paths[fd])

    def allocate(self, fd: int, at: int, size: int) -> None:
        self.before("allocate", self._paths[fd])
        super().allocate(fd, at, size)
        self.after("allocate", self._paths[fd])

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self.before("write", self._paths[fd])
        super().write(fd, data, at)
        self.after("write", self._paths[fd])

    def sync_data(self, fd: int) -> None:
        """Sync; a change, because it determines what a power cut leaves."""
        self.before("sync_data", self._paths[fd])
        super().sync_data(fd)
        self.after("sync_data", self._paths[fd])

    def sync_folder(self, path: Path) -> None:
        """Sync the folder; a change, because it determines what a power cut leaves."""
        self.before("sync_folder", self._name(path))
        super().sync_folder(path)
        self.after("sync_folder", self._name(path))

    def rename(self, source: Path, target: Path) -> None:
        """Rename; a change, reported by the new name, which an open descriptor has from now on."""
        old, new = self._name(source), self._name(target)
        self.before("rename", new)
        super().rename(source, target)
        for fd, name in list(self._paths.items()):
            if name == old:
                self._paths[fd] = new
        self.after("rename", new)

    def unlink(self, path: Path) -> None:
        self.before("unlink", self._name(path))
        super().unlink(path)
        self.after("unlink", self._name(path))
