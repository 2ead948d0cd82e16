"""File system of a machine whose power may be cut: unsynced data may be lost, page by page and name by name.

The files are real, so maps work. Beside them the object keeps what a disk is sure to hold: a copy of each file as of
its last ``sync_data``, and the names of each folder as of its last ``sync_folder``. A cut creates a new tree from both:
every page written since may have reached the disk or not, and so may a prefix of the unsynced changes of names; a
``Fate`` decides. The files themselves stay as they were, so that one run can be cut at each of its moments.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from flintmq.broker.store import StoreSettings
from flintmq.broker.store.files.file_system import Files


def tiny(policy: str) -> StoreSettings:
    """Return settings with files that roll all the time, smaller than a broker allows."""
    return StoreSettings(
        commitlog_file_bytes=64 * 1024,
        consumequeue_file_bytes=20 * 30,
        index_slots=50,
        index_entries=80,
        message_bytes_max=16 * 1024,
        allocate_step_bytes=16 * 1024,
        flush_policy=policy,
    )


class PowerCut(Exception):
    """The power was cut; nothing that still happens has any effect."""


class FileNode:
    """A file, independent of its name."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.last: bytes | None = None
        """Content of the file when it lost its name."""


class FolderNode:
    """A folder: its current names, and its durable names."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | FolderNode
Tree = dict[Path, bytes | None]
"""Content of each file and None for each folder, by path; a folder comes before its content."""


class Change:
    """A change of names in one folder, or in two at once (a rename)."""

    def __init__(
        self, *, removed: tuple[FolderNode, str] | None = None, added: tuple[FolderNode, str, Node] | None = None
    ) -> None:
        self.removed = removed
        self.added = added

    def touches(self, folder: FolderNode) -> bool:
        """Return whether syncing that folder makes the change durable."""
        return (self.removed is not None and self.removed[0] is folder) or (
            self.added is not None and self.added[0] is folder
        )

    def happen(self, names: dict[FolderNode, dict[str, Node]]) -> None:
        """Apply the change to these names of the folders."""
        if self.removed is not None:
            folder, name = self.removed
            names.setdefault(folder, dict(folder.durable)).pop(name, None)
        if self.added is not None:
            folder, name, node = self.added
            names.setdefault(folder, dict(folder.durable))[name] = node


class Fate(Protocol):
    """Decides which unsynced data survives a power cut."""

    def changes(self, pending: int) -> int:
        """Return how many of the ``pending`` changes of names survive, from the first on."""

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """Return the surviving content of the file at ``path``, relative to the root: ``durable`` was synced, ``now``
        was written."""


class Nothing:
    """Only synced data survives."""

    def changes(self, pending: int) -> int:
        return 0

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        return durable


class Everything:
    """All data survives."""

    def changes(self, pending: int) -> int:
        return pending

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        return now


class AtRandom:
    """A random prefix of the changes of names survives, and random pages."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._page_bytes = source.choice([512, 4096, 4096])
        self._survival = source.choice([0.0, 0.1, 0.5, 0.9, 1.0])

    def changes(self, pending: int) -> int:
        """Return any number of them."""
        return self._source.randint(0, pending)

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """Return the content with some of the new pages; the size is the old or the new one."""
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
    """The CommitLog survives up to a byte; other files have the fate ``rest``."""

    def __init__(self, end_offset: int, rest: Fate) -> None:
        self._end_offset = end_offset
        self._rest = rest

    def changes(self, pending: int) -> int:
        return self._rest.changes(pending)

    def content(self, path: Path, durable: bytes, now: bytes) -> bytes:
        """Return the part of a log file below the end offset."""
        if path.parent.name != "commitlog":
            return self._rest.content(path, durable, now)
        kept = max(self._end_offset - int(path.name), 0)
        return now[:kept] + durable[kept:]


class PowerCutFiles(Files):
    """The files below ``root``. The power is cut at the ``lives``-th call; ``cut`` then creates the tree that is left.

    Thread-safe, because every thread of a broker uses its files.
    """

    def __init__(self, root: Path, lives: int) -> None:
        self._root = root
        self.lives = lives
        self.changing = threading.RLock()
        """Held during every change, and during a whole cut."""
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
        """Open the file; the name of a new file is not durable yet."""
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
        """Close the file; allowed after the cut too."""
        with self.changing:
            self._fds.pop(fd, None)
            super().close(fd)

    def resize(self, fd: int, size: int) -> None:
        """Resize; not durable yet."""
        with self.changing:
            self._live()
            super().resize(fd, size)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Allocate; not durable yet."""
        with self.changing:
            self._live()
            super().allocate(fd, at, size)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write; not durable yet."""
        with self.changing:
            self._live()
            super().write(fd, data, at)

    def sync_data(self, fd: int) -> None:
        """Make the file's content and size durable."""
        with self.changing:
            self._live()
            self._fds[fd].durable = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_folder(self, path: Path) -> None:
        """Make the folder's changes durable."""
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
        """Rename; not durable yet, and atomic across both folders."""
        with self.changing:
            self._live()
            left, entered = self._find_folder(source.parent), self._find_folder(target.parent)
            self._forget(target)
            super().rename(source, target)
            node = entered.names[target.name] = left.names.pop(source.name)
            self._pending.append(Change(removed=(left, source.name), added=(entered, target.name, node)))

    def unlink(self, path: Path) -> None:
        """Unlink; not durable yet."""
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
        """Create the folder; not durable yet."""
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
        """Remove the folder; not durable yet."""
        with self.changing:
            self._live()
            super().remove_folder(path)
            folder = self._find_folder(path.parent)
            del folder.names[path.name]
            self._pending.append(Change(removed=(folder, path.name)))

    # The cut.

    def cut(self, target: Path, fate: Fate) -> None:
        """Create at ``target`` the tree that is left if the power is cut now."""
        write_tree(target, self.remains(fate))

    def remains(self, fate: Fate) -> Tree:
        """Return the tree that is left if the power is cut now."""
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
