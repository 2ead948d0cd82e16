"""Stalls of a broker's event loop, and their causes.

``WatchedBroker`` is a broker whose process also runs the first part of this module: a timer of the loop fires every
millisecond and writes the time to shared memory. When it fires late, it notes what the loop's thread did meanwhile, by
the system's counters, and how long the collector ran. The second part runs in the bench: ``StallWatch`` reads the
shared time, and when that stands still it asks the process for the stacks of all threads, by a signal whose handler
(of ``faulthandler``) needs no interpreter. So a stall is seen from inside, whoever holds the interpreter.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import re
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
from types import TracebackType
from typing import TextIO

from .broker import Broker

BEAT_S = 0.001
STALL_MS = 5.0
"""A stall is a pause of the loop that is longer."""
ASK_AFTER_MS = 4.0
"""Age of the last beat at which the stacks are asked for, and again each time that it has doubled."""
SIGNAL = signal.SIGUSR1

_BEAT = struct.Struct("=q")
_MS = 1e6
_LATE_NS = int((STALL_MS + BEAT_S * 1e3) * _MS)
_SHARED, _RECORDS, _STACKS = "beat", "stalls", "stacks"


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
        self._last = time.monotonic_ns()
        self._counters = self._read_counters()
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        now, counters = time.monotonic_ns(), self._read_counters()
        if now - self._last > _LATE_NS:
            passed = [after - before for after, before in zip(counters, self._counters, strict=True)]
            self._records.write(json.dumps([self._last, now, *passed]) + "\n")
        self._last, self._counters = now, counters
        _BEAT.pack_into(self._shared, 0, now)
        self._loop.call_later(BEAT_S, self._beat)

    def _read_counters(self) -> tuple[float, ...]:
        """Return what ``Stall`` has after its times, since the thread's start."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        waited_ns = int(os.pread(self._schedule, 64, 0).split()[1])
        return used.ru_utime * 1e3, used.ru_stime * 1e3, waited_ns / _MS, self._collector_ns / _MS, used.ru_majflt

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
    faulthandler.register(SIGNAL, (folder / _STACKS).open("w"), all_threads=True)
    usual = daemon.loop_factory()

    def make_loop() -> AbstractEventLoop:
        loop = (usual or new_event_loop)()
        Heart(loop, shared, records)
        return loop

    daemon.loop_factory = lambda: make_loop
    sys.exit(daemon.main())


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

_IDLE = {("threading.py", "wait"), ("thread.py", "_worker"), ("flush.py", "do_once"), ("flush.py", "_wait")}
"""Innermost frames of threads that wait for work."""
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)$', re.MULTILINE)
_FUTEX = {"x86_64": "202", "aarch64": "98"}

Frame = tuple[str, int, str]
"""File name without its folder, line and function."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A pause of the loop, in ns of the monotonic clock; what its thread did, in ms; and the stacks seen in it.

    ``waited``: for a processor; ``others``: innermost frame of each other thread that was not idle; ``call``: number of
    the system call that the thread was in.
    """

    begin_ns: int
    end_ns: int
    user: float
    system: float
    waited: float
    collector: float
    major_faults: int
    stack: Sequence[Frame] = ()
    others: Sequence[Frame] = ()
    call: str = ""

    @property
    def ms(self) -> float:
        return (self.end_ns - self.begin_ns) / _MS - BEAT_S * 1e3

    @property
    def cause(self) -> str:
        """A key of ``CAUSES``: by the counters, or by the innermost known frame.

        Time without a processor is left out first: what is then no stall has the machine as its cause.
        """
        own = self.ms - self.waited
        if own <= STALL_MS:
            return "processor"
        if self.collector >= own / 2:
            return "collector"
        half, blocked = own / 2, own - self.user - self.system
        if blocked >= half and self.others and self.call == _FUTEX.get(os.uname().machine):
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
            f"{self.waited:.1f} ms without a processor, {blocked:.1f} ms blocked"
        ]
        if self.collector:
            parts.append(f"{self.collector:.1f} ms collector")
        if self.major_faults:
            parts.append(f"{self.major_faults} pages from disk")
        if self.call:
            parts.append(f"system call {self.call}")
        for name, frames in (("in", self.stack[:6]), ("others in", self.others)):
            if frames:
                parts.append(f"{name} " + " < ".join(f"{file}:{line} {function}" for file, line, function in frames))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for the stacks: the last beat, the system call of the loop's thread, and the bytes written before."""

    beat_ns: int
    call: str
    stacks_at: int


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
        self._asked: list[_Asked] = []
        self._began_ns = time.monotonic_ns()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self.broker.pid, folder / _STACKS), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        stacks = (self.broker.folder / _STACKS).read_bytes()
        ends = [asked.stacks_at for asked in self._asked[1:]] + [len(stacks)]
        seen = {
            asked.beat_ns: (stacks[asked.stacks_at : end].decode(errors="replace"), asked.call)
            for asked, end in zip(self._asked, ends, strict=True)
        }
        for line in (self.broker.folder / _RECORDS).read_text().splitlines():
            begin_ns, *rest = json.loads(line)
            if begin_ns >= self._began_ns:
                text, call = seen.get(begin_ns, ("", ""))
                self.stalls.append(Stall(begin_ns, *rest, *split_stacks(text), call))

    def _watch(self, pid: int, stacks: Path) -> None:
        beat, ask_after = 0, 0.0
        while not self._ended.wait(BEAT_S):
            last = _BEAT.unpack_from(self._shared)[0]
            if last != beat:
                beat, ask_after = last, ASK_AFTER_MS
            if time.monotonic_ns() - beat > ask_after * _MS:
                ask_after *= 2
                self._asked.append(_Asked(beat, _system_call(pid), stacks.stat().st_size))
                os.kill(pid, SIGNAL)

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


def split_stacks(text: str) -> tuple[list[Frame], list[Frame]]:
    """Return the first stack of the main thread in ``faulthandler``'s text, innermost frame first, and the innermost
    frame of each other thread that was not idle then."""
    main: list[Frame] = []
    others: list[Frame] = []
    for block in re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)[1:]:
        frames = [
            (Path(file).name, int(line), function)
            for file, line, function in _FRAME.findall(block)
            if not file.startswith("<")  # the import system, whose caller says more
        ]
        if any(file == Path(__file__).name for file, _, _ in frames):
            if main:  # the stacks were asked for again
                break
            main = frames
        elif frames and (frames[0][0], frames[0][2]) not in _IDLE:
            others.append(frames[0])
    return main, others


if __name__ == "__main__":
    main()
