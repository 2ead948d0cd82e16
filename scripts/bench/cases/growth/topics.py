"""Growth of the number of topics: 10 connections create them, then each sends to all of them in turn."""

from __future__ import annotations

from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.frames import REQUEST, encode_frame

from ...bench import Bench
from ...broker import Broker
from ...closed_loop import closed_loop, connected
from ...load import single_frames, topic_name
from ...machine import Stopwatch, anonymous_bytes, touch_memory
from ...measure import Sample, percentile
from .part import Figure, Part, Sized

SIZES = (1, 100, 1_000, 10_000)
CONNECTIONS = 10
MESSAGES_A_CONNECTION = 5_000
"""Minimum number of messages that each connection sends; each topic gets at least one from each."""
WARM_UP_A_CONNECTION = 500


def measure(bench: Bench) -> Sized:
    """Yield the figures of each number of topics, each in an empty store."""
    for size in SIZES:
        yield size, of_topics(bench, bench.size(size))


def of_topics(bench: Bench, count: int) -> Sample:
    """Return the figures of ``count`` topics with one queue each."""
    sample: Sample = {}
    topics = [topic_name(number) for number in range(count)]
    with bench.store() as store:
        with Broker(store, "async") as broker, connected(broker.address, CONNECTIONS) as clients:
            touch_memory(bench.touched_gib, bench.folder)
            sample["create"] = closed_loop(clients, creations(topics)).seconds
            warm_up, messages = (
                max(count, bench.count(least)) for least in (WARM_UP_A_CONNECTION, MESSAGES_A_CONNECTION)
            )
            # Each connection begins with another topic, so that the connections do not send to the same one together.
            turned = [
                topics[count * number // CONNECTIONS :] + topics[: count * number // CONNECTIONS]
                for number in range(CONNECTIONS)
            ]
            frames = [
                single_frames(f"growth {number}", warm_up + messages, own_topics)
                for number, own_topics in enumerate(turned)
            ]
            # The first messages of a topic create its files.
            closed_loop(clients, [own_frames[:warm_up] for own_frames in frames])
            watch = Stopwatch(broker.pid)
            result = closed_loop(clients, [own_frames[warm_up:] for own_frames in frames])
            sample["cpu"] = watch.broker_cpu_seconds() * 1e6 / len(result.taken)
            sample["rate"] = result.rate
            sample["p99"] = percentile(result.taken, 0.99) * 1e3
            sample["memory"] = anonymous_bytes(broker.pid) / 1e6
        with Broker(store, "async") as broker:
            sample["start"] = broker.start_seconds
    return sample


def creations(topics: list[str]) -> list[list[bytes]]:
    """Return the requests of each connection that create the topics together."""
    fields = [{"topic": topic, "read_queues": 1, "write_queues": 1} for topic in topics]
    frames = [encode_frame(REQUEST, UPDATE_AND_CREATE_TOPIC.code, 1, each) for each in fields]
    return [frames[number::CONNECTIONS] for number in range(CONNECTIONS)]


TOPICS = Part(
    "topics",
    "topics",
    SIZES,
    (
        Figure("create", "created by 10 connections", "s", plotted=False),
        Figure("rate", "one send at a time, 10 connections", "msg/s"),
        Figure("p99", "p99", "ms"),
        Figure("cpu", "broker CPU a message", "µs"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("start", "start", "s"),
    ),
    measure,
)
