"""Comparison of index entries with the keys of the log, for a start and for ``verify``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...kernels import index as kernel

if TYPE_CHECKING:
    from .index_file import IndexFile

_NO_KEYS = np.zeros(0, np.int64)


class IndexCursor:
    """Position in the entries of ``files``, oldest first, that moves in step with the log.

    It begins at the entries of the first record at or after the physical offset ``begin``.
    """

    def __init__(self, files: Sequence[IndexFile], begin: int) -> None:
        self.files = [file for file in files if file.index_count > 1]
        self.file_number = 0
        """Number of the file with the next entry, in ``files``; their count if all entries were compared."""
        self._number = 1
        while self.file_number < len(self.files):
            file = self.files[self.file_number]
            if file.end_physical_offset >= begin:
                self._number = file.first_entry_at(begin)
                break
            self.file_number += 1

    @property
    def at_end(self) -> bool:
        """Return whether all entries were compared."""
        return self.file_number == len(self.files)

    def compare(self, keys: np.ndarray, reached: int, optional_keys: np.ndarray | None = None) -> int:
        """Compare the entries of the records below ``reached`` with ``keys``, rows of dispatch's keys in one array.

        Returns how many of the keys have their entries, or -1 if an entry is wrong or surplus. Only keys after the last
        entry of a record below ``reached`` can lack theirs. ``optional_keys``: keys of deleted topics, which may have
        entries; None: any record without a key may have entries, because it may be of a deleted topic.
        """
        done = 0
        while not self.at_end:
            file = self.files[self.file_number]
            self._number, done, is_same = kernel.match(
                file.array(),
                file.entries_at,
                self._number,
                file.index_count,
                reached,
                file.header.begin_timestamp,
                keys,
                done,
                _NO_KEYS if optional_keys is None else optional_keys,
                optional_keys is None,
            )
            if not is_same:
                return -1
            if self._number < file.index_count:
                break
            self.file_number, self._number = self.file_number + 1, 1
        return done
