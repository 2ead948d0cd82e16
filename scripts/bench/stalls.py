"""Stalls of a broker's event loop, and their causes.

``WatchedBroker`` is a broker whose process also runs the first part of this module: a timer of the loop fires every
millisecond and writes the time to shared memory. When it fires late, it notes what the loop's thread did meanwhile, by
the system's counters, and how long the collector ran. The second part runs in the bench: ``StallWatch`` reads the
shared time, and when that stands still it looks which threads run, and signals the process. The handler of the signal,
which runs as soon as the loop's thread returns to the interpreter, notes the stack: the place that took so long.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TextIO

from .broker import Broker

BEAT_S = 0.001
STALL_MS = 5.0
"""A stall is a pause of the loop that is longer."""
ASK_AFTER_MS = 4.0
"""Age of the last beat at which the stack is asked for."""
SIGNAL = signal.SIGUSR1
STACK_SHOWN = 6
INTERPRETER_WAIT_MS = 2.0
"""Longest mean wait of a thread that waits for the interpreter, whose switch interval is half a millisecond."""

_BEAT = struct.Struct("=q")
_MS = 1e6
_LATE_NS = int((STALL_MS + BEAT_S * 1e3) * _MS)
_SHARED, _RECORDS = "beat", "stalls"
_SYS_TGKILL = {"x86_64": 234, "aarch64": 131}

Frame = tuple[str, int, str]
"""File name without its folder, line and function."""


# ---- Inside the broker's process.


class Heart:
    """The timer of the loop. ``counters``: the thread's own, at the last beat."""

    def __init__(self, loop: AbstractEventLoop, shared: mmap.mmap, records: TextIO) -> None:
        self._loop = loop
        self._shared = shared
        self._records = records
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._collector_ns = self._collecting_since = 0
        gc.callbacks.append(self._collector)
        self._stack: list[Frame] = []
        signal.signal(SIGNAL, self._note_stack)
        signal.siginterrupt(SIGNAL, False)
        self._last = time.monotonic_ns()
        self._counters = self._read_counters()
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        now, counters = time.monotonic_ns(), self._read_counters()
        if now - self._last > _LATE_NS:
            passed = [after - before for after, before in zip(counters, self._counters, strict=True)]
            names = {thread.native_id: thread.name for thread in threading.enumerate()}
            self._records.write(json.dumps([names, self._last, now, *passed, self._stack]) + "\n")
        self._last, self._counters, self._stack = now, counters, []
        _BEAT.pack_into(self._shared, 0, now)
        self._loop.call_later(BEAT_S, self._beat)

    def _read_counters(self) -> tuple[float, ...]:
        """Return what ``Stall`` has after its times, since the thread's start."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        waited_ns = int(os.pread(self._schedule, 64, 0).split()[1])
        spent = used.ru_utime * 1e3, used.ru_stime * 1e3, waited_ns / _MS, self._collector_ns / _MS
        return *spent, used.ru_majflt, used.ru_nvcsw

    def _note_stack(self, number: int, frame: FrameType | None) -> None:
        self._stack = frames_of(frame)

    def _collector(self, phase: str, details: Mapping[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collector_ns += now - self._collecting_since


def main() -> None:
    """Run ``flintmq-broker`` with a heart; the first argument is the folder of the watch."""
    from flintmq.broker.app import daemon

    folder = Path(sys.argv.pop(1))
    with (folder / _SHARED).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _BEAT.size)
    records = (folder / _RECORDS).open("w", buffering=1)
    usual = daemon.loop_factory()

    def make_loop() -> AbstractEventLoop:
        loop = (usual or new_event_loop)()
        Heart(loop, shared, records)
        return loop

    daemon.loop_factory = lambda: make_loop
    sys.exit(daemon.main())


def frames_of(frame: FrameType | None) -> list[Frame]:
    """Return a stack, innermost frame first, without the import system, whose caller says more."""
    stack: list[Frame] = []
    while frame is not None and len(stack) < STACK_SHOWN:
        name = frame.f_code.co_filename
        if not name.startswith("<"):
            stack.append((Path(name).name, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack


def new_event_loop() -> AbstractEventLoop:
    import asyncio

    return asyncio.new_event_loop()


# ---- In the bench's process.

CAUSES = {
    "collector": "the collector",
    "processor": "no free processor",
    "interpreter": "another thread held the interpreter",
    "log_file": "blocks or the next file of the log",
    "log_write": "page cache: a write to the log",
    "index_file": "blocks or the next file of the index",
    "index_write": "page cache: entries of the index",
    "queue_file": "the next file of a queue",
    "queue_write": "page cache: units of a queue",
    "table": "a table written on the loop",
    "read": "a read",
    "work": "the loop's own work",
    "unknown": "unknown",
}

_PLACES: tuple[tuple[str, str, str], ...] = (
    ("preallocation.py", "", "log_file"),
    ("commitlog.py", "", "log_write"),
    ("produce_batch.py", "", "log_write"),
    ("index.py", "_create", "index_file"),
    ("index.py", "put", "index_write"),
    ("queues.py", "_create", "queue_file"),
    ("queues.py", "append", "queue_write"),
    ("json_table.py", "", "table"),
    ("queue_reads.py", "", "read"),
    ("log_reads.py", "", "read"),
    ("pulls.py", "", "read"),
)
"""File and function (empty: any) of a frame, and the cause that it shows; the innermost one that is listed counts."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A pause of the loop, in ns of the monotonic clock; what its thread did, in ms; and the stack seen in it.

    ``waited``: for a processor; ``waits``: how often it waited for something else; ``others``: names of the other
    threads that ran, or waited for the disk; ``call``: number of the system call that the thread was in.
    """

    begin_ns: int
    end_ns: int
    user: float
    system: float
    waited: float
    collector: float
    major_faults: int
    waits: int
    stack: Sequence[Frame] = ()
    others: Sequence[str] = ()
    call: str = ""

    @property
    def ms(self) -> float:
        return (self.end_ns - self.begin_ns) / _MS - BEAT_S * 1e3

    @property
    def cause(self) -> str:
        """A key of ``CAUSES``: by the counters, or by the innermost known frame.

        Time without a processor is left out first: what is then no stall has the machine as its cause. So is time in
        which the thread neither ran nor waited: a virtual machine's processor stood still.
        """
        blocked = self.ms - self.user - self.system - self.waited
        own = self.ms - self.waited - (0.0 if self.waits else blocked)
        if own <= STALL_MS:
            return "processor"
        if self.collector >= own / 2:
            return "collector"
        half = own / 2
        # A thread that waits for the interpreter asks for it again after each switch interval; for the disk it waits
        # once.
        if blocked >= half and self.waits >= blocked / INTERPRETER_WAIT_MS:
            return "interpreter"
        for file, _, function in self.stack:
            for place, name, cause in _PLACES:
                if file == place and name in ("", function):
                    return cause
        return "work" if self.user + self.system >= half else "unknown"

    def __str__(self) -> str:
        blocked = max(0.0, self.ms - self.user - self.system - self.waited)
        parts = [
            f"{self.ms:.1f} ms, {CAUSES[self.cause]}: {self.user:.1f} ms user, {self.system:.1f} ms system, "
            f"{self.waited:.1f} ms without a processor, {blocked:.1f} ms blocked ({self.waits} waits)"
        ]
        if self.collector:
            parts.append(f"{self.collector:.1f} ms collector")
        if self.major_faults:
            parts.append(f"{self.major_faults} pages from disk")
        if self.call:
            parts.append(f"system call {self.call}")
        if self.others:
            parts.append(f"beside {' and '.join(self.others)}")
        if self.stack:
            frames = [f"{file}:{line} {function}" for file, line, function in self.stack]
            parts.append(f"in {' < '.join(frames)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for the stack: the system call of the loop's thread, and the other threads that ran."""

    call: str
    others: Sequence[str]


class WatchedBroker(Broker):
    """A broker whose loop can be watched; its ``folder`` must exist."""

    def __init__(self, store: Path, flush: str, folder: Path, *options: str) -> None:
        super().__init__(store, flush, *options)
        self.folder = folder
        (folder / _SHARED).write_bytes(bytes(_BEAT.size))

    def _program(self) -> Sequence[str]:
        return ["-m", "bench.stalls", str(self.folder)]


@dataclass
class StallWatch:
    """A context manager that watches a broker; ``stalls`` has those that began in its block, after the block."""

    broker: WatchedBroker
    stalls: list[Stall] = field(default_factory=list)

    def __enter__(self) -> StallWatch:
        folder = self.broker.folder
        with (folder / _SHARED).open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), _BEAT.size, access=mmap.ACCESS_READ)
        self._asked: dict[int, _Asked] = {}
        """Requests by the last beat before them."""
        self._began_ns = time.monotonic_ns()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self.broker.pid,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for line in (self.broker.folder / _RECORDS).read_text().splitlines():
            names, begin_ns, *rest = json.loads(line)
            if begin_ns >= self._began_ns:
                asked = self._asked.get(begin_ns, _Asked("", ()))
                others = [names.get(thread, f"thread {thread}") for thread in asked.others]
                self.stalls.append(Stall(begin_ns, *rest, others, asked.call))

    def _watch(self, pid: int) -> None:
        while not self._ended.wait(BEAT_S):
            beat = _BEAT.unpack_from(self._shared)[0]
            if beat not in self._asked and time.monotonic_ns() - beat > ASK_AFTER_MS * _MS:
                self._asked[beat] = _Asked(_system_call(pid), _others(pid))
                # To the main thread, which no function of Python's library can name: no other thread is interrupted.
                ctypes.CDLL(None).syscall(_SYS_TGKILL[os.uname().machine], pid, pid, SIGNAL)

    def figures(self) -> dict[str, float]:
        """Return the number of stalls, and their longest in ms, in total and by cause."""
        counts = Counter(stall.cause for stall in self.stalls)
        found: dict[str, float] = {"stalls": len(self.stalls), "stall_max": max((s.ms for s in self.stalls), default=0)}
        for cause, count in counts.items():
            found[f"stalls_{cause}"] = count
            found[f"stall_max_{cause}"] = max(stall.ms for stall in self.stalls if stall.cause == cause)
        return found


def _system_call(pid: int) -> str:
    """Return the number of the system call that the process's main thread is in; empty if it is in none, or if the
    system does not tell."""
    with suppress(OSError):
        first = Path(f"/proc/{pid}/task/{pid}/syscall").read_text().split()[0]
        return first if first.isdigit() else ""
    return ""


def _others(pid: int) -> list[str]:
    """Return the ids of the process's other threads that run, or wait for the disk."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it may have ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state in "RD" and task.name != str(pid):
                found.append(task.name)
    return found


if __name__ == "__main__":
    main()
