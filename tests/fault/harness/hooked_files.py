"""Files that call somebody before and after every change: where faults and named points are put in."""

from __future__ import annotations

import threading
from pathlib import Path

from flintmq.broker.store.files.file_system import Files

OPERATIONS = ("open", "resize", "allocate", "write", "sync_data", "sync_folder", "rename", "unlink")
"""What ``before`` and ``after`` are called with. ``open``: only of a file that is made."""


class HookedFiles(Files):
    """The operating system's files below ``root``. Subclasses say what happens around a change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[int, str] = {}
        self._counting = threading.Lock()

    def before(self, operation: str, path: str) -> None:
        """A change is about to happen; ``path``: below the store. What this raises, the store gets."""

    def after(self, operation: str, path: str) -> None:
        """A change has happened."""

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else ".."

    def open(self, path: Path, *, create: bool = False) -> int:
        """Noted with its path."""
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
        """A change."""
        self.before("resize", self._paths[fd])
        super().resize(fd, size)
        self.after("resize", self._paths[fd])

    def allocate(self, fd: int, at: int, size: int) -> None:
        """A change."""
        self.before("allocate", self._paths[fd])
        super().allocate(fd, at, size)
        self.after("allocate", self._paths[fd])

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """A change."""
        self.before("write", self._paths[fd])
        super().write(fd, data, at)
        self.after("write", self._paths[fd])

    def sync_data(self, fd: int) -> None:
        """A change of what a cut would leave."""
        self.before("sync_data", self._paths[fd])
        super().sync_data(fd)
        self.after("sync_data", self._paths[fd])

    def sync_folder(self, path: Path) -> None:
        """A change of what a cut would leave."""
        self.before("sync_folder", self._name(path))
        super().sync_folder(path)
        self.after("sync_folder", self._name(path))

    def rename(self, source: Path, target: Path) -> None:
        """A change, by the new name; a file that stays open has it from now on."""
        old, new = self._name(source), self._name(target)
        self.before("rename", new)
        super().rename(source, target)
        for fd, name in list(self._paths.items()):
            if name == old:
                self._paths[fd] = new
        self.after("rename", new)

    def unlink(self, path: Path) -> None:
        """A change."""
        self.before("unlink", self._name(path))
        super().unlink(path)
        self.after("unlink", self._name(path))
