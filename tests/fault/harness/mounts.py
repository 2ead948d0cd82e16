"""File systems of their own for a store: ext4 in a file, which can be shut down, and a tmpfs of a few megabytes.

The only way to find out whether a machine allows them is to try: ``NotHere`` has the error.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
_NO_LOG_FLUSH = (2).to_bytes(4, "little")
COMMAND_S_MAX = 60.0
_BUSY_S_MAX = 60.0
"""Longest time that a process may still hold a file of a file system that is being unmounted."""


class NotHere(Exception):
    """This machine does not allow it; the message has the error."""


def run(*command: str) -> None:
    """Run a system command. Raises ``NotHere`` with its output if it fails or is not installed."""
    if shutil.which(command[0]) is None:
        raise NotHere(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S_MAX)
    if done.returncode:
        raise NotHere(f"`{' '.join(command)}` fails: {' '.join(done.stderr.split())}")


def unmount(point: Path) -> None:
    """Unmount the file system. Waits for processes that hold a file of it, which are about to end."""
    deadline = time.monotonic() + _BUSY_S_MAX
    while True:
        try:
            return run("umount", str(point))
        except NotHere:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def unmount_at_last(point: Path) -> None:
    """Unmount the file system, lazily if a process keeps holding a file of it."""
    try:
        unmount(point)
    except NotHere:
        run("umount", "--lazy", str(point))
        raise


class SmallDisk:
    """A mounted file system and the file that uses up its space."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._ballast = point / "ballast"

    @property
    def free_bytes(self) -> int:
        """Return how many bytes can still be written."""
        status = os.statvfs(self.point)
        return status.f_bavail * status.f_frsize

    def take(self, *, leave_bytes: int) -> None:
        """Use up all space except this much; space already taken stays taken."""
        fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT)
        try:
            more = self.free_bytes - leave_bytes
            if more > 0:
                with suppress(OSError):  # another writer was faster: it is full
                    os.posix_fallocate(fd, os.fstat(fd).st_size, more)
        finally:
            os.close(fd)

    def give_back(self) -> None:
        """Free all space that ``take`` used."""
        self._ballast.unlink(missing_ok=True)


class LoopExt4(SmallDisk):
    """An ext4 file system in a sparse file, mounted at ``point``."""

    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        super().__init__(folder / "ext4")
        self._image = folder / "ext4.image"
        self._size_bytes = size_bytes

    def make(self) -> None:
        """Create and mount it. Raises ``NotHere``."""
        self.point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        run("mkfs.ext4", "-q", "-m", "0", str(self._image))  # no space that only root may use
        self._mount()

    def _mount(self) -> None:
        run("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.point))

    def shut_down(self) -> None:
        """Shut the file system down: nothing more reaches the disk, not even the journal's buffers, and every write and
        sync fails. Raises ``NotHere`` if the system does not support it."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        except OSError as error:
            raise NotHere(f"FS_IOC_SHUTDOWN of an ext4 fails: {error}") from error
        finally:
            os.close(fd)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let every write and sync hang in the ``with`` block."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FIFREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(fd, FITHAW, 0)
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        """Mount what reached the disk: the page cache is lost, the journal is replayed."""
        unmount(self.point)
        self._mount()

    def remove(self) -> None:
        """Unmount it in whatever state, and free its space."""
        if self.point.is_mount():
            unmount_at_last(self.point)
        self._image.unlink(missing_ok=True)


@contextmanager
def loop_ext4(folder: Path, *, size_bytes: int = 1 << 28) -> Iterator[LoopExt4]:
    """Mount an ext4 file system stored in a file of ``folder``; remove it at the end. Raises ``NotHere``."""
    disk = LoopExt4(folder, size_bytes=size_bytes)
    try:
        disk.make()
        yield disk
    finally:
        disk.remove()


@contextmanager
def small_tmpfs(folder: Path, *, size_bytes: int = 16 << 20) -> Iterator[SmallDisk]:
    """Mount a tmpfs in ``folder``; remove it at the end. A user without the right to mount gets one in a user
    namespace, reached through ``/proc``. Raises ``NotHere``."""
    point = folder / "tmpfs"
    point.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(point))
    try:
        run(*mount)
    except NotHere as refusal:
        with _in_user_namespace(mount, refusal) as root:
            yield SmallDisk(root / point.relative_to("/"))
        return
    try:
        yield SmallDisk(point)
    finally:
        unmount_at_last(point)


@contextmanager
def _in_user_namespace(mount: tuple[str, ...], refusal: NotHere) -> Iterator[Path]:
    """Run ``mount`` in a user namespace; yield the root of the process that keeps it alive."""
    if shutil.which("unshare") is None:
        raise refusal
    command = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", '"$@" && echo done && cat', "sh", *mount)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"done\n":
            output = " ".join(holder.stderr.read().decode().split())
            raise NotHere(f"{refusal}; and in a user namespace: {output}")
        yield Path(f"/proc/{holder.pid}/root")  # it ends with its standard input
