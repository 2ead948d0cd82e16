"""CPU time of a Spark driver's processes: the driver's Python, its Java process, and the workers' Pythons."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU times. ``java``: Spark's Java process; ``python``: the driver's Python process and all workers."""

    java: float
    python: float

    def __sub__(self, other: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.java - other.java, self.python - other.python)


def cpu_of_tree(root: int) -> CpuSeconds:
    """Return the CPU time of the process ``root`` and all its descendants so far, including those that have ended."""
    java = python = 0.0
    for process in _tree(root).values():
        if process.name == "java":
            java += process.seconds
        else:
            python += process.seconds
        python += process.children_seconds
    return CpuSeconds(java, python)


class EndOfTree:
    """The process ``root`` and its present descendants, to wait for and to kill."""

    def __init__(self, root: int) -> None:
        self._descriptors: list[int] = []
        for pid in _tree(root):
            with suppress(ProcessLookupError):  # the process has just ended
                self._descriptors.append(os.pidfd_open(pid))

    def wait(self, seconds: float) -> None:
        """Wait until all of them have ended; kill those that remain after ``seconds``."""
        deadline = time.monotonic() + seconds
        for descriptor in self._descriptors:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [])
            os.close(descriptor)
        self._descriptors.clear()


def _tree(root: int) -> dict[int, _Process]:
    """Return the process ``root`` and all its descendants."""
    processes = dict(_processes())
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    tree = {}
    below = [root] if root in processes else []
    while below:
        pid = below.pop()
        tree[pid] = processes[pid]
        below += children[pid]
    return tree


class _Process(NamedTuple):
    name: str
    parent: int
    seconds: float
    children_seconds: float
    """Return the CPU time of children that were waited for. Below Spark's driver these are never Java processes."""


def _processes() -> Iterator[tuple[int, _Process]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has just ended
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        # utime, stime, cutime and cstime are the 12th to 15th field after the name.
        own, of_children = (sum(map(int, fields[at : at + 2])) / _TICKS_A_SECOND for at in (11, 13))
        yield int(folder.name), _Process(name, int(fields[1]), own, of_children)
