"""The tails of a mixed load for a long time, FlintMQ, Redis and Kafka in turns; each stall of FlintMQ with its cause.

Two senders, a sender of bulks, reads of recent messages, queries by key, a reader that waits for each message, a member
of a group, and files that expire. A process that only keeps time runs beside them: what it finds is the machine's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..bench import Bench
from ..environment import clean_environment, install
from ..kafka.server import Kafka, get_jars
from ..machine import touch_memory
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped
from ..peers import figures, servers
from ..raw import RawClient
from ..stalls import CAUSES, STALL_MS, StallWatch, WatchedBroker

SECONDS = 600.0
QUICK_SECONDS = 6.0
FINISH_SECONDS_MAX = 60.0
QUEUES = 4
OPERATIONS = {
    "send": "a send",
    "bulk": "a bulk of 1,000",
    "read": "a read of 32 recent messages",
    "query": "a query by key",
    "arrive": "from a send to a waiting reader",
    "group": "from a send to a member of a group",
    "clock": "the machine: a process that keeps time",
}
"""The operations of ``peers/*_mixed.py``, each in a process of its own, and their titles."""
ONLY_FLINTMQ = ("query",)
PERCENTILES = ("p50", "p99", "p99.9", "p99.99")
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
STORE = {
    "store.commitlog_file_bytes": figures.KEPT_BYTES,
    "store.index_slots": 500_000,
    "store.index_entries": 2_000_000,
    "retention.file_reserved_hours": 0,
    "retention.delete_when": EVERY_HOUR,
}
"""Settings of a store whose files are full, and deleted, every minute or two."""
_PROGRAMS = Path(__file__).parents[1] / "peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker to compare with: its server, its program, and what that needs."""

    name: str
    start: servers.Start
    requirement: str


@contextmanager
def kafka(folder: Path, flush: str) -> Iterator[servers.Server]:
    """Run Kafka with segments of the size of FlintMQ's files, which expire as soon as they are full."""
    settings = {
        "num.partitions": QUEUES,
        "log.segment.bytes": figures.KEPT_BYTES,
        "log.retention.bytes": figures.KEPT_BYTES,
        "log.retention.check.interval.ms": 1_000,
    }
    with Kafka(get_jars(None), folder, figures.SINGLE_TOPIC, 1, settings) as server:
        yield servers.Server(server.address, server.pid)


PEERS = (Peer("redis", servers.redis, "redis[hiredis]==8.1.0"), Peer("kafka", kafka, "confluent-kafka==2.16.1"))


def samples(bench: Bench) -> Samples:
    """Yield one sample, whatever the number of runs. A peer that is not installed is left out, and the reason ends the
    case."""
    seconds = bench.seconds or (QUICK_SECONDS if bench.quick else SECONDS)
    bench.note(f"case tail: one run, {seconds:,.0f} s for each broker, async flush")
    sample = of_flintmq(bench, seconds)
    left_out: list[str] = []
    for peer in PEERS:
        try:
            if bench.alone:
                raise Skipped("the comparison with other brokers is off (--alone)")
            sample |= of_peer(bench, peer, seconds)
        except (Skipped, BenchFailed) as reason:
            left_out.append(f"{peer.name}: {reason}")
    yield sample
    if left_out:
        raise Skipped("; ".join(left_out))


def of_flintmq(bench: Bench, seconds: float) -> Sample:
    """Return FlintMQ's figures, and print its stalls; those that the machine caused are only counted."""
    options = [argument for name, value in STORE.items() for argument in ("--set", f"{name}={value}")]
    with (
        bench.store() as store,
        tempfile.TemporaryDirectory() as folder,
        WatchedBroker(store, "async", Path(folder), *options) as broker,
    ):
        with RawClient(broker.address) as client:
            client.create_topic(figures.SINGLE_TOPIC, 1)
            client.create_topic(figures.BULK_TOPIC, QUEUES)
        touch_memory(bench.touched_gib, bench.folder)
        with StallWatch(broker) as watch:
            sample = loaded(sys.executable, "flintmq", broker.address, seconds, tuple(OPERATIONS))
    for stall in watch.stalls:
        if stall.cause != "processor":
            bench.say(f"  stall: {stall}")
    return sample | watch.figures()


def of_peer(bench: Bench, peer: Peer, seconds: float) -> Sample:
    """Return a peer's figures."""
    operations = [name for name in OPERATIONS if name not in ONLY_FLINTMQ]
    with ExitStack() as stack:
        server = stack.enter_context(peer.start(stack.enter_context(bench.store()), "async"))
        python = install(stack.enter_context(bench.store()), peer.requirement)
        touch_memory(bench.touched_gib, bench.folder)
        return loaded(str(python), peer.name, server.address, seconds, operations)


def loaded(python: str, name: str, address: str, seconds: float, operations: Sequence[str]) -> Sample:
    """Return the percentiles of all operations, which run at the same time in a process each; two of them send."""
    program = f"{name}_mixed.py"
    environment = None if name == "flintmq" else clean_environment()
    running: list[tuple[str, subprocess.Popen[str]]] = []
    try:
        for operation in ("send", *operations):
            script = "mixed.py" if operation == "clock" else program
            command = [python, str(_PROGRAMS / script), operation, address, str(seconds)]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment
            )
            running.append((operation, process))
        sample: Sample = {}
        for operation, process in running:
            said, _ = process.communicate(timeout=seconds + FINISH_SECONDS_MAX)
            if process.returncode:
                raise BenchFailed(f"{program} {operation} ended with exit {process.returncode}; its error is above")
            found = json.loads(said)
            if not found["count"]:
                raise BenchFailed(f"{program} {operation} measured nothing")
            sample |= {f"{operation}_{share}_{name}": found[share] for share in PERCENTILES}
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{program} did not end within {FINISH_SECONDS_MAX:.0f} s after its time") from None
    finally:
        for _, process in running:
            process.kill()
            process.wait()
    return sample


CASE = Case(
    "tail",
    "tails of a mixed load, ten minutes for each broker: FlintMQ, Redis and Kafka in turns",
    (
        *(
            Measure(f"{operation}_{share}_{name}", f"{title}: {share}: {name}", "ms")
            for operation, title in OPERATIONS.items()
            for share in PERCENTILES
            for name in ("flintmq", *(peer.name for peer in PEERS))
            if name == "flintmq" or operation not in ONLY_FLINTMQ
        ),
        Measure("stalls", f"pauses of FlintMQ's loop above {STALL_MS:g} ms", "times"),
        Measure("stall_max", "the longest", "ms"),
        *(
            measure
            for cause, title in CAUSES.items()
            for measure in (
                Measure(f"stalls_{cause}", f"pauses by {title}", "times"),
                Measure(f"stall_max_{cause}", f"the longest by {title}", "ms"),
            )
        ),
    ),
    samples,
    seconds_max=3_600.0,
)
