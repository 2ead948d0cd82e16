"""Start of a broker after it was killed, and of one that must rebuild its queues and its index."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, fill
from ..machine import touch_memory
from ..measure import Case, Measure, Samples
from ..raw import RawClient

MESSAGES = 2_000_000
BODY_BYTES = 500
DERIVED = ("consumequeue", "index")


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    for _ in range(bench.runs):
        with bench.store() as store:
            touch_memory(bench.touched_gib, bench.folder)
            fill_and_kill(store, count)
            touch_memory(bench.touched_gib, bench.folder)
            after_kill, recovery = start_and_kill(store, count)
            for folder in DERIVED:
                shutil.rmtree(store / folder)
            touch_memory(bench.touched_gib, bench.folder)
            _, rebuild = start_and_kill(store, count)
            yield {"start": after_kill, "recovery": recovery, "rebuild": count / rebuild}


def fill_and_kill(store: Path, count: int) -> None:
    """Return a store whose broker was killed after ``count`` messages were acknowledged and dispatched."""
    with Broker(store, "async") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, QUEUES)
        fill(broker.address, count, BODY_BYTES)
        broker.wait_until_caught_up()
        broker.kill()


def start_and_kill(store: Path, count: int) -> tuple[float, float]:
    """Return the seconds until the port was open, and the part of them that opening the store took."""
    with Broker(store, "async") as broker:
        broker.check_stored(TOPIC, count)
        broker.kill()
        return broker.start_seconds, max(broker.recovery_seconds, 0.01)


CASE = Case(
    "start",
    "start on 2 M × 500 B",
    (
        Measure("start", "after kill −9, until the port is open", "s", 2.0),
        Measure("recovery", "after kill −9, in the store", "s"),
        Measure("rebuild", "rebuild of all queues and index", "msg/s", 1_500_000),
    ),
    samples,
)
