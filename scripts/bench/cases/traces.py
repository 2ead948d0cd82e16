"""The price of OpenTelemetry for a message: sent alone, in a batch and in bulk, and handled alone and in a batch.

The figures are CPU time of the client, because the differences are smaller than the noise of a clock on the wall. The
rounds of all ways to trace take turns, and of each way the fastest round counts; of single sends the median.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

from flintmq.client import Message, Producer
from flintmq.client.core import hooks

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, Columns, columns
from ..measure import Case, Measure, Sample, Samples, Skipped
from .groups import BATCH, consume
from .sends import messages_of

SINGLES = 2_000
SEVERAL = 50_000
STORED = 20_000
ROUNDS = 5

_Ways = dict[str, hooks.Hooks | None]
_Measured = Callable[[], float]
"""Does something with messages, and returns the CPU seconds that each of them took."""


def samples(bench: Bench) -> Samples:
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise Skipped("the extras `otel` and `test` are not installed")
    from ..tracers import TimedSends, bare_seconds, ways

    for _ in range(bench.runs):
        with ways() as compared:
            with bench.broker() as broker, Producer(broker.address) as producer:
                sample = _figures("single", _singles(producer, columns(bench.count(SINGLES)), compared))
                timed = {key: TimedSends(way) for key, way in compared.items() if way is not None}
                _singles(producer, columns(bench.count(SINGLES)), timed)
                taken = {key: median(way.taken_ns) / 1e3 for key, way in timed.items()}
                sample["calls_own"] = taken["all"] - taken["interface"]
                sample["calls_recorded_own"] = taken["recorded"] - taken["recorded_interface"]
                sample |= _compared("many", compared, _many(producer, columns(bench.count(SEVERAL))))
                sample |= _compared("bulk", compared, _bulk(producer, columns(bench.count(SEVERAL))))
            with bench.broker() as broker:
                stored = bench.count(STORED)
                _store(broker, stored)
                sample |= _compared("listener", compared, _handled(broker, stored, None))
                sample |= _compared("batches", compared, _handled(broker, stored, BATCH))
        sample["bare"] = bare_seconds() * 1e6
        yield sample


@contextmanager
def _installed(way: Any) -> Iterator[None]:
    hooks.install(way)
    try:
        yield
    finally:
        hooks.install(None)


def _compared(name: str, ways: _Ways, measured: _Measured) -> Sample:
    """Return what each way to trace takes, in rounds that take turns."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for key, way in ways.items():
            with _installed(way):
                best[key] = min(best[key], measured() * 1e6)
    return _figures(name, best)


def _figures(name: str, taken: dict[str, float]) -> Sample:
    """Return the microseconds of a message that is not traced, and what each way to trace adds to them."""
    added = {f"{name}_{key}": us if key == "off" else max(0.0, us - taken["off"]) for key, us in taken.items()}
    own = {
        f"{name}_own": max(0.0, taken["all"] - taken["interface"]),
        f"{name}_recorded_own": max(0.0, taken["recorded"] - taken["recorded_interface"]),
    }
    return added | own


def _singles(producer: Producer, load: Columns, ways: Mapping[str, Any]) -> dict[str, float]:
    """Return the microseconds that a single send takes with each way to trace: the medians, as each message is sent in
    all ways, one after the other, because the client spins while it waits, and how long changes from second to
    second."""
    taken: dict[str, list[float]] = {key: [] for key in ways}
    for message in messages_of(load):
        for key, way in ways.items():
            with _installed(way):
                began = time.thread_time()
                producer.send(message)
                taken[key].append(time.thread_time() - began)
    return {key: median(each) * 1e6 for key, each in taken.items()}


def _many(producer: Producer, load: Columns) -> _Measured:
    messages = messages_of(load)

    def measured() -> float:
        began = time.process_time()
        producer.send_many(messages)
        return (time.process_time() - began) / len(messages)

    return measured


def _bulk(producer: Producer, load: Columns) -> _Measured:
    def measured() -> float:
        began = time.process_time()
        producer.send_bulk(TOPIC, load.bodies, keys=load.keys)
        return (time.process_time() - began) / len(load)

    return measured


def _store(broker: Broker, count: int) -> None:
    """Store messages that were sent one by one in traces of their own."""
    load = columns(count)
    with Producer(broker.address) as producer:
        producer.send_many(
            Message(TOPIC, body, keys=(key,), properties={"traceparent": f"00-{number:032x}-{number:016x}-01"})
            for number, (body, key) in enumerate(zip(load.bodies, load.keys, strict=True), 1)
        )
    broker.wait_until_caught_up()


def _handled(broker: Broker, count: int, batch: int | None) -> _Measured:
    groups = 0

    def measured() -> float:
        nonlocal groups
        groups += 1
        began = time.process_time()
        consume(broker, f"{batch}-{groups}", count, batch)
        return (time.process_time() - began) / count

    return measured


_TITLES = {
    "single": "`send`",
    "many": "`send_many`",
    "bulk": "`send_bulk`",
    "listener": "listener of messages",
    "batches": f"listener of batches of {BATCH:,}",
}
_OWN_MAX = 3.0
"""Aim: microseconds that tracing adds to a message, without the calls of OpenTelemetry's interface."""

CASE = Case(
    "tracing",
    "what tracing adds to a message, CPU of the client: without an SDK, and with one that records every span",
    (
        *(
            measure
            for name, title in _TITLES.items()
            for measure in (
                Measure(f"{name}_off", f"{title}: not traced", "µs/msg"),
                Measure(f"{name}_nothing", f"{title}: hooks that do nothing add", "µs/msg"),
                Measure(f"{name}_interface", f"{title}: hooks that only call OpenTelemetry add", "µs/msg"),
                Measure(f"{name}_all", f"{title}: FlintMQ's hooks add", "µs/msg"),
                Measure(f"{name}_own", f"{title}: … of which they do themselves", "µs/msg", _OWN_MAX),
                Measure(f"{name}_recorded_own", f"{title}: … if the span is recorded", "µs/msg"),
                Measure(f"{name}_sdk", f"{title}: hooks and SDK add", "µs/msg"),
            )
        ),
        Measure("calls_own", "`send`: calls of FlintMQ's hooks above those of OpenTelemetry's", "µs/msg", _OWN_MAX),
        Measure("calls_recorded_own", "`send`: … if the span is recorded", "µs/msg"),
        Measure("bare", "the SDK alone: a span and two metrics", "µs/msg"),
    ),
    samples,
)
