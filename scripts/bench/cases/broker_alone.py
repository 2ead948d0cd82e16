"""Throughput of the broker alone: prepacked frames on one connection, until queues and index have caught up."""

from __future__ import annotations

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC, FramePacker, columns, messages_a_frame
from ..machine import Stopwatch
from ..measure import Case, Measure, Sample, Samples
from ..raw import RawClient

MESSAGES = 2_000_000
WARM_UP_MESSAGES = 50_000
LAYOUTS = ("columns", "rows")


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count, warm_up_count = bench.count(MESSAGES), bench.count(WARM_UP_MESSAGES)
    frames = {layout: pack(count, layout) for layout in LAYOUTS}
    warm_up = {layout: pack(warm_up_count, layout) for layout in LAYOUTS}
    for _ in range(bench.runs):
        sample: Sample = {}
        for layout in LAYOUTS:
            with bench.broker() as broker:
                seconds, cpu = measure(broker, frames[layout], warm_up[layout])
                broker.check_stored(TOPIC, count + warm_up_count)
            sample[layout] = count / seconds
            sample[f"{layout}_cpu"] = cpu * 1e6 / count
        yield sample


def pack(count: int, layout: str) -> list[bytes]:
    """Return frames with ``count`` messages in all, as large as those of the SDK."""
    packer = FramePacker(f"{layout} {count}")
    pack_frame = packer.columns if layout == "columns" else packer.rows
    return [pack_frame(chunk) for chunk in columns(count).chunks(messages_a_frame(BODY_BYTES))]


def measure(broker: Broker, frames: list[bytes], warm_up: list[bytes]) -> tuple[float, float]:
    """Return the seconds until all ``frames`` are acknowledged and dispatched, and the broker's CPU seconds."""
    with RawClient(broker.address) as client:
        client.stream(warm_up)
        broker.wait_until_caught_up()
        watch = Stopwatch(broker.pid)
        client.stream(frames)
        broker.wait_until_caught_up()
        return watch.seconds(), watch.broker_cpu_seconds()


CASE = Case(
    "broker-alone",
    "broker alone: frames packed beforehand, unique keys, index keeping up",
    (
        Measure("columns", "columns", "msg/s", 1_500_000),
        Measure("columns_cpu", "columns: broker CPU per million", "s", 0.8),
        Measure("rows", "rows", "msg/s"),
        Measure("rows_cpu", "rows: broker CPU per million", "s"),
    ),
    samples,
)
