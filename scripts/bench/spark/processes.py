"""Processor time of a Spark driver's processes: the driver's Python, its Java process, and the workers' Pythons."""

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
    """``java``: Spark's Java process; ``python``: the driver's Python process and all workers."""

    java: float
    python: float

    def __sub__(self, other: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.java - other.java, self.python - other.python)


def cpu_of_tree(root: int) -> CpuSeconds:
    """What the process ``root`` and all below it have used so far, those included that have ended."""
    java = python = 0.0
    for process in _tree(root).values():
        if process.name == "java":
            java += process.seconds
        else:
            python += process.seconds
        python += process.children_seconds
    return CpuSeconds(java, python)


class EndOfTree:
    """Waits for the end of the process ``root`` and of all that are below it now, and ends those that stay."""

    def __init__(self, root: int) -> None:
        self._descriptors: list[int] = []
        for pid in _tree(root):
            with suppress(ProcessLookupError):  # it has just ended
                self._descriptors.append(os.pidfd_open(pid))

    def wait(self, seconds: float) -> None:
        """Return when none of them is there any more; what is there after ``seconds`` is killed."""
        deadline = time.monotonic() + seconds
        for descriptor in self._descriptors:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [])
            os.close(descriptor)
        self._descriptors.clear()


def _tree(root: int) -> dict[int, _Process]:
    """The process ``root`` and all below it."""
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
    """Of children that ended and were waited for. Below Spark's driver these are never Java's."""


def _processes() -> Iterator[tuple[int, _Process]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        # utime, stime, cutime and cstime are the 12th to 15th field behind the name.
        own, of_children = (sum(map(int, fields[at : at + 2])) / _TICKS_A_SECOND for at in (11, 13))
        yield int(folder.name), _Process(name, int(fields[1]), own, of_children)
