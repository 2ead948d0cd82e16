"""Waiting for expected events, and the memory of a process, for tests of overload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.group_tools import until


def soon(holds: Callable[[], bool]) -> None:
    """Return when ``holds`` does; fail if it does not within a minute."""
    until(holds)


def anonymous_bytes(pid: int) -> int:
    """Return RssAnon of a process: its memory without page cache and maps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024
