"""The seam between the store and the file system: every access goes through one ``Files`` object.

Tests pass the store a ``Files`` object that fails at the n-th call or discards everything that was not synced. Only
the index is written through maps, under one rule: a mapped range must be allocated (``allocate``) before it is touched,
because touching a hole that the file system cannot fill raises SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import resource
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ....protocol.store_files import FILE_MODE, FOLDER_MODE
from . import system_calls

READ_WRITE = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
ZERO_CHUNK = bytes(1 << 20)


class Files:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading and writing; ``create`` creates the file if it does not exist."""
        return open_file(path, READ_WRITE | (os.O_CREAT if create else 0))

    def close(self, fd: int) -> None:
        os.close(fd)

    @contextlib.contextmanager
    def opened(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """Open a file as ``open`` does, and close it on exit."""
        fd = self.open(path, create=create)
        try:
            yield fd
        finally:
            self.close(fd)

    def size(self, fd: int) -> int:
        """Return the file's logical size in bytes."""
        return os.fstat(fd).st_size

    def resize(self, fd: int, size: int) -> None:
        """Set the logical size. Never shrink a file below the end of a map of it."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Allocate disk blocks for ``[at, at + size)``. Raises OSError ENOSPC if the disk is full."""
        try:
            system_calls.allocate(fd, at, size)
        except OSError as error:
            raise _named(error, fd) from None

    def read(self, fd: int, buffer: memoryview, at: int, *, wait: bool) -> int:
        """Fill ``buffer`` from ``at``; returns the number of bytes read, fewer at the end of the file.

        With ``wait`` False, reads only bytes in the page cache, possibly none; if the file system cannot tell which
        those are, reads from disk.
        """
        done = 0
        flags = 0 if wait else _NOWAIT
        while done < len(buffer):
            try:
                count = os.preadv(fd, [buffer[done:]], at + done, flags)
            except BlockingIOError:
                return done
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP or not flags:
                    raise _named(error, fd) from None
                flags = 0
                continue
            if count == 0:
                return done
            done += count
            # A short read without waiting ends at the first page that is not cached: reading on would only fail.
            if flags and done < len(buffer):
                return done
        return done

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write all of ``data`` at ``at``. Raises OSError ENOSPC if the disk is full; part may have been written."""
        try:
            count = os.pwrite(fd, data, at)
            while count < len(data):  # nearly always everything is written at once
                count += os.pwrite(fd, memoryview(data)[count:], at + count)
        except OSError as error:
            raise _named(error, fd) from None

    def sync_data(self, fd: int) -> None:
        """Call fdatasync, which also covers pages written through a map; releases the GIL.

        If ext4 is shut down meanwhile (its device disappeared), fdatasync may succeed for data that never reached the
        disk. An empty write, which changes nothing, then fails with EIO; it costs 0.2 µs.
        """
        try:
            system_calls.sync_data(fd)
            os.pwrite(fd, b"", 0)
        except OSError as error:
            raise _named(error, fd) from None

    def sync_folder(self, path: Path) -> None:
        """Put the folder's entries on disk."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise _named(error, fd) from None
        finally:
            os.close(fd)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map the first ``size`` bytes of the file, shared and writable."""
        return mmap.mmap(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents."""
        if not path.parent.is_dir():
            self.make_folder(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def data_ranges(self, fd: int, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[at, end)`` that may contain non-zero bytes."""
        while at < end:
            try:
                begin = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data up to the end of the file
                    return
                raise
            if begin >= end:
                return
            stop = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
            yield begin, stop
            at = stop

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that an unprivileged user can still write on the file system of ``path``."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def open_file(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Return a descriptor of a file of a store or a backup; a file that is created gets ``mode``.

    Raises OSError; also for a link, which could lead to a file outside of the folder, and for a pipe or a device, which
    would let the caller wait without end.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = f"it is a link, where a file belongs: put the file there ({error.strerror})"
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is a pipe, a folder or a device, where a file belongs: remove it", str(path))
    return fd


def is_plain_file(path: Path) -> bool:
    """Return whether a file that ``open_file`` opens is there: not a link."""
    return path.is_file() and not path.is_symlink()


def _named(error: OSError, fd: int) -> OSError:
    """Add the file's name to the error of a call that knows only a descriptor."""
    with contextlib.suppress(OSError):
        error.filename = system_calls.path_of(fd)
    return error


class Descriptor:
    """An open file that is closed when its last reference is dropped.

    Retention removes files while other threads read them. A reader that holds this object keeps the descriptor's number
    from being reused for another file in the middle of its read.
    """

    __slots__ = ("_files", "fd", "used")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self.fd = fd
        self.used = True
        """Set by each use; ``OpenFiles`` clears it when it looks for a file to close."""

    def close(self) -> None:
        """Close now; idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._files.close(fd)

    def __del__(self) -> None:
        self.close()


def zero(files: Files, fd: int, at: int, end: int) -> int:
    """Overwrite ``[at, end)`` with zeros; returns the end of the last non-zero byte, relative to ``at``."""
    reached = 0
    for begin, stop in list(files.data_ranges(fd, at, end)):
        for chunk in range(begin, stop, len(ZERO_CHUNK)):
            size = min(len(ZERO_CHUNK), stop - chunk)
            held = bytearray(size)
            files.read(fd, memoryview(held), chunk, wait=True)
            # Zeros are not written again: that would only make clean pages dirty.
            if held != ZERO_CHUNK[:size]:
                files.write(fd, memoryview(ZERO_CHUNK)[:size], chunk)
                reached = chunk - at + len(held.rstrip(b"\0"))
    return reached


def create_whole(files: Files, path: Path, size: int, scratch_folder: Path, *, allocate: int = 0) -> int:
    """Create a file of ``size`` zeros atomically; returns its descriptor.

    The file is made under another name in ``scratch_folder`` (on the same file system), its first ``allocate`` bytes
    get disk blocks, and it is synced before it is renamed. A crash therefore never leaves a file of the wrong length,
    with which RocketMQ would refuse to start.
    """
    files.make_folder(scratch_folder)
    scratch = scratch_folder / f"new-{path.parent.name}-{path.name}"
    fd = files.open(scratch, create=True)
    try:
        # A scratch file of an interrupted start may have content: cut it first, so that every byte is zero.
        files.resize(fd, 0)
        files.resize(fd, size)
        if allocate:
            files.allocate(fd, 0, min(allocate, size))
        files.sync_data(fd)
        files.rename(scratch, path)
        files.sync_folder(path.parent)
    except OSError:
        files.close(fd)
        if scratch.exists():  # on a full disk it would take space that other files need
            files.unlink(scratch)
        raise
    return fd


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: write a temporary file, sync, rename, sync the folder."""
    scratch = path.with_name(path.name + ".tmp")
    with files.opened(scratch, create=True) as fd:
        # A scratch file of an interrupted start may be longer than the content.
        files.resize(fd, 0)
        files.write(fd, content, 0)
        files.sync_data(fd)
    files.rename(scratch, path)
    files.sync_folder(path.parent)


def make_durable_folder(files: Files, path: Path) -> None:
    """Create a folder and its missing parents durably."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        files.make_folder(folder)
        files.sync_folder(folder.parent)


def move_aside(files: Files, path: Path, aside_folder: Path, name: str) -> Path:
    """Move a damaged file or folder into ``aside_folder``, durably; returns its new path."""
    make_durable_folder(files, aside_folder)
    target = aside_folder / f"{name}-{time.time_ns()}"
    files.rename(path, target)
    files.sync_folder(aside_folder)
    files.sync_folder(path.parent)
    return target


def remove_content(files: Files, folder: Path) -> None:
    """Remove everything in a folder, but not the folder itself."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        # A link to a folder is removed as a link: its target may be outside of the store.
        if path.is_dir() and not path.is_symlink():
            remove_content(files, path)
            files.remove_folder(path)
        else:
            files.unlink(path)


# ---- File descriptors: the number reserved for the store, and the pool of open ConsumeQueue files.
#
# Every queue has at least one file, so a broker with a hundred thousand queues would need more descriptors
# than a process may have. The pool bounds the number of open files. A closed file is reopened when it is read
# or written, which takes about 10 µs.

STORE_DESCRIPTORS_MIN = 4096
"""Minimum number of descriptors reserved for the store, unless that is more than half of all."""
_UNBOUNDED = 2**31
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)

log = logging.getLogger(__name__)


def descriptors_max() -> int:
    """Return the maximum number of descriptors of this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if most == resource.RLIM_INFINITY else most


def store_descriptors() -> int:
    """Return the number of descriptors that are reserved for the store's files."""
    most = descriptors_max()
    return min(most // 2, max(most // 4, STORE_DESCRIPTORS_MIN))


class HasFiles(Protocol):
    """A sequence of files, some of them open."""

    def shut(self, start: int) -> None:
        """Drop the descriptor of the file that begins at ``start``."""


class OpenFiles:
    """The open files, at most ``files_max`` (default: half of the descriptors reserved for the store).

    The clock algorithm picks the file to close among those not used recently. Its unsynced bytes stay in the page cache
    until the next sync, which reopens it; Linux reports a write error that happened meanwhile to the next descriptor
    (``errseq``). A reader that is using a file keeps its descriptor. Thread-safe.
    """

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = store_descriptors() // 2 if files_max is None else files_max
        self.lock = threading.Lock()
        """Held to change the descriptor of a file."""
        self._open: OrderedDict[Descriptor, tuple[HasFiles, int]] = OrderedDict()
        self._shortage_logged = False

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: HasFiles, start: int, file: Descriptor) -> None:
        """Add an opened file, which its owner already refers to. The caller holds the lock."""
        self._open[file] = owner, start
        while len(self._open) > self.files_max and self._shut_one():
            if not self._shortage_logged:
                self._shortage_logged = True
                log.warning(
                    "more queues are in use than the %d whose files may be open at once: files are closed and opened "
                    "again, which slows each message down; raise the open-file limit (ulimit -Hn, LimitNOFILE)",
                    self.files_max,
                )

    def left(self, file: Descriptor) -> None:
        """Forget a file that its owner no longer refers to. The caller holds the lock."""
        self._open.pop(file, None)

    def make_room(self, error: OSError) -> None:
        """Free one descriptor after a file could not be opened. Raises ``error`` if that would not help."""
        with self.lock:
            if error.errno not in _NONE_LEFT or not self._shut_one():
                raise error

    def _shut_one(self) -> bool:
        for _ in range(2 * len(self._open)):  # the first round may find every file used, and only clears the marks
            file, (owner, start) = self._open.popitem(last=False)
            if not file.used:
                owner.shut(start)
                return True
            file.used = False
            self._open[file] = owner, start
        return False
