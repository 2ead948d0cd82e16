"""Checks of index files by their own bytes: whether headers and chains are plausible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...kernels import index as kernel

if TYPE_CHECKING:
    from .index_file import IndexFile, IndexService

CHECK_BYTES_MAX = 512 * 1024 * 1024
"""Chains are checked in the newest file, and in older ones as long as the files together are no larger than this."""


def index_problem(index: IndexService, end: int, expected_names: list[str]) -> tuple[str, int]:
    """Return (the problem of the oldest bad file, empty if all are sound; the number of sound files before it).

    ``end``: the log's end; ``expected_names``: names of the files that must exist.
    """
    names = [file.path.name for file in index.files]
    missing = [name for name in expected_names if name not in names]
    keep = len(names)
    problem = ""
    if missing:
        problem = f"index file {missing[0]} is missing"
        keep = sum(1 for name in names if name < missing[0])
    checked_bytes = CHECK_BYTES_MAX
    unchecked = 0
    for number in reversed(range(keep)):
        checked_bytes -= index.files[number].size
        if checked_bytes < 0 and number < keep - 1:
            unchecked = number + 1
            break
    reached = 0
    for number, file in enumerate(index.files[:keep]):
        wrong = _header_problem(file, reached, end, newest=number == len(names) - 1)
        if not wrong and number >= unchecked and file.check() == kernel.DAMAGED:
            wrong = "its chains are broken"
        if wrong:
            return f"{file.path}: {wrong}", number
        reached = file.end_physical_offset
    return problem, keep


def _header_problem(file: IndexFile, reached: int, end: int, *, newest: bool) -> str:
    header = file.header
    if not 0 <= header.index_count <= file.entries or (header.index_count <= 1 and not newest):
        return f"it says it has {header.index_count:,} entries"
    if header.index_count <= 1:
        return ""
    if not reached <= header.begin_physical_offset <= header.end_physical_offset:
        return "its offsets do not follow the file before it"
    if header.end_physical_offset >= end:
        return "it points after the end of the log"
    return ""
