"""A thousand workers share four queues, and acknowledge each message by itself."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

from flintmq.client import Admin

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, fill
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples

MESSAGES = 500_000
PROCESSES = 2
WORKERS = 1_000
QUEUES = 4
TIMEOUT_SECONDS = 120.0


def samples(bench: Bench) -> Samples:
    """Yield one sample per run, each with a group of its own."""
    count = bench.count(MESSAGES)
    with bench.broker() as broker:
        fill(broker.address, count)
        broker.wait_until_caught_up()
        for number in range(bench.runs):
            group = f"workers-{number}"
            sample: Sample = {}
            with ExitStack() as stack:
                workers = [stack.enter_context(_process(broker, group)) for _ in range(PROCESSES)]
                for each in workers:
                    _line(each)
                watch = Stopwatch(broker.pid)
                for each in workers:
                    _tell(each, "go")
                handled = 0
                while handled < count:
                    lines = [_line(each) for each in workers]
                    handled = sum(int(line) for line in lines)
                    for each in workers:
                        _tell(each, "on" if handled < count else "end")
                sample["handled"] = count / watch.seconds()
                sample["cpu"] = watch.broker_cpu_seconds() * 1e6 / count
                for each in workers:
                    if each.wait(TIMEOUT_SECONDS):
                        raise BenchFailed(f"a process with workers ended with {each.returncode}")
            _check_settled(broker, group)
            yield sample


def _process(broker: Broker, group: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.work_members", broker.address, group, TOPIC, str(WORKERS // PROCESSES)]
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


CASE = Case(
    "work-queue",
    f"{WORKERS:,} workers (asyncio tasks in {PROCESSES} processes) on {QUEUES} queues, stored messages, "
    "each received and acknowledged by itself",
    (Measure("handled", "messages handled", "msg/s", 50_000), Measure("cpu", "broker CPU per million", "s")),
    samples,
)
