"""File system of a process that dies at its n-th change."""

from __future__ import annotations

from pathlib import Path

from tests.store_tools import UnsyncedFiles


class Died(Exception):
    """The process is dead: nothing it still does has any effect."""


class DyingFiles(UnsyncedFiles):
    """File system on which the first ``lives`` changes happen; the next one raises ``Died``, and so does every later
    one.

    Everything written before stays, as after kill -9. ``half``: the write that dies writes its first half.
    """

    def __init__(self, lives: int, *, half: bool = False) -> None:
        self.lives = lives
        self._half = half

    @property
    def dead(self) -> bool:
        """Return whether a change was refused."""
        return self.lives < 0

    def _change(self) -> bool:
        self.lives -= 1
        return self.lives >= 0

    def _change_or_die(self) -> None:
        if not self._change():
            raise Died

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open; a change if the file is created."""
        if create and not path.exists():
            self._change_or_die()
        return super().open(path, create=create)

    def resize(self, fd: int, size: int) -> None:
        self._change_or_die()
        super().resize(fd, size)

    def allocate(self, fd: int, at: int, size: int) -> None:
        self._change_or_die()
        super().allocate(fd, at, size)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        if not self._change():
            if self._half and self.lives == -1:
                super().write(fd, memoryview(data)[: len(data) // 2], at)
            raise Died
        super().write(fd, data, at)

    def sync_data(self, fd: int) -> None:
        """Sync; the process may die here."""
        self._change_or_die()

    def sync_folder(self, path: Path) -> None:
        """Sync the folder; the process may die here."""
        self._change_or_die()

    def rename(self, source: Path, target: Path) -> None:
        """Rename; a change."""
        self._change_or_die()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._change_or_die()
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        """Create the folder; a change if it did not exist."""
        if not path.is_dir():
            self._change_or_die()
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        """Remove the folder; a change."""
        self._change_or_die()
        super().remove_folder(path)
