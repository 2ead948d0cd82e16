"""The file system as the reader sees it: list, open, size, read a range.

Another kind of storage would be another class with these methods.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_ATTEMPTS = 20


class LocalFiles:
    """Files of a mounted file system, opened for reading. Has no state: Spark pickles it with a plan."""

    def files_in(self, folder: Path) -> list[tuple[str, int]]:
        """Return name and size of the files in a folder, by name; none if there is no such folder."""
        for attempt in range(_ATTEMPTS):
            try:
                with os.scandir(folder) as entries:
                    return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
            except NotADirectoryError:
                break
            except FileNotFoundError:  # there is no folder, or retention deleted a file meanwhile
                if attempt + 1 == _ATTEMPTS and folder.is_dir():
                    raise
        return []

    def folders_in(self, folder: Path) -> list[str]:
        """Return the names of the folders in a folder; none if there is no such folder."""
        try:
            with os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, path: Path) -> int:
        """Return a handle. Raises ``FileNotFoundError``."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """Return the file's size in bytes."""
        return os.fstat(handle).st_size

    def read_into(self, handle: int, buffer: memoryview, at: int) -> int:
        """Fill ``buffer`` from byte ``at``; return the number of bytes, fewer if the file ends before."""
        done = 0
        while done < len(buffer):  # one call reads at most 2 GiB
            count = os.preadv(handle, [buffer[done:]], at + done)
            if not count:
                break
            done += count
        return done

    def read_whole(self, path: Path) -> bytearray:
        """Return the content of a small file. Raises ``FileNotFoundError``."""
        handle = self.open(path)
        try:
            content = bytearray(self.size(handle))
            del content[self.read_into(handle, memoryview(content), 0) :]
            return content
        finally:
            self.close(handle)

    def next_data(self, handle: int, at: int) -> int | None:
        """Return ``at``, or the end of the sparse hole that contains it; None if only a hole follows."""
        try:
            return os.lseek(handle, at, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else at  # another error: the file system has no holes


LOCAL = LocalFiles()
