"""A thousand workers share four queues, and acknowledge each message by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from flintmq.client import Admin

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, fill
from ..machine import Stopwatch, cpu_seconds
from ..measure import BenchFailed, Case, Measure, Sample, Samples

MESSAGES = 200_000
PROCESSES = 2
WORKERS = 1_000
QUEUES = 4
TIMEOUT_SECONDS = 120.0
EACH = WORKERS // PROCESSES
PARTS = {
    "shared": ("work_members", (EACH, 1)),
    "apart": ("work_members", (EACH, EACH)),
    "plain": ("pop_rounds", (EACH, 4)),
    "single": ("pop_rounds", (EACH, 1)),
}
"""Programs of the workers and their last arguments."""
TITLES = {
    "shared": "tasks that share a connection in each process",
    "apart": "tasks with a connection each, 32 messages prefetched",
    "plain": "plain sockets, 4 messages a pop",
    "single": "plain sockets, one message a pop",
}


def samples(bench: Bench) -> Samples:
    """Yield one sample per run. Each part of it has a group of its own."""
    count = bench.count(MESSAGES)
    with bench.broker() as broker:
        fill(broker.address, count)
        broker.wait_until_caught_up()
        for number in range(bench.runs):
            sample: Sample = {}
            for part, (module, arguments) in PARTS.items():
                group = f"{part}-{number}"
                sample |= {f"{key}_{part}": figure for key, figure in _run(broker, group, count, module, arguments)}
                _check_settled(broker, group)
            yield sample


def _run(
    broker: Broker, group: str, count: int, module: str, arguments: tuple[int, ...]
) -> Iterator[tuple[str, float]]:
    """Yield the rate of a part, and the CPU time of the broker and of the workers for a million messages."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_process(broker, group, module, arguments)) for _ in range(PROCESSES)]
        for each in workers:
            _line(each)
        watch, used = Stopwatch(broker.pid), sum(cpu_seconds(each.pid) for each in workers)
        for each in workers:
            _tell(each, "go")
        handled = 0
        while handled < count:
            handled = sum([int(_line(each)) for each in workers])
            for each in workers:
                _tell(each, "on" if handled < count else "confirm")
        for each in workers:
            _line(each)
        yield "handled", count / watch.seconds()
        yield "broker", watch.broker_cpu_seconds() * 1e6 / count
        yield "workers", (sum(cpu_seconds(each.pid) for each in workers) - used) * 1e6 / count
        for each in workers:
            _tell(each, "end")
        for each in workers:
            if each.wait(TIMEOUT_SECONDS):
                raise BenchFailed(f"a process with workers ended with {each.returncode}")


def _process(broker: Broker, group: str, module: str, arguments: tuple[int, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"bench.{module}", broker.address, group, TOPIC, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchFailed("a process with workers has ended")
    return line


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def _check_settled(broker: Broker, group: str) -> None:
    """Raise ``BenchFailed`` unless every message is settled."""
    with Admin(broker.address) as admin:
        left = [queue for queue in admin.group(group).queues if queue.lag or queue.in_flight]
    if left:
        raise BenchFailed(f"group {group} left messages: {left}")


def _measures() -> Iterator[Measure]:
    for part, title in TITLES.items():
        yield Measure(f"handled_{part}", f"messages handled, {title}", "msg/s", 50_000)
        yield Measure(f"broker_{part}", "… broker CPU per million", "s")
        yield Measure(f"workers_{part}", "… CPU per million of the workers' processes", "s")


CASE = Case(
    "work-queue",
    f"{WORKERS:,} workers in {PROCESSES} processes on {QUEUES} queues, stored messages, each acknowledged by itself",
    tuple(_measures()),
    samples,
)
