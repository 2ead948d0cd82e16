"""RocketMQ's client for Java before FlintMQ's gateway and before Apache RocketMQ, in turns, each with an empty store;
and the broker's processor time beside that of the same load through FlintMQ's own protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flintmq.client import Message, Producer
from flintmq.protocol.commands import PULL
from flintmq.scripts.rocketmq_suite import brokers, java

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, FramePacker, columns
from ..machine import cpu_seconds, touch_memory
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped
from ..raw import RawClient
from .sends import SINGLE_WARM_UP_MESSAGES, send_one_by_one

SINGLE = {"async": 20_000, "sync": 5_000}
WINDOW = 200_000
IN_FLIGHT = 64
BATCH = 400_000
BATCH_MESSAGES = 100
CONSUME = 400_000
WARM_UP = 10_000
"""Messages before the measurement: Java compiles a method after it has run ten thousand times."""
PULL_MESSAGES = 32
"""Messages that RocketMQ's push consumer asks for in a pull."""
CPU_TICK_US = 0.01
"""Less than any load costs a message; the system counts no time for a load of a few messages."""
PROGRAM_SECONDS_MAX = 120.0
BROKERS = ("flintmq", "rocketmq")
_FOLDER = Path(__file__).parents[1] / "rocketmq"
_COMPILED_WELL = ("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
"""Java's own choices, which the options for short-lived processes change."""
_ROCKETMQ_SETTINGS = {
    **{name: brokers.ROCKETMQ_SETTINGS[name] for name in ("brokerClusterName", "brokerName", "brokerIP1")},
    "defaultTopicQueueNums": QUEUES,
}


def samples(bench: Bench) -> Samples:
    if bench.alone:
        raise Skipped("the comparison with RocketMQ is off (--alone)")
    with bench.store() as folder:
        try:
            classes = java.fetch_class_path(folder)
            classes = java.compile_java(_FOLDER.glob("*.java"), classes, folder / "classes")
        except java.Unavailable as error:
            raise Skipped(str(error)) from error
        for _ in range(bench.runs):
            sample: Sample = {}
            for name in BROKERS:
                sample |= of_java(bench, classes, name)
            for load, cpu in of_own_protocol(bench).items():
                sample[f"{load}_cpu_own"] = cpu * 1e6
                sample[f"{load}_cpu_ratio"] = sample[f"{load}_cpu_flintmq"] / max(cpu * 1e6, CPU_TICK_US)
            yield sample


def of_java(bench: Bench, classes: str, name: str) -> Sample:
    """Return the figures of the client for Java before one of the brokers."""
    found: Sample = {}
    warm_up = bench.count(WARM_UP)
    for flush, count in SINGLE.items():
        with target(bench, classes, name, flush) as broker:
            count = bench.count(count)
            single, cpu = measured(bench, classes, broker, "single", count, warm_up)
        found |= {f"{flush}_{key}_{name}": single[key] * 1e6 for key in ("p50", "p99")}
        found[f"{flush}_cpu_{name}"] = cpu * 1e6 / (count + warm_up)
    with target(bench, classes, name, "async") as broker:
        count = bench.count(WINDOW)
        window, cpu = measured(bench, classes, broker, "window", count, warm_up, IN_FLIGHT)
    found |= {f"window_{name}": window["rate"], f"window_cpu_{name}": cpu * 1e6 / (count + warm_up)}
    with target(bench, classes, name, "async") as broker:
        count = bench.count(BATCH)
        batch, cpu = measured(bench, classes, broker, "batch", count, warm_up, BATCH_MESSAGES)
        found |= {f"batch_{name}": batch["rate"], f"batch_cpu_{name}": cpu * 1e6 / (count + warm_up)}
        consumed, cpu = measured(bench, classes, broker, "consume", count, 0)
    return found | {f"consume_{name}": consumed["rate"], f"consume_cpu_{name}": cpu * 1e6 / count}


@contextmanager
def target(bench: Bench, classes: str, name: str, flush: str) -> Iterator[brokers.Target]:
    """Yield a running broker with an empty store."""
    if name == "flintmq":
        address = f"127.0.0.1:{brokers.free_port()}"
        with bench.broker(flush, "--set", f"remoting.listen={address}") as broker:
            yield brokers.Target(address, address, broker.address, broker.pid)
        return
    settings = _ROCKETMQ_SETTINGS | {"flushDiskType": f"{flush.upper()}_FLUSH"}
    with bench.store() as folder, brokers.rocketmq(folder, classes, settings, (*_COMPILED_WELL, "-Xmx2g")) as running:
        touch_memory(bench.touched_gib, bench.folder)
        yield running


def measured(
    bench: Bench, classes: str, broker: brokers.Target, command: str, *numbers: int
) -> tuple[dict[str, float], float]:
    """Return the result of a command of the load program, and the processor seconds of the broker meanwhile."""
    with bench.store() as home:
        arguments = [broker.name_server, command, TOPIC, *map(str, numbers)]
        line = java.java_command(classes, home / "home", "RemotingLoad", arguments, _COMPILED_WELL)
        before = cpu_seconds(broker.pid)
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PROGRAM_SECONDS_MAX
        )
        cpu = cpu_seconds(broker.pid) - before
    if done.returncode:
        raise BenchFailed(f"RemotingLoad {command} ended with exit {done.returncode}; its error is above")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result, cpu


def of_own_protocol(bench: Bench) -> dict[str, float]:
    """Return the broker's processor seconds a message for each load through FlintMQ's own protocol."""
    found = {}
    for flush, count in SINGLE.items():
        with bench.broker(flush) as broker:
            before = cpu_seconds(broker.pid)
            send_one_by_one(broker, bench.count(count))
            found[flush] = (cpu_seconds(broker.pid) - before) / (bench.count(count) + SINGLE_WARM_UP_MESSAGES)
    with bench.broker("async") as broker:
        load = columns(bench.count(WINDOW))
        packer = FramePacker("remoting")
        frames = [packer.rows(each) for each in load.chunks(1)]  # the asyncio client would put many into a frame
        before = cpu_seconds(broker.pid)
        with RawClient(broker.address) as client:
            for start in range(0, len(frames), IN_FLIGHT):
                client.stream(frames[start : start + IN_FLIGHT])
        found["window"] = (cpu_seconds(broker.pid) - before) / len(load)
    with bench.broker("async") as broker:
        count = bench.count(BATCH)
        before = cpu_seconds(broker.pid)
        send_batches(broker, count)
        found["batch"] = (cpu_seconds(broker.pid) - before) / count
        before = cpu_seconds(broker.pid)
        pull_all(broker)
        found["consume"] = (cpu_seconds(broker.pid) - before) / count
    return found


def send_batches(broker: Broker, count: int) -> None:
    """Send messages in batches of the same size as the client for Java, and wait until they are dispatched."""
    load = columns(count)
    messages = [Message(TOPIC, body, keys=(key,)) for body, key in zip(load.bodies, load.keys, strict=True)]
    with Producer(broker.address) as producer:
        for start in range(0, count, BATCH_MESSAGES):
            producer.send_many(messages[start : start + BATCH_MESSAGES])
    broker.wait_until_caught_up()


def pull_all(broker: Broker) -> None:
    """Pull every message, with requests of the same size as those of the push consumer for Java."""
    with RawClient(broker.address) as client:
        for queue, length in client.queue_lengths(TOPIC).items():
            at = 0
            while at < length:
                fields, _ = client.call(
                    PULL, {"topic": TOPIC, "queue": queue, "offset": at, "max_count": PULL_MESSAGES}
                )
                at = fields["next_offset"]


ROWS = (
    ("async_p50", "one send, async flush: p50", "µs"),
    ("async_p99", "one send, async flush: p99", "µs"),
    ("sync_p50", "one send, sync flush: p50", "µs"),
    ("sync_p99", "one send, sync flush: p99", "µs"),
    ("window", f"{IN_FLIGHT} sends in flight", "msg/s"),
    ("batch", f"batches of {BATCH_MESSAGES}", "msg/s"),
    ("consume", "push consumer", "msg/s"),
)
CPU_ROWS = (
    ("async", "one send, async flush"),
    ("sync", "one send, sync flush"),
    ("window", f"{IN_FLIGHT} sends in flight"),
    ("batch", f"batches of {BATCH_MESSAGES}"),
    ("consume", f"pulls of {PULL_MESSAGES}"),
)
CPU_RATIO_MAX = 1.5

CASE = Case(
    "remoting",
    "RocketMQ's client for Java before FlintMQ and before RocketMQ 5.5.0, in turns",
    (
        *(Measure(f"{key}_{name}", f"{title}: {name}", unit) for key, title, unit in ROWS for name in BROKERS),
        *(
            Measure(f"{key}_cpu_{name}", f"{title}: CPU a message: {shown}", "µs")
            for key, title in CPU_ROWS
            for name, shown in (("flintmq", "flintmq"), ("rocketmq", "rocketmq"), ("own", "FlintMQ's own protocol"))
        ),
        *(
            Measure(f"{key}_cpu_ratio", f"{title}: CPU of the gateway / own protocol", "times", CPU_RATIO_MAX)
            for key, title in CPU_ROWS
        ),
    ),
    samples,
)
