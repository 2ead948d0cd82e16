"""The seam between the store and the file system: every access goes through one ``Files`` object.

A test gives the store another one, which fails at the n-th call or forgets what was not synced. Maps are written by the
kernels directly, so the rule that makes them safe stands here too: a mapped range is allocated (``allocate``) before it
is touched, because a hole that cannot be filled is a SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

READ_WRITE = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_LIBC = ctypes.CDLL(None, use_errno=True)  # unlike mmap.madvise, a call lets go of the interpreter
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_READ = 22
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
ZERO_CHUNK = bytes(1 << 20)


class Files:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor for reading and writing; ``create`` makes the file if it is not there."""
        return os.open(path, READ_WRITE | (os.O_CREAT if create else 0), 0o644)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """The file's logical size in bytes."""
        return os.fstat(fd).st_size

    def resize(self, fd: int, size: int) -> None:
        """Set the logical size. Never on a file that is mapped beyond it."""
        os.ftruncate(fd, size)

    def allocate(self, fd: int, at: int, size: int) -> None:
        """Make sure that ``[at, at + size)`` has blocks on disk; raises OSError ENOSPC where it cannot."""
        try:
            os.posix_fallocate(fd, at, size)
        except OSError as error:
            raise _named(error, fd) from None

    def read(self, fd: int, buffer: memoryview, at: int, *, wait: bool) -> int:
        """Fill ``buffer`` from ``at``; returns the bytes read, fewer at the file's end.

        With ``wait`` False returns only what is in the page cache, possibly 0 or fewer than asked for; where the file
        system cannot tell, it reads.
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
            if flags and done < len(buffer):
                return done
        return done

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write all of ``data`` at ``at``; raises OSError ENOSPC where there is no room (part may be written)."""
        view = memoryview(data)
        try:
            while len(view):
                count = os.pwrite(fd, view, at)
                view = view[count:]
                at += count
        except OSError as error:
            raise _named(error, fd) from None

    def sync_data(self, fd: int) -> None:
        """fdatasync: also of pages that were written through a map, and without holding the GIL.

        Where ext4 is shut down meanwhile (its device went), fdatasync may say yes for what never reached the disk. A
        write of nothing, which changes nothing, then says EIO; it costs 0.2 µs.
        """
        try:
            os.fdatasync(fd)
            os.pwrite(fd, b"", 0)
        except OSError as error:
            raise _named(error, fd) from None

    def sync_folder(self, path: Path) -> None:
        """Make the folder's entries durable."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise _named(error, fd) from None
        finally:
            os.close(fd)

    def map(self, fd: int, size: int) -> mmap.mmap:
        """The file's first ``size`` bytes, shared and writable."""
        return mmap.mmap(fd, size)

    def populate(self, fd: int, begin: int, address: int, size: int) -> None:
        """Have pages in memory, and mapped, for ``size`` bytes of a file from ``begin`` on, which lie at ``address`` of
        a map; both are a page's begin. They stay clean. Raises OSError, EINVAL where the system cannot (Linux before
        5.14)."""
        os.posix_fadvise(fd, begin, size, os.POSIX_FADV_WILLNEED)  # many pages at a time; mapping them is little then
        if _LIBC.madvise(address, size, _MADV_POPULATE_READ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it."""
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def data_ranges(self, fd: int, at: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of ``[at, end)`` that may hold anything but zeros."""
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
        """What an ordinary user may still write on the file system of ``path``."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def _named(error: OSError, fd: int) -> OSError:
    """The error of a call that knows only a descriptor, with the name of the file."""
    with contextlib.suppress(OSError):
        error.filename = str(Path(f"/proc/self/fd/{fd}").readlink())
    return error


class Descriptor:
    """An open file that is closed when nobody holds it any more.

    Retention takes files away beside readers in other threads: one that holds this keeps the number from coming to mean
    another file while it reads.
    """

    __slots__ = ("_files", "fd", "used")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self.fd = fd
        self.used = True
        """Whether it was used since somebody last looked."""

    def close(self) -> None:
        """Close now; idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._files.close(fd)

    def __del__(self) -> None:
        self.close()


def zero(files: Files, fd: int, at: int, end: int) -> int:
    """Write zeros over whatever ``[at, end)`` holds; returns how far behind ``at`` anything else stood."""
    reached = 0
    for begin, stop in list(files.data_ranges(fd, at, end)):
        for chunk in range(begin, stop, len(ZERO_CHUNK)):
            size = min(len(ZERO_CHUNK), stop - chunk)
            held = bytearray(size)
            files.read(fd, memoryview(held), chunk, wait=True)
            if held != ZERO_CHUNK[:size]:
                files.write(fd, memoryview(ZERO_CHUNK)[:size], chunk)
                reached = chunk - at + len(held.rstrip(b"\0"))
    return reached


def create_whole(
    files: Files, path: Path, size: int, scratch_folder: Path, *, allocate: int = 0, head: bytes = b""
) -> int:
    """Make a file of ``size`` zeros behind ``head`` that is there whole or not at all; returns its descriptor.

    It is made under another name in ``scratch_folder`` (same file system), its first ``allocate`` bytes get blocks,
    then it is synced and renamed: a crash never leaves a file of the wrong length, which RocketMQ would refuse to start
    on.
    """
    files.make_folder(scratch_folder)
    scratch = scratch_folder / f"new-{path.parent.name}-{path.name}"
    fd = files.open(scratch, create=True)
    try:
        files.resize(fd, 0)
        files.resize(fd, size)
        if allocate:
            files.allocate(fd, 0, min(allocate, size))
        if head:
            files.write(fd, head, 0)
        files.sync_data(fd)
        files.rename(scratch, path)
        files.sync_folder(path.parent)
    except OSError:
        files.close(fd)
        if scratch.exists():  # on a full disk it would take what others could use
            files.unlink(scratch)
        raise
    return fd


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new one: temp file, sync, rename, sync the folder."""
    scratch = path.with_name(path.name + ".tmp")
    fd = files.open(scratch, create=True)
    try:
        files.resize(fd, 0)
        files.write(fd, content, 0)
        files.sync_data(fd)
    finally:
        files.close(fd)
    files.rename(scratch, path)
    files.sync_folder(path.parent)


def make_durable_folder(files: Files, path: Path) -> None:
    """Make a folder, and those above it, so that a crash does not take them back."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        files.make_folder(folder)
        files.sync_folder(folder.parent)


def move_aside(files: Files, path: Path, aside_folder: Path, name: str) -> Path:
    """Take a damaged file or folder out of where it is used, durably; returns where it is now."""
    make_durable_folder(files, aside_folder)
    target = aside_folder / f"{name}-{time.time_ns()}"
    files.rename(path, target)
    files.sync_folder(aside_folder)
    files.sync_folder(path.parent)
    return target


def remove_content(files: Files, folder: Path) -> None:
    """Remove whatever lies in a folder; the folder stays."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            remove_content(files, path)
            files.remove_folder(path)
        else:
            files.unlink(path)
