"""Start time and memory of an empty broker."""

from __future__ import annotations

from ..bench import Bench
from ..broker import Broker
from ..machine import resident_bytes
from ..measure import Case, Measure, Sample, Samples


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    start_empty(bench)  # loads the broker's files and kernels into the page cache
    for _ in range(bench.runs):
        yield start_empty(bench)


def start_empty(bench: Bench) -> Sample:
    """Return the time of a start on an empty store, and the broker's memory after it."""
    with bench.store() as store, Broker(store, "sync") as broker:
        return {"start": broker.start_seconds, "memory": resident_bytes(broker.pid) / 1e6}


CASE = Case(
    "idle",
    "an empty broker, kernels cached",
    (Measure("memory", "idle memory", "MB", 180), Measure("start", "start, until the port is open", "s", 1.5)),
    samples,
)
