"""Files of a machine whose power may go: what was not synced may be lost, page by page and name by name.

The files are real, so maps work. Beside them stands what a disk is sure to hold: a copy of each file as it was at its
last ``sync_data``, and the names of each folder as of its last ``sync_folder``. A cut makes a new tree out of both:
every page written since may have reached the disk or not, and of the changes of names that were not synced some first
ones have.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

from flintmq.broker.store.files import Files


class PowerCut(Exception):
    """The power is gone; nothing that still happens has any effect."""


class FileNode:
    """A file, whatever its name."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.last: bytes | None = None
        """What it held when it lost its name."""


class FolderNode:
    """A folder: its names as they are, and as they are on the disk for sure."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | FolderNode


class Change:
    """A change of names in one folder, or in two at once (a rename)."""

    def __init__(
        self, *, removed: tuple[FolderNode, str] | None = None, added: tuple[FolderNode, str, Node] | None = None
    ) -> None:
        self.removed = removed
        self.added = added

    def touches(self, folder: FolderNode) -> bool:
        """Whether syncing that folder makes it durable."""
        return (self.removed is not None and self.removed[0] is folder) or (
            self.added is not None and self.added[0] is folder
        )

    def happen(self) -> None:
        """Make it durable."""
        if self.removed is not None:
            self.removed[0].durable.pop(self.removed[1], None)
        if self.added is not None:
            self.added[0].durable[self.added[1]] = self.added[2]


class PowerCutFiles(Files):
    """The files below ``root``. The power goes at the ``lives``-th call; ``cut`` then makes the tree that is left.

    Any thread may use them, as any may use a broker's.
    """

    def __init__(self, root: Path, lives: int) -> None:
        self._root = root
        self.lives = lives
        self.changing = threading.RLock()
        """Held for every change, and for the whole of a cut."""
        self._folder = FolderNode()
        self._fds: dict[int, FileNode] = {}
        self._pending: list[Change] = []
        if root.is_dir():
            self._load(root, self._folder)

    def _load(self, path: Path, folder: FolderNode) -> None:
        for each in path.iterdir():
            node: Node = FolderNode() if each.is_dir() else FileNode(each.read_bytes())
            if isinstance(node, FolderNode):
                self._load(each, node)
            folder.names[each.name] = folder.durable[each.name] = node

    def _live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise PowerCut

    def _find_folder(self, path: Path) -> FolderNode:
        node: Node = self._folder
        for name in path.relative_to(self._root).parts:
            assert isinstance(node, FolderNode)
            node = node.names[name]
        assert isinstance(node, FolderNode)
        return node

    def _add(self, path: Path, node: Node) -> None:
        folder = self._find_folder(path.parent)
        folder.names[path.name] = node
        self._pending.append(Change(added=(folder, path.name, node)))

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor; a new file's name is not durable yet."""
        with self.changing:
            self._live()
            is_new = not path.exists()
            fd = super().open(path, create=create)
            if is_new:
                self._add(path, FileNode())
            node = self._find_folder(path.parent).names[path.name]
            assert isinstance(node, FileNode)
            self._fds[fd] = node
            return fd

    def close(self, fd: int) -> None:
        """Always possible."""
        with self.changing:
            self._fds.pop(fd, None)
            super().close(fd)

    def resize(self, fd: int, size: int) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            super().resize(fd, size)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            super().allocate(fd, at, size)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            super().write(fd, data, at)

    def sync_data(self, fd: int) -> None:
        """What the file holds now is durable, and its size."""
        with self.changing:
            self._live()
            self._fds[fd].durable = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_folder(self, path: Path) -> None:
        """What changed in this folder is durable."""
        with self.changing:
            self._live()
            if path == self._root.parent:
                return
            folder = self._find_folder(path)
            for change in [change for change in self._pending if change.touches(folder)]:
                change.happen()
                self._pending.remove(change)

    def rename(self, source: Path, target: Path) -> None:
        """Not durable yet, but in both folders at once."""
        with self.changing:
            self._live()
            left, entered = self._find_folder(source.parent), self._find_folder(target.parent)
            self._forget(target)
            super().rename(source, target)
            node = entered.names[target.name] = left.names.pop(source.name)
            self._pending.append(Change(removed=(left, source.name), added=(entered, target.name, node)))

    def unlink(self, path: Path) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            self._forget(path)
            super().unlink(path)
            folder = self._find_folder(path.parent)
            del folder.names[path.name]
            self._pending.append(Change(removed=(folder, path.name)))

    def _forget(self, path: Path) -> None:
        node = self._find_folder(path.parent).names.get(path.name)
        if isinstance(node, FileNode):
            node.last = path.read_bytes()

    def make_folder(self, path: Path) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for each in reversed(missing):
                each.mkdir()
                if each != self._root:
                    self._add(each, FolderNode())

    def remove_folder(self, path: Path) -> None:
        """Not durable yet."""
        with self.changing:
            self._live()
            super().remove_folder(path)
            folder = self._find_folder(path.parent)
            del folder.names[path.name]
            self._pending.append(Change(removed=(folder, path.name)))

    # The cut.

    def cut(self, target: Path, source: random.Random) -> None:
        """Make at ``target`` a tree that the disk may hold now."""
        for change in self._pending[: source.randint(0, len(self._pending))]:
            change.happen()
        held = dict(self._current(self._root, self._folder))
        page_bytes = source.choice([512, 4096, 4096])
        survival = source.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        target.mkdir()
        for path, node in _walk(self._folder, target):
            if isinstance(node, FolderNode):
                path.mkdir()
            else:
                now = node.last if node.last is not None and node not in held else held.get(node, node.durable)
                path.write_bytes(_mix(node.durable, now, page_bytes, survival, source))

    def _current(self, path: Path, folder: FolderNode) -> Iterator[tuple[FileNode, bytes]]:
        for name, node in folder.names.items():
            if isinstance(node, FolderNode):
                yield from self._current(path / name, node)
            else:
                yield node, (path / name).read_bytes()


def _walk(folder: FolderNode, path: Path) -> Iterator[tuple[Path, Node]]:
    for name, node in folder.durable.items():
        yield path / name, node
        if isinstance(node, FolderNode):
            yield from _walk(node, path / name)


def _mix(durable: bytes, now: bytes, page_bytes: int, survival: float, source: random.Random) -> bytes:
    """The file with some of the pages that were written since it was synced."""
    if durable == now:
        return durable
    size = source.choice([len(durable), len(now)])
    mixed = bytearray(durable[:size].ljust(size, b"\0"))
    for at in range(0, min(size, len(now)), page_bytes):
        page = now[at : min(at + page_bytes, size)]
        if mixed[at : at + len(page)] != page and source.random() < survival:
            mixed[at : at + len(page)] = page
    return bytes(mixed)
