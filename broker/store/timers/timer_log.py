"""RocketMQ's ``timerlog``: the waiting timed messages, written on a clean stop for a RocketMQ that opens the store
next.

FlintMQ writes no ``timerwheel``: RocketMQ rebuilds it from the units of the log. Units of messages that are due in more
than two days are marked, because RocketMQ defers those again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.store_files import file_name
from ..files.file_system import make_durable_folder, remove_content

if TYPE_CHECKING:
    from ..files.file_system import Files

FILE_BYTES = 100 * 1024 * 1024
"""RocketMQ's default file size, used if the store has no timerlog files yet."""
ROLL_MS = 2 * 86_400_000
PAST_MS = 3_600_000

TIMER_LOG_UNITS = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("message_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_ENDING_BYTES = 16
_DEFAULT, _ROLL, _DELETE = 1, 2, 4


def timer_log_file_bytes(store_path: Path) -> int:
    """Return the size that a timerlog file of this store must have."""
    folder = store_path / "timerlog"
    sizes = [path.stat().st_size for path in folder.iterdir()] if folder.is_dir() else []
    return max(sizes, default=FILE_BYTES)


def remove_timer_log(files: Files, store_path: Path) -> None:
    """Remove wheel and log, so that RocketMQ uses only its ``timercheck`` and recreates both. Raises OSError."""
    if (store_path / "timerwheel").exists():
        files.unlink(store_path / "timerwheel")
    if (store_path / "timerlog").is_dir():
        remove_content(files, store_path / "timerlog")
    files.sync_folder(store_path)


def write_timer_log(
    files: Files, store_path: Path, rows: np.ndarray, newest: tuple[int, int], *, read_ms: int, file_bytes: int
) -> bool:
    """Write a timerlog of one file; return False, writing nothing, if the units do not fit. Raises OSError.

    It has a unit for each of ``rows`` (``timer_state.ROWS``), in the order of their queue, and a last one for the
    queue's newest message, from which RocketMQ knows how far its log reaches. ``newest``: physical offset and size of
    that message. ``read_ms``: time up to which RocketMQ shall believe it has read. The caller has removed the old log.
    """
    if (len(rows) + 1) * TIMER_LOG_UNITS.itemsize > file_bytes - _ENDING_BYTES:
        return False
    units = np.zeros(len(rows) + 1, TIMER_LOG_UNITS)
    units["size"] = TIMER_LOG_UNITS.itemsize
    units["written_ms"] = read_ms
    slots_ms = np.maximum((rows["due_second"] - 1) * 1000, read_ms)
    rolled = slots_ms - read_ms >= ROLL_MS
    slots_ms = np.where(rolled, read_ms + ROLL_MS, slots_ms)
    units["magic"] = _DEFAULT
    units["magic"][:-1] |= np.where(rolled, _ROLL, 0) | np.where(rows["size"] < 0, _DELETE, 0)
    units["delay_ms"][:-1] = slots_ms - read_ms
    units["physical_offset"][:-1] = rows["physical_offset"]
    units["message_bytes"][:-1] = np.abs(rows["size"])
    units["previous"] = -1
    order = np.argsort(slots_ms, kind="stable")
    follows = np.flatnonzero(slots_ms[order][1:] == slots_ms[order][:-1]) + 1
    units["previous"][order[follows]] = order[follows - 1] * TIMER_LOG_UNITS.itemsize
    units["delay_ms"][-1] = -PAST_MS  # in a slot that RocketMQ has already read
    units["physical_offset"][-1], units["message_bytes"][-1] = newest
    folder = store_path / "timerlog"
    make_durable_folder(files, folder)
    fd = files.open(folder / file_name(0), create=True)
    try:
        files.write(fd, units.tobytes(), 0)
        files.resize(fd, file_bytes)
        files.sync_data(fd)
    finally:
        files.close(fd)
    files.sync_folder(folder)
    return True
