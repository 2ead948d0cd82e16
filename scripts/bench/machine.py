"""The machine: its description, the resources that a process uses, and memory touched before a measurement."""

from __future__ import annotations

import mmap
import os
import platform
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_TOUCHED_AT_ONCE_BYTES = 1 << 20
_SYNCED_PAGES = 200
_ECHOES = 3000
_ECHO_BYTES = 250
_GIB = 1 << 30


def describe(folder: Path) -> str:
    """Return processor, cores, memory, kernel, Python, and the disk of ``folder``, in one line."""
    parts = [
        f"{os.cpu_count()} × {_processor()}",
        f"{_meminfo('MemTotal') / _GIB:.0f} GiB",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"stores on {file_system(folder)} (fdatasync {fdatasync_microseconds(folder):,.0f} µs)",
        f"an echo between two Python processes takes {echo_microseconds():,.0f} µs",
    ]
    return ", ".join(parts)


def fdatasync_microseconds(folder: Path) -> float:
    """Return the median time to make one written page of a file durable: the minimum of every sync flush."""
    taken = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, _SYNCED_PAGES * mmap.PAGESIZE)
        for _ in range(_SYNCED_PAGES):
            file.write(bytes(mmap.PAGESIZE))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def echo_microseconds() -> float:
    """Return the median round trip over loopback to a process that sleeps until a message arrives: the minimum of every
    response."""
    code = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    print(server.getsockname()[1], flush=True)\n"
        "    with server.accept()[0] as sock:\n"
        "        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
        "        while message := sock.recv(4096):\n"
        "            sock.send(message)\n"
    )
    taken = []
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        with socket.create_connection(("127.0.0.1", int(echo.stdout.readline()))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_ECHOES):
                began = time.perf_counter()
                sock.send(bytes(_ECHO_BYTES))
                sock.recv(4096)
                taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def idle_share(seconds: float = 1.0) -> float:
    """Return the idle share of the processors (0 to 1); the broker cannot use the rest."""
    before = _processor_ticks()
    time.sleep(seconds)
    after = _processor_ticks()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def _processor_ticks() -> tuple[int, int]:
    """Return the ticks of all processors since the machine's start: (idle, all)."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def _processor() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _meminfo(name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder``."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def touch_memory(gib: float, folder: Path) -> None:
    """Write to ``gib`` GiB of page cache once and free it again; at most half of the available memory.

    The first access to memory that a virtual machine never used, or gave back to its host ("free page reporting"),
    costs eight times as much as a later one. After idle time, a benchmark would measure the host instead of the broker.
    This writes to a mapped file in ``folder``, as the broker does, so that the broker's next file gets the same pages.
    """
    size = min(int(gib * _GIB), _meminfo("MemAvailable") // 2) // _TOUCHED_AT_ONCE_BYTES * _TOUCHED_AT_ONCE_BYTES
    if not size:
        return
    content = bytes(_TOUCHED_AT_ONCE_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), size) as memory:
            for start in range(0, size, len(content)):
                memory[start : start + len(content)] = content


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all its threads so far."""
    # The name in parentheses may contain anything; utime and stime are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def anonymous_bytes(pid: int) -> int:
    """Return the resident memory of a process without pages of files (RssAnon), which the system can take back."""
    match = re.search(r"^RssAnon:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else resident_bytes(pid)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (VmRSS)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Allow ``count`` open files within the context, as far as the system does."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, min(count, most)), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


class Stopwatch:
    """A stopwatch: time since its creation, and the CPU time of a broker since then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = cpu_seconds(pid)
        self._began = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def broker_cpu_seconds(self) -> float:
        return cpu_seconds(self._pid) - self._cpu
