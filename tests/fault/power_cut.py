"""Files of a machine whose power may go: what was not synced may be lost, page by page and name by name.

The files are real, so maps work. Beside them stands what a disk is sure to hold: a copy of each file as it was at its
last ``sync_data``, and the names of each folder as of its last ``sync_folder``. A cut makes a new tree out of both:
every page written since may have reached the disk or not, and of the changes of names that were not synced some first
ones have; a ``Fate`` says which. The files go on as they were, so that one run can be cut at each of its moments.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from flintmq.broker.store.files.file_system import Files


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
Tree = dict[Path, bytes | None]
"""The content of files, and None for folders, by their path; a folder stands before what is in it."""


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

    def happen(self, names: dict[FolderNode, dict[str, Node]]) -> None:
        """Make it durable, in these names of the folders."""
        if self.removed is not None:
            folder, name = self.removed
            names.setdefault(folder, dict(folder.durable)).pop(name, None)
        if self.added is not None:
            folder, name, node = self.added
            names.setdefault(folder, dict(folder.durable))[name] = node


class Fate(Protocol):
    """What becomes of that which was not synced when the power goes."""

    def changes(self, pending: int) -> int:
        """How many of the ``pending`` changes of names have happened, the first ones."""

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """What the file at ``path``, below the root, has of what was written (``now``) since it was ``durable``."""


class Nothing:
    """Only what was synced is there."""

    def changes(self, pending: int) -> int:
        """None."""
        return 0

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """As it was synced."""
        return durable


class Everything:
    """The disk was fast: all is there."""

    def changes(self, pending: int) -> int:
        """All."""
        return pending

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """As it was written."""
        return now


class AtRandom:
    """Some first changes, and some pages."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._page_bytes = source.choice([512, 4096, 4096])
        self._survival = source.choice([0.0, 0.1, 0.5, 0.9, 1.0])

    def changes(self, pending: int) -> int:
        """Any number."""
        return self._source.randint(0, pending)

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """Some of the pages; the size is either."""
        if durable == now:
            return durable
        size = self._source.choice([len(durable), len(now)])
        mixed = bytearray(durable[:size].ljust(size, b"\0"))
        for at in range(0, min(size, len(now)), self._page_bytes):
            page = now[at : min(at + self._page_bytes, size)]
            if mixed[at : at + len(page)] != page and self._source.random() < self._survival:
                mixed[at : at + len(page)] = page
        return bytes(mixed)


class TornLog:
    """The CommitLog is there up to a byte; the others have the fate ``rest``."""

    def __init__(self, end_offset: int, rest: Fate) -> None:
        self._end_offset = end_offset
        self._rest = rest

    def changes(self, pending: int) -> int:
        """As of the rest."""
        return self._rest.changes(pending)

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """Of a file of the log what lies below the end."""
        if path.parent.name != "commitlog":
            return self._rest.content(path, durable, now)
        kept = max(self._end_offset - int(path.name), 0)
        return now[:kept] + durable[kept:]


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
            durable: dict[FolderNode, dict[str, Node]] = {}
            for change in [change for change in self._pending if change.touches(folder)]:
                change.happen(durable)
                self._pending.remove(change)
            for each, names in durable.items():
                each.durable = names

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

    def cut(self, target: Path, fate: Fate) -> None:
        """Make at ``target`` the tree that is left if the power goes now."""
        write_tree(target, self.remains(fate))

    def remains(self, fate: Fate) -> Tree:
        """The tree that is left if the power goes now."""
        durable: dict[FolderNode, dict[str, Node]] = {}
        for change in self._pending[: fate.changes(len(self._pending))]:
            change.happen(durable)
        held = dict(self._current(self._root, self._folder))
        tree: Tree = {}
        for path, node in _walk(self._folder, Path(), durable):
            if isinstance(node, FolderNode):
                tree[path] = None
            else:
                now = node.last if node.last is not None and node not in held else held.get(node, node.durable)
                tree[path] = fate.content(path, node.durable, now)
        return tree

    def _current(self, path: Path, folder: FolderNode) -> Iterator[tuple[FileNode, bytes]]:
        for name, node in folder.names.items():
            if isinstance(node, FolderNode):
                yield from self._current(path / name, node)
            else:
                yield node, (path / name).read_bytes()


def write_tree(target: Path, tree: Tree) -> None:
    """Make the tree at ``target``."""
    target.mkdir()
    for path, content in tree.items():
        if content is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(content)


def _walk(folder: FolderNode, path: Path, durable: dict[FolderNode, dict[str, Node]]) -> Iterator[tuple[Path, Node]]:
    for name, node in durable.get(folder, folder.durable).items():
        yield path / name, node
        if isinstance(node, FolderNode):
            yield from _walk(node, path / name, durable)
