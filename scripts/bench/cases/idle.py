"""An empty broker: how soon it is there, and what it takes."""

from __future__ import annotations

from ..bench import Bench
from ..broker import Broker
from ..machine import resident_bytes
from ..measure import Case, Measure, Sample, Samples


def samples(bench: Bench) -> Samples:
    """One a run."""
    start_empty(bench)  # its files and kernels are in the page cache now
    for _ in range(bench.runs):
        yield start_empty(bench)


def start_empty(bench: Bench) -> Sample:
    """A start on an empty store, and the memory of the broker then."""
    with bench.store() as store, Broker(store, "sync") as broker:
        return {"start": broker.start_seconds, "memory": resident_bytes(broker.pid) / 1e6}


CASE = Case(
    "idle",
    "an empty broker, kernels cached",
    (Measure("memory", "idle memory", "MB", 180), Measure("start", "start, until the port is open", "s", 1.5)),
    samples,
)
