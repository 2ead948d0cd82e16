"""Growth of the number of connections, each with one message in flight."""

from __future__ import annotations

import resource

from ...bench import Bench
from ...closed_loop import closed_loop, connected
from ...load import single_frames
from ...machine import Stopwatch, anonymous_bytes, many_files
from ...measure import Sample, Skipped, percentile
from .part import Figure, Part, Sized

SIZES = (1, 10, 100, 1_000, 5_000)
MESSAGES = 100_000
A_CONNECTION_MAX = {"async": 20_000, "sync": 5_000}
WARM_UP_A_CONNECTION = 3
_OTHER_FILES = 200
"""Descriptors of a process besides its connections."""


def measure(bench: Bench) -> Sized:
    """Yield the figures of each number of connections: one broker with async flush, one with sync flush."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    sizes = [size for size in SIZES if bench.size(size) + _OTHER_FILES <= files_max]
    found: dict[int, Sample] = {size: {} for size in sizes}
    for flush in ("async", "sync"):
        with bench.broker(flush) as broker, many_files(max(sizes) + _OTHER_FILES):
            for size in sizes:
                found[size] |= of_connections(bench, broker.address, broker.pid, bench.size(size), flush)
    yield from found.items()
    for size in SIZES:
        if size not in found:
            yield Skipped(f"{size:,} connections need {size + _OTHER_FILES:,} open files, {files_max:,} are allowed")


def of_connections(bench: Bench, address: str, pid: int, count: int, flush: str) -> Sample:
    """Return the figures of ``count`` connections."""
    each = min(max(bench.count(MESSAGES) // count, 1), A_CONNECTION_MAX[flush])
    frames = [single_frames(f"growth {flush} {count} {number}", WARM_UP_A_CONNECTION + each) for number in range(count)]
    with connected(address, count) as clients:
        closed_loop(clients, [own_frames[:WARM_UP_A_CONNECTION] for own_frames in frames])
        watch = Stopwatch(pid)
        result = closed_loop(clients, [own_frames[WARM_UP_A_CONNECTION:] for own_frames in frames])
        cpu = watch.broker_cpu_seconds() * 1e6 / len(result.taken)
        memory = anonymous_bytes(pid) / 1e6
    sample = {f"{flush}_rate": result.rate, f"{flush}_p99": percentile(result.taken, 0.99) * 1e3, f"{flush}_cpu": cpu}
    return sample | ({"memory": memory} if flush == "async" else {})


CONNECTIONS = Part(
    "connections",
    "connections, one send at a time each",
    SIZES,
    (
        Figure("async_rate", "async: rate", "msg/s"),
        Figure("async_p99", "async: p99", "ms", plotted=False),
        Figure("async_cpu", "async: broker CPU a message", "µs"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("sync_rate", "sync: rate", "msg/s"),
        Figure("sync_p99", "sync: p99", "ms", plotted=False),
        Figure("sync_cpu", "sync: broker CPU a message", "µs"),
    ),
    measure,
)
