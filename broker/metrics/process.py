"""Resource usage of the process, from Linux's ``/proc``, by the names of prometheus-client's ``ProcessCollector``.

That class would be the broker's only use of the library (see ``exposition``).
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_FDS = "/proc/self/fd"
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Current resource usage of this process. ``started_at``: seconds since 1970; ``max_fds``: -1 for no limit."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    open_fds: int
    max_fds: int
    started_at: float


def process_figures() -> ProcessFigures | None:
    """Return the figures, or None on a system without such a ``/proc``."""
    try:
        # The process name, in parentheses, may contain anything; the part after it begins with field 3.
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        # Since Linux 6.2 the folder's size is the number of descriptors; listing thousands takes milliseconds.
        open_fds = os.stat(_FDS).st_size or len(os.listdir(_FDS))  # noqa: PTH116, PTH208
        booted_at = next(
            int(line.split()[1]) for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime ")
        )
    except (OSError, StopIteration):
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessFigures(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        virtual_bytes=int(fields[20]),
        open_fds=open_fds,
        max_fds=-1 if most == resource.RLIM_INFINITY else most,
        started_at=booted_at + int(fields[19]) / _TICKS_A_SECOND,
    )
