"""FlintMQ beside Redis, NATS and Kafka in one run: single sends, 64 messages at a time, and end to end at 500/s.

64 messages are in flight in two ways, each measured with the clients that have it: one call sends all of them
(``send_many``, a pipeline, ``produce`` and ``flush``), or 64 tasks of an asyncio client send one each. The brokers take
turns, so that all of them meet the same state of the machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..environment import clean_environment, install
from ..load import TOPIC, Columns, columns
from ..machine import cpu_seconds, touch_memory
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped, percentile
from ..paced_sender import MESSAGES_A_SECOND
from ..peers import servers
from .latency import produce_and_pull
from .sends import SINGLE_WARM_UP_MESSAGES, send_from_tasks, send_one_by_one

SINGLE = {"async": 20_000, "sync": 5_000}
WINDOW = {"async": 200_000, "sync": 64_000}
WARM_UP_64 = 5_000
IN_FLIGHT = 64
END_TO_END = 5_000
PROGRAM_SECONDS_MAX = 300.0
FLUSHES = ("async", "sync")
_PROGRAMS = Path(__file__).parents[1] / "peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker: its server, its load program, what the program needs, and its ways to send 64 messages."""

    name: str
    start: servers.Start
    program: str
    requirement: str
    ways: tuple[str, ...]


BATCH, TASKS = "batch", "tasks"
PEERS = (
    Peer("redis", servers.redis, "redis_load.py", "redis[hiredis]==8.1.0", (BATCH, TASKS)),
    Peer("nats", servers.nats, "nats_load.py", "nats-py==2.16.0", (TASKS,)),
    Peer("kafka", servers.kafka, "kafka_load.py", "confluent-kafka==2.16.1", (BATCH,)),
)


def samples(bench: Bench) -> Samples:
    """Yield one sample per run. A peer that is not installed, or does not start, is left out, and the reason ends the
    case."""
    if bench.alone:
        raise Skipped("the comparison with other brokers is off (--alone)")
    left_out: list[str] = []
    with ExitStack() as stack:
        pythons: dict[str, Path] = {}
        for peer in PEERS:
            try:
                for flush in FLUSHES:
                    with bench.store() as folder, peer.start(folder, flush):
                        pass
                pythons[peer.name] = install(stack.enter_context(bench.store()), peer.requirement)
            except (Skipped, BenchFailed) as reason:  # an old release may not know the setting for sync
                left_out.append(f"{peer.name}: {reason}")
        present = [peer for peer in PEERS if peer.name in pythons]
        for _ in range(bench.runs):
            sample: Sample = {}
            for flush in FLUSHES:
                sample |= of_flintmq(bench, flush)
                for peer in present:
                    sample |= of_peer(bench, peer, pythons[peer.name], flush)
            yield sample
    if left_out:
        raise Skipped("; ".join(left_out))


def of_flintmq(bench: Bench, flush: str) -> Sample:
    """Return FlintMQ's figures of one run."""
    count = bench.count(SINGLE[flush])
    with bench.broker(flush) as broker:
        before = cpu_seconds(broker.pid)
        taken = send_one_by_one(broker, count)
        cpu = (cpu_seconds(broker.pid) - before) / (count + SINGLE_WARM_UP_MESSAGES)
    warm_up = bench.count(WARM_UP_64)
    load = columns(bench.count(WINDOW[flush]) + warm_up)
    rates = {}
    with bench.broker(flush) as broker:
        rates[BATCH] = send_batches(broker, load, warm_up)
    with bench.broker(flush) as broker:
        rates[TASKS] = asyncio.run(send_from_tasks(broker, load, warm_up))[0]
    with bench.broker(flush) as broker:
        arrived = produce_and_pull(broker, bench.count(END_TO_END))
    single = {"p50": percentile(taken, 0.5) * 1e6, "p99": percentile(taken, 0.99) * 1e6, "rate": count / sum(taken)}
    end_to_end = {"p50": percentile(arrived, 0.5) * 1e3, "p99": percentile(arrived, 0.99) * 1e3}
    return figures(flush, "flintmq", single, cpu, rates, end_to_end)


def send_batches(broker: Broker, load: Columns, warm_up: int) -> float:
    """Return messages per second of calls that send 64 each, without the first ``warm_up`` messages."""
    with Producer(broker.address) as producer:

        def send(first: int, end: int) -> None:
            for at in range(first, end, IN_FLIGHT):
                several = zip(load.bodies[at : at + IN_FLIGHT], load.keys[at : at + IN_FLIGHT], strict=True)
                producer.send_many([Message(TOPIC, body, keys=(key,)) for body, key in several], queue=0)

        send(0, warm_up)
        began = time.perf_counter()
        send(warm_up, len(load))
        return (len(load) - warm_up) / (time.perf_counter() - began)


def of_peer(bench: Bench, peer: Peer, python: Path, flush: str) -> Sample:
    """Return a peer's figures of one run, each with an empty server."""

    def measure(command: str, *numbers: int) -> tuple[dict[str, float], float]:
        with bench.store() as folder, peer.start(folder, flush) as server:
            touch_memory(bench.touched_gib, bench.folder)
            before = cpu_seconds(server.pid)
            found = run(python, peer.program, command, server.address, *numbers)
            return found, cpu_seconds(server.pid) - before

    count = bench.count(SINGLE[flush])
    single, cpu = measure("single", count, SINGLE_WARM_UP_MESSAGES)
    rates = {way: measure(way, bench.count(WINDOW[flush]), bench.count(WARM_UP_64))[0]["rate"] for way in peer.ways}
    end_to_end, _ = measure("end_to_end", bench.count(END_TO_END), 250, MESSAGES_A_SECOND)
    return figures(flush, peer.name, single, cpu / (count + SINGLE_WARM_UP_MESSAGES), rates, end_to_end)


def figures(
    flush: str, name: str, single: dict[str, float], cpu: float, rates: dict[str, float], end_to_end: dict[str, float]
) -> Sample:
    """Return the figures of one broker by the keys of the case's measures."""
    found = {f"single_{key}": value for key, value in single.items()}
    found["single_cpu"] = cpu * 1e6
    found |= {f"{way}_rate": rate for way, rate in rates.items()}
    found |= {f"end_to_end_{key}": value for key, value in end_to_end.items()}
    return {f"{flush}_{key}_{name}": value for key, value in found.items()}


def run(python: Path, program: str, command: str, address: str, *numbers: int) -> dict[str, float]:
    """Return the output of a load program. Raises ``BenchFailed`` if it fails."""
    done = subprocess.run(
        [str(python), str(_PROGRAMS / program), command, address, *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        env=clean_environment(),
    )
    if done.returncode:
        raise BenchFailed(f"{program} ended with exit {done.returncode}; its error is above")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


ROWS: tuple[tuple[str, str, str], ...] = (
    ("single_p50", "one send: p50", "µs"),
    ("single_p99", "one send: p99", "µs"),
    ("single_rate", "one send at a time", "msg/s"),
    ("single_cpu", "one send: the broker's CPU", "µs"),
    ("batch_rate", "calls with 64 messages", "msg/s"),
    ("tasks_rate", "64 asyncio tasks", "msg/s"),
    ("end_to_end_p50", "end to end at 500/s: p50", "ms"),
    ("end_to_end_p99", "end to end at 500/s: p99", "ms"),
)


def _measures(peer: Peer, key: str) -> bool:
    """Return whether the figure ``key`` of ``ROWS`` is measured with the peer."""
    way = key.removesuffix("_rate")
    return way not in (BATCH, TASKS) or way in peer.ways


CASE = Case(
    "peers",
    "FlintMQ, Redis, NATS and Kafka in turns",
    tuple(
        Measure(f"{flush}_{key}_{name}", f"{flush}: {title}: {name}", unit)
        for flush in FLUSHES
        for key, title, unit in ROWS
        for name in ("flintmq", *(peer.name for peer in PEERS if _measures(peer, key)))
    ),
    samples,
)
