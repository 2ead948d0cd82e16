"""Waiting for expected events, and the memory of a process, for tests of overload."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SOON_S = 60.0
_LOOK_EVERY_S = 0.02


def soon(holds: Callable[[], bool]) -> None:
    """Return when ``holds`` does; fail if it does not within a minute."""
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(_LOOK_EVERY_S)


def anonymous_bytes(pid: int) -> int:
    """Return RssAnon of a process: its memory without page cache and maps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024
