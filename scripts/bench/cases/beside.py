"""Clients that another client's work delays: scrapes of the metrics, and connections that flood the broker."""

from __future__ import annotations

import itertools
import multiprocessing
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import msgpack

from flintmq.protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    HELLO,
    LAYOUT_COLUMNS,
    PRODUCE,
    PULL,
    QUERY_BY_KEY,
    UPDATE_CONSUMER_OFFSET,
)
from flintmq.protocol.errors import ERRORS_BY_CODE, error_from_answer
from flintmq.protocol.frames import REQUEST, encode_frame

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, QUEUES, TOPIC, FramePacker, columns, fill, fill_topics, topic_name
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..raw import TIMEOUT_SECONDS, RawClient

# ---- metrics: a scrape of a thousand topics while messages arrive, its duration, and the delay of other requests.

METRICS_TOPICS = 1_000
GROUPS = ("billing", "search")
SCRAPES = 40
SCRAPE_EVERY_SECONDS = 0.25
PING_EVERY_SECONDS = 0.001
PRODUCE_EVERY_SECONDS = 0.005
FRAME_MESSAGES = 100

_SPAWN = multiprocessing.get_context("spawn")

Span = tuple[float, float]
"""Start and end by ``time.perf_counter``, a clock that all processes share."""


def _metrics_samples(bench: Bench) -> Samples:
    topics, scrapes = bench.count(METRICS_TOPICS), 5 if bench.quick else SCRAPES
    for _ in range(bench.runs):
        with bench.store() as store, Broker(store, "async") as broker:
            fill_topics(broker.address, topics)
            commit_everywhere(broker, topics)
            with RawClient(broker.address) as client:
                url = f"http://{client.runtime_info()['metrics_address']}/metrics"
            with SideProcess(_ping, broker.address) as pinging, SideProcess(_produce, broker.address):
                spans = [_scrape(url, topics) for _ in range(scrapes)]
        pings = pinging.spans
        taken = [end - begin for begin, end in spans]
        during = [end - begin for begin, end in pings if any(begin < stop and end > start for start, stop in spans)]
        yield {
            "p50": percentile(taken, 0.50) * 1e3,
            "max": max(taken) * 1e3,
            "ping_p99": percentile(during, 0.99) * 1e3,
            "stall": max(during) * 1e3,
            "all_p99": percentile([end - begin for begin, end in pings], 0.99) * 1e3,
        }


def commit_everywhere(broker: Broker, topics: int) -> None:
    """Commit an offset of every queue for two groups."""
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, 0) for queue in range(QUEUES))
    with RawClient(broker.address) as client:
        for number in range(topics):
            for group in GROUPS:
                fields = {"group": group, "topic": topic_name(number), "count": QUEUES}
                client.call(UPDATE_CONSUMER_OFFSET, fields, body)


def _scrape(url: str, topics: int) -> Span:
    """Scrape once after a pause, and check that the response is complete."""
    time.sleep(SCRAPE_EVERY_SECONDS)
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        text = answer.read().decode()
    span = began, time.perf_counter()
    if (
        text.count("\nflintmq_produced_messages_total{") < topics
        or text.count("\nflintmq_group_lag_messages{") < topics
    ):
        raise BenchFailed("the metrics lack topics")
    return span


class SideProcess:
    """A separate process that calls a function of this module until the context ends, so that it does not share the
    bench's GIL. The function takes the address and the event that tells it to stop."""

    def __init__(self, work: Callable[[str, Event, Connection], None], address: str) -> None:
        self._stop = _SPAWN.Event()
        self._receiver, sender = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=work, args=(address, self._stop, sender), daemon=True)
        self.spans: list[Any] = []

    def __enter__(self) -> SideProcess:
        self._process.start()
        if not self._receiver.poll(TIMEOUT_SECONDS):
            raise BenchFailed("a process of the bench did not start")
        self._receiver.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if not self._receiver.poll(TIMEOUT_SECONDS):
            raise BenchFailed("a process of the bench did not end")
        self.spans = self._receiver.recv()
        self._process.join(TIMEOUT_SECONDS)


def _ping(address: str, stop: Event, result: Connection) -> None:
    """Send a small request every millisecond; report the times of each request and its response."""
    spans: list[Span] = []
    with RawClient(address) as client:
        result.send("ready")
        while not stop.wait(PING_EVERY_SECONDS):
            began = time.perf_counter()
            client.call(HELLO, {"protocol": 1})
            spans.append((began, time.perf_counter()))
    result.send(spans)


def _produce(address: str, stop: Event, result: Connection) -> None:
    """Produce a frame of 100 messages every 5 ms; report nothing."""
    packer = FramePacker("metrics")
    load = columns(FRAME_MESSAGES)
    with RawClient(address) as client:
        client.create_topic(TOPIC, QUEUES)
        result.send("ready")
        while not stop.wait(PRODUCE_EVERY_SECONDS):
            client.stream([packer.columns(load)])
    result.send([])


METRICS = Case(
    "metrics",
    "`/metrics` of 1,000 topics of 4 queues and 2 groups, 20 k msg/s coming in",
    (
        Measure("p50", "a scrape: p50", "ms"),
        Measure("max", "a scrape: longest", "ms", 50),
        Measure("ping_p99", "another client's request during a scrape: p99", "ms"),
        Measure("stall", "another client's request during a scrape: longest", "ms", 5),
        Measure("all_p99", "its requests at any time: p99", "ms"),
    ),
    _metrics_samples,
)

# ---- fairness: a connection that floods the broker, and another one that sends and pulls single messages.

FLOODED_MESSAGES = 500_000
"""In the queues that are read."""
SECONDS = 5.0
QUICK_SECONDS = 0.3
SETTLE_SECONDS = 0.5
WITNESS_TOPIC = "witness"
FLOOD_TOPIC = "flood"
WITNESS_EVERY_SECONDS = 0.002
FRAME_BYTES = 1_000_000
MESSAGES_MAX = 16_384
"""Maximum number of messages in a frame (`PRODUCE_MESSAGES_MAX` of the broker)."""
PULL_BYTES = 16 * 1024 * 1024


def _fairness_samples(bench: Bench) -> Samples:
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush, floods in FLOODS_BY_FLUSH.items():
            with bench.broker(flush) as broker:
                fill(broker.address, bench.count(FLOODED_MESSAGES))
                broker.wait_until_caught_up()
                sample[f"{flush}_quiet_send"], sample[f"{flush}_quiet_pull"] = p99s(broker.address, seconds)
                for name in floods:
                    with SideProcess(partial(pour, name), broker.address):
                        time.sleep(SETTLE_SECONDS)
                        send, pull = p99s(broker.address, seconds)
                    sample[f"{flush}_{name}_send"], sample[f"{flush}_{name}_pull"] = send, pull
        yield sample


def p99s(address: str, seconds: float) -> tuple[float, float]:
    """Return the p99 in milliseconds of sending and of pulling a message, measured in a process for some seconds."""
    with SideProcess(_witness, address) as beside:
        time.sleep(seconds)
    sends, pulls = zip(*beside.spans, strict=True)
    return percentile(sends, 0.99) * 1e3, percentile(pulls, 0.99) * 1e3


def _witness(address: str, stop: Event, result: Connection) -> None:
    """Send a message, pull it, and repeat; report the time of each step."""
    taken: list[tuple[float, float]] = []
    body = msgpack.packb([bytes(BODY_BYTES), {}])
    with RawClient(address) as client:
        client.create_topic(WITNESS_TOPIC, 1)
        fields, _ = client.call(PRODUCE, {"topic": WITNESS_TOPIC, "queue": 0, "count": 1}, body)
        result.send("ready")
        for queue_offset in itertools.count(fields["queue_offset"] + 1):
            if stop.wait(WITNESS_EVERY_SECONDS):
                break
            began = time.perf_counter()
            client.call(PRODUCE, {"topic": WITNESS_TOPIC, "queue": 0, "count": 1}, body)
            sent = time.perf_counter()
            found, _ = client.call(PULL, {"topic": WITNESS_TOPIC, "queue": 0, "offset": queue_offset})
            taken.append((sent - began, time.perf_counter() - sent))
            if found["count"] != 1:
                raise BenchFailed("the witness did not find its message")
    result.send(taken)


# ---- floods ----


def pour(flood: str, address: str, stop: Event, result: Connection) -> None:
    """Send the frames of one of ``FLOODS``, with at most as many unanswered as it says."""
    make_frames, window = FLOODS[flood]
    frames = make_frames()
    with RawClient(address) as client:
        client.create_topic(FLOOD_TOPIC, 4)
        result.send("ready")
        ahead = 0
        while not stop.is_set():
            while ahead < window:
                client.sock.sendall(next(frames))
                ahead += 1
            while (frame := client.parser.next_frame()) is None:
                count = client.sock.recv_into(client.parser.writable())
                if not count:
                    raise BenchFailed("the broker closed the connection")
                client.parser.received(count)
            if frame.code in ERRORS_BY_CODE:
                raise error_from_answer(frame.code, frame.fields)
            ahead -= 1
    result.send([])


def produce_frame(body_bytes: int) -> bytes:
    """Return a PRODUCE frame of maximum size, full of messages of one size."""
    count = min(FRAME_BYTES // (body_bytes + 5), MESSAGES_MAX)
    body = msgpack.packb([bytes(body_bytes)] * count) + msgpack.packb([None] * count)
    fields = {"topic": FLOOD_TOPIC, "count": count, "layout": LAYOUT_COLUMNS}
    return encode_frame(REQUEST, PRODUCE.code, 1, fields, body)


def pull_frames(**fields: object) -> Iterator[bytes]:
    """Yield pulls from the beginning of each queue in turn."""
    for queue in itertools.cycle(range(4)):
        yield encode_frame(REQUEST, PULL.code, 1, {"topic": TOPIC, "queue": queue, "offset": 0, **fields})


QUERY = encode_frame(REQUEST, QUERY_BY_KEY.code, 1, {"topic": TOPIC, "key": "order-00000007"})
FLOODS: dict[str, tuple[Callable[[], Iterator[bytes]], int]] = {
    "large_frames": (lambda: itertools.repeat(produce_frame(BODY_BYTES)), 8),
    "empty_messages": (lambda: itertools.repeat(produce_frame(0)), 8),
    "large_pulls": (lambda: pull_frames(max_bytes=PULL_BYTES, max_count=1_000_000), 8),
    "filter_pulls": (lambda: pull_frames(filter="nothing > 5 AND region IN ('eu', 'us')"), 16),
    "queries": (lambda: itertools.repeat(QUERY), 64),
}
"""Frames, and the number of them that are on the way at a time."""
FLOODS_BY_FLUSH = {"async": tuple(FLOODS), "sync": ("large_frames", "empty_messages")}
"""Floods for each flush policy: only messages that must reach the disk are slower with sync flush."""
SEND_MS_MAX = {
    "async_large_frames": 5.0,
    "async_empty_messages": 8.0,
    "async_large_pulls": 5.0,
    "sync_large_frames": 10.0,
}
_TITLES = {
    "quiet": "alone",
    "large_frames": "beside PRODUCE frames of 1 MB, 8 ahead",
    "empty_messages": "beside PRODUCE frames of 16,384 empty messages, 8 ahead",
    "large_pulls": "beside pulls of 16 MiB, 8 ahead",
    "filter_pulls": "beside pulls with a filter that finds nothing, 16 ahead",
    "queries": "beside queries by key, 64 ahead",
}

FAIRNESS = Case(
    "fairness",
    "one message at a time, sent and pulled, beside a connection that floods: p99",
    tuple(
        Measure(
            f"{flush}_{name}_{step}",
            f"{flush} flush, {_TITLES[name]}: a {step}",
            "ms",
            SEND_MS_MAX.get(f"{flush}_{name}") if step == "send" else None,
        )
        for flush, floods in FLOODS_BY_FLUSH.items()
        for name in ("quiet", *floods)
        for step in ("send", "pull")
    ),
    _fairness_samples,
)
