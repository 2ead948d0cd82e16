"""The console over a broker with a thousand topics and a million messages: pages, start, memory, bytes, viewers."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from flintmq.client import Consumer, Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, FramePacker, fill, fill_topics
from ..machine import cpu_seconds, resident_bytes, touch_memory
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped, percentile
from ..raw import RawClient
from ..viewers import VIEWERS, browser, create_users, paint_ms, shown_ms, viewers, witness
from .beside import SideProcess

MESSAGES = 1_000_000
TOPICS = 1_000
PAGES = 100
WARM_UP_PAGES = 10
LIVE_RATE = 100_000
LIVE_SECONDS = 10.0
LARGE_TOPIC = "large-json"
LARGE_BYTES = 512 * 1024
SETTINGS = ("--set", "store.message_bytes_max=1048576")
"""The record of a body of ``LARGE_BYTES`` is larger than the default allows."""
VIEWED_SECONDS = 20.0
VIEWED_SECONDS_QUICK = 4.0
PROGRAM = "from flintmq.client.cli.main import main; main()"


def samples(bench: Bench) -> Samples:
    with bench.store() as store:
        with Broker(store, "async", *SETTINGS) as broker:
            touch_memory(bench.touched_gib, bench.folder)
            found = list(page_samples(bench, broker))
        create_users(store)
        for sample in found:
            yield sample | viewer_sample(store, VIEWED_SECONDS_QUICK if bench.quick else VIEWED_SECONDS)


def page_samples(bench: Bench, broker: Broker) -> Samples:
    """Yield the figures of the pages, one sample per run."""
    count = bench.count(MESSAGES)
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC, QUEUES)
    packer = fill(broker.address, count)
    fill_topics(broker.address, bench.count(TOPICS))
    with Producer(broker.address, compress_over=None) as producer:
        large = producer.send(Message(LARGE_TOPIC, large_json()))
    broker.wait_until_caught_up()
    with Consumer(broker.address) as consumer:
        newest = consumer.browse(TOPIC, count=1)[0]
    large_page = f"topics/{LARGE_TOPIC}/{large.queue}/{large.queue_offset}"
    for run in range(bench.runs):
        with console(broker.address) as (url, process, seconds):
            sample: Sample = {"start": seconds}
            urllib.request.urlopen(url + "topics").read()
            sample["memory"] = resident_bytes(process.pid) / 1e6
            pages = bench.count(PAGES)
            sample["topics"] = page_ms(url + "topics", pages)
            sample["newest"] = page_ms(f"{url}topics/{TOPIC}", pages)
            sample["by_key"] = key_ms(f"{url}topics/{TOPIC}", packer, count, pages, run)
            sample["detail"] = page_ms(f"{url}topics/{TOPIC}/{newest.queue}/{newest.queue_offset}", pages)
            sample["large"] = page_ms(url + large_page, pages)
            sample |= transferred(url)
            sample |= drawn(bench, url, large_page)
            sample["live"] = live_share(url, broker.address, process.pid)
        yield sample


def large_json() -> bytes:
    """Return a JSON body of ``LARGE_BYTES``."""
    row = json.dumps({"id": 1234567, "amount": 12.5, "customer": {"name": "Zoë", "city": "Zürich"}}).encode()
    body = b"[" + b",".join([row] * (LARGE_BYTES // (len(row) + 1) - 1))
    return body.ljust(LARGE_BYTES - 1) + b"]"


def drawn(bench: Bench, url: str, large_page: str) -> Sample:
    """Return the times of pages in a browser in ms; nothing but a note of the reason if there is no browser."""
    try:
        with browser() as chromium:
            return {"paint": paint_ms(chromium, url + "topics"), "large_shown": shown_ms(chromium, url + large_page)}
    except Skipped as reason:
        bench.note(f"without {reason}")
        return {}


def viewer_sample(store: Path, seconds: float) -> Sample:
    """Return the memory of a console with 20 viewers, and what they do to the sends of another client, which are
    measured without viewers before and after."""
    with (
        Broker(store, "async", *SETTINGS, "--set", "security.auth=scram") as broker,
        console(broker.address) as (url, process, _),
    ):
        quiet = sends(broker.address, seconds / 2)
        with viewers(url):
            beside = sends(broker.address, seconds)
            memory = resident_bytes(process.pid) / 1e6
        quiet += sends(broker.address, seconds / 2)
    alone_ms, beside_ms = percentile(quiet, 0.99) * 1e3, percentile(beside, 0.99) * 1e3
    return {
        "viewers_memory": memory,
        "send_alone": alone_ms,
        "send_beside": beside_ms,
        "send_ratio": 100 * beside_ms / alone_ms,
    }


def sends(address: str, seconds: float) -> list[float]:
    """Return the seconds that each send of another process took."""
    with SideProcess(witness, address) as beside:
        time.sleep(seconds)
    return beside.spans


@contextmanager
def console(address: str) -> Iterator[tuple[str, subprocess.Popen[str], float]]:
    """Run a console and yield its URL, its process and the seconds until it served."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, "-b", address, "console", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("console: "):
            raise BenchFailed("the console did not start")
        try:
            yield line.split()[1], process, time.perf_counter() - began
        finally:
            process.terminate()


def page_ms(url: str, pages: int) -> float:
    """Return the 95th percentile of the time of a page in ms."""
    return percentile([_get(url) for _ in range(WARM_UP_PAGES + pages)][WARM_UP_PAGES:], 0.95) * 1e3


def key_ms(url: str, packer: FramePacker, stored: int, pages: int, run: int) -> float:
    """Return the 95th percentile of the time of a page with the message of a key in ms; each page asks for another."""
    keys = [packer.unique_key((run * pages + number) * 7919 % stored) for number in range(WARM_UP_PAGES + pages)]
    return percentile([_get(f"{url}?key={quote(key)}") for key in keys][WARM_UP_PAGES:], 0.95) * 1e3


def _get(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as response:
        response.read()
    return time.perf_counter() - began


def live_share(url: str, address: str, pid: int) -> float:
    """Return the share of a core, in percent, that the console takes for a live view of ``LIVE_RATE`` messages a
    second."""
    ending = threading.Event()

    def flood() -> None:
        with Producer(address, flush="async") as producer:
            due = time.perf_counter()
            while not ending.is_set():
                producer.send_bulk(TOPIC, [bytes(100)] * (LIVE_RATE // 10))
                due += 0.1
                time.sleep(max(0.0, due - time.perf_counter()))

    flooder = threading.Thread(target=flood)
    with urllib.request.urlopen(f"{url}topics/{TOPIC}/live/stream") as stream:
        flooder.start()
        try:
            stream.readline()
            cpu_before, began = cpu_seconds(pid), time.perf_counter()
            while time.perf_counter() - began < LIVE_SECONDS:
                stream.readline()
            return 100 * (cpu_seconds(pid) - cpu_before) / (time.perf_counter() - began)
        finally:
            ending.set()
            flooder.join()


def transferred(url: str) -> Sample:
    """Return the compressed KiB of the scripts, of the style, and of a page with 50 messages."""
    with urllib.request.urlopen(f"{url}topics/{TOPIC}") as response:
        page: bytes = response.read()
    text = page.decode()

    def packed(*names: str) -> float:
        blobs = [urllib.request.urlopen(url.rstrip("/") + name).read() for name in names]
        return sum(len(gzip.compress(blob, 9)) for blob in blobs) / 1024

    scripts = re.findall(r"/static/[^\"? ]+\.js", text)
    styles = re.findall(r'<link rel="stylesheet" href="([^"]+)"', text)
    return {"scripts": packed(*scripts), "style": packed(*styles), "html": len(gzip.compress(page, 9)) / 1024}


CASE = Case(
    "console",
    "console, 1 M messages, 1,000 topics",
    (
        Measure("topics", "topics p95", "ms", 30),
        Measure("newest", "newest 50 p95", "ms", 40),
        Measure("by_key", "by key p95", "ms", 25),
        Measure("detail", "one message p95", "ms", in_table=False),
        Measure("start", "start", "s", 0.6),
        Measure("memory", "memory", "MB", 60),
        Measure("live", "live view of 100 k msg/s, share of a core", "%", 15),
        Measure("large", "page of a JSON body of 512 KiB p95", "ms", 200),
        Measure("large_shown", "the same, loaded and drawn by a browser", "ms", 200),
        Measure("paint", "first contentful paint of the topics", "ms", 300),
        Measure("viewers_memory", f"memory with {VIEWERS} viewers", "MB", 120),
        Measure("send_alone", "send of another client without viewers p99", "ms"),
        Measure("send_beside", f"send of another client beside {VIEWERS} viewers p99", "ms"),
        Measure("send_ratio", "the latter as a share of the former", "%", 120),
        Measure("scripts", "scripts", "KiB", 20, in_table=False),
        Measure("style", "style", "KiB", 8, in_table=False),
        Measure("html", "page of 50 messages", "KiB", 15, in_table=False),
    ),
    samples,
)
