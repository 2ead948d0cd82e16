"""Processor time of a Spark driver's processes: the driver's Python, its Java process, and the workers' Pythons."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
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
    processes = dict(_processes())
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    java = python = 0.0
    below = [root]
    while below:
        pid = below.pop()
        process = processes[pid]
        if process.name == "java":
            java += process.seconds
        else:
            python += process.seconds
        python += process.children_seconds
        below += children[pid]
    return CpuSeconds(java, python)


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
