"""Comparison of index entries with the keys of the records: a cursor moves through the entries in step with the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER
from ..kernels import dispatch as kernel
from ..store.index.index_cursor import IndexCursor
from ..store.index.index_file import IndexFile
from .findings import Findings

SECONDS_MAX = 2**31 - 1
LOOK_AHEAD = 512
"""Maximum number of consecutive wrong entries after which the comparison still finds its place again."""

Key = tuple[int, int, int, bool]
"""(hash, physical offset, store time in ms, whether the index may lack it)."""
Entry = tuple[int, int, int, int]
"""(hash, physical offset, seconds, previous)."""


class EntryComparison:
    """Comparison of the keys of one segment of the log, up to the first difference.

    ``dispatched``: keys of records below this must exist.
    """

    def __init__(self, cursor: IndexCursor, dispatched: int) -> None:
        self._cursor = cursor
        self._dispatched = dispatched
        self._differs = False
        self.pending = 0
        """Number of keys that the next start will put."""

    def compare(self, keys: np.ndarray, optional_keys: np.ndarray, reached: int, findings: Findings) -> bool:
        """Compare the entries of the records before ``reached`` with the keys that ``examine`` returned; entries of
        ``optional_keys`` may exist too. Return False if there is a difference, which is not reported."""
        if not self._differs:
            done = self._cursor.compare(keys, reached, optional_keys)
            missing = keys[done * kernel.KEY_ROW :] if done >= 0 else keys[:0]
            self.pending += len(missing) // kernel.KEY_ROW
            # Keys may be missing only at the end of the index, and only above what is dispatched.
            self._differs = done < 0 or (
                len(missing) > 0
                and (not self._cursor.at_end or int(missing[kernel.K_PHYSICAL_OFFSET]) < self._dispatched)
            )
        return not self._differs


class EntryAlignment:
    """Comparison of all entries of ``files``, oldest first, with the keys of the whole log, that reports every error.

    ``begin``: the log's start; ``dispatched``: keys of records below this must exist.
    """

    def __init__(self, folder: Path, files: Sequence[IndexFile], begin: int, dispatched: int) -> None:
        self._folder = folder
        self._files = [file for file in files if file.index_count > 1]
        self._dispatched = dispatched
        self.pending = 0
        """Number of keys that the next start will put."""
        self._at = 0
        """Index of the file with the next entry."""
        self._number = 1
        self._held: list[Key] = []
        """The last keys, kept until later ones show what is wrong."""
        self._begin_ms: dict[IndexFile, int] = {}
        while self._at < len(self._files):
            file = self._files[self._at]
            # Not a binary search, which a wrong entry would mislead.
            offsets = file.all_entries["physical_offset"][1 : file.index_count]
            self._number = 1 + int(np.count_nonzero(offsets < begin)) if begin else 1
            if self._number < file.index_count:
                return
            self._at, self._number = self._at + 1, 1

    def compare(self, keys: np.ndarray, optional_keys: np.ndarray, reached: int, findings: Findings) -> bool:
        """Take the next keys, as ``EntryComparison`` does; report what they show of the entries. Return True."""
        self._held += _merged(keys, optional_keys)
        if len(self._held) > 2 * LOOK_AHEAD:
            del self._held[: self._align(self._held, len(self._held) - LOOK_AHEAD, findings)]
        return True

    def finish(self, findings: Findings) -> None:
        """Finish the comparison: no key follows."""
        self._align(self._held, len(self._held), findings)
        self._held.clear()
        places, entries = self._window(LOOK_AHEAD)
        while entries:
            for place, entry in zip(places, entries, strict=True):
                _add_stray(*place, entry, set(), findings)
            self._skip(len(entries))
            places, entries = self._window(LOOK_AHEAD)

    def _window(self, count: int) -> tuple[list[tuple[IndexFile, int]], list[Entry]]:
        """Return the next entries, at most ``count``: (file, number) and content of each."""
        places: list[tuple[IndexFile, int]] = []
        entries: list[Entry] = []
        number = self._number
        for file in self._files[self._at :]:
            stop = min(file.index_count, number + count - len(places))
            places += [(file, each) for each in range(number, stop)]
            entries += file.all_entries[number:stop].tolist()
            number = 1
        return places, entries

    def _skip(self, count: int) -> None:
        """Skip entries, into the next files if necessary."""
        while count:
            file = self._files[self._at]
            step = min(count, file.index_count - self._number)
            self._number += step
            count -= step
            if self._number == file.index_count:
                self._at, self._number = self._at + 1, 1

    def _align(self, keys: list[Key], stop: int, findings: Findings) -> int:
        """Lay keys and entries side by side, and find the smallest difference that explains what is there. Goes on to
        key ``stop`` at least, unless only missing entries explain the rest; returns how many keys are done."""
        places, entries = self._window(len(keys) + 2 * LOOK_AHEAD)
        offsets = [key[1] for key in keys]
        known = {key[:2] for key in keys}
        at = entry = 0
        while at < stop:
            key = keys[at]
            if entry < len(entries) and _same(key, entries[entry]):
                self._check_time(*places[entry], entries[entry][2], key[2], findings)
                at, entry = at + 1, entry + 1
            elif key[3]:  # of a deleted topic, and left out
                at += 1
            elif entry == len(entries):
                self._add_missing(keys[at:], findings)
                at = len(keys)
            elif wrong := _wrong_in_a_row(keys, at, entries, entry):
                # These keys and entries differ in pairs, and those after them fit again.
                for step in range(wrong):
                    _add_wrong(*places[entry + step], entries[entry + step], keys[at + step], findings)
                at, entry = at + wrong, entry + wrong
            elif any(_same(key, other) for other in entries[entry + 1 : entry + LOOK_AHEAD]):
                # The key's own entry comes later, so this one is too many.
                _add_stray(*places[entry], entries[entry], known, findings)
                entry += 1
            elif entries[entry][1] > key[1]:
                # The entry belongs to a later message: the keys up to that have none.
                behind = max(bisect_left(offsets, entries[entry][1], at), at + 1)
                self._add_missing(keys[at:behind], findings)
                at = behind
            else:
                # The entry belongs to an earlier message than the next key, and all keys of that are done.
                _add_stray(*places[entry], entries[entry], known, findings)
                entry += 1
        self._skip(entry)
        return at

    def _add_missing(self, keys: list[Key], findings: Findings) -> None:
        wanted = [key for key in keys if not key[3]]
        needed = [key for key in wanted if key[1] < self._dispatched]
        self.pending += len(wanted) - len(needed)
        if not needed:
            return
        path = self._files[min(self._at, len(self._files) - 1)].path if self._files else self._folder
        first, last = needed[0][1], needed[-1][1]
        where = "of the message there" if first == last else f"of messages up to physical offset {last:,}"
        how_many = "a key" if len(needed) == 1 else f"{len(needed):,} keys"
        findings.add("index-missing", path, f"{how_many} {where}", physical_offset=first)

    def _check_time(self, file: IndexFile, number: int, seconds: int, store_ms: int, findings: Findings) -> None:
        """Check the time of an entry; for the first and the last entry, check the header's times too."""
        header = file.header
        if number == 1:
            self._begin_ms[file] = store_ms
            if header.begin_timestamp != store_ms:
                _add_header(file, "begin_timestamp", header.begin_timestamp, store_ms, findings)
        else:
            begin_ms = self._begin_ms.get(file, header.begin_timestamp)
            # The bounds of RocketMQ's ``IndexFile.putKey``.
            expected = min(max(store_ms - begin_ms, 0) // 1000, SECONDS_MAX) if begin_ms > 0 else 0
            if seconds != expected:
                _add_entry(
                    "index-wrong",
                    file,
                    number,
                    f"says second {seconds:,}, its message was stored in {expected:,}",
                    -1,
                    findings,
                )
        if number + 1 == file.index_count and header.end_timestamp != store_ms:
            _add_header(file, "end_timestamp", header.end_timestamp, store_ms, findings)


def _merged(keys: np.ndarray, optional: np.ndarray) -> list[Key]:
    """Merge both in log order."""
    rows: list[Key] = [
        (row[kernel.K_HASH], row[kernel.K_PHYSICAL_OFFSET], row[kernel.K_STORE_MS], may_lack)
        for flat, may_lack in ((keys, False), (optional, True))
        for row in flat.reshape(-1, kernel.KEY_ROW).tolist()
    ]
    if len(optional):
        rows.sort(key=lambda row: row[1])  # stable: the keys of a record keep their order
    return rows


def _same(key: Key, entry: Entry) -> bool:
    return key[0] == entry[0] and key[1] == entry[1]


def _wrong_in_a_row(keys: list[Key], at: int, entries: list[Entry], entry: int) -> int:
    """Return the number of wrong entries after which the rest fits again; 0 if that explains nothing."""
    for step in range(1, min(LOOK_AHEAD, len(keys) - at, len(entries) - entry) + 1):
        if at + step == len(keys) or entry + step == len(entries):
            return step if at + step == len(keys) and entry + step == len(entries) else 0
        if _same(keys[at + step], entries[entry + step]):
            return step
    return 0


def _add_entry(kind: str, file: IndexFile, number: int, text: str, physical_offset: int, findings: Findings) -> None:
    position = file.entries_at + INDEX_ENTRY_BYTES * number
    findings.add(kind, file.path, f"entry {number:,} {text}", position=position, physical_offset=physical_offset)


def _add_wrong(file: IndexFile, number: int, entry: Entry, key: Key, findings: Findings) -> None:
    text = f"says hash {entry[0]:,} at physical offset {entry[1]:,} instead of hash {key[0]:,} at {key[1]:,}"
    _add_entry("index-wrong", file, number, text, key[1], findings)


def _add_stray(file: IndexFile, number: int, entry: Entry, known: set[tuple[int, int]], findings: Findings) -> None:
    """Report a surplus entry. A repeated key of a message is harmless: RocketMQ writes it after a crash."""
    if entry[:2] not in known:
        text = f"says hash {entry[0]:,} at physical offset {entry[1]:,}, where no message has such a key"
        _add_entry("index-stray", file, number, text, -1, findings)


def _add_header(file: IndexFile, name: str, held: int, expected: int, findings: Findings) -> None:
    position = INDEX_HEADER.at[name]
    findings.add("index-header", file.path, f"{name} is {held:,} instead of {expected:,}", position=position)
