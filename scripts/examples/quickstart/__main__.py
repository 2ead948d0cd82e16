"""The quickstart: sends the flights of 2013 through a real broker, then through Spark, and compares all with the CSV.

Started by ``scripts/quickstart``. Exits with 0 if everything equals the CSV, with 1 on any difference or failure. If
QUICKSTART_SPARK is 0 or the disk has no room for Spark, it skips the part with Spark and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from flintmq.client import Admin, Consumer, FlintError, Message, Producer, PushConsumer, StoredMessage, TryLater
from flintmq.testing import StartedBroker

from ...lib import environment
from ...lib.step_report import console, rate_of, report, show_failure
from ..flights.flight import packaged_csv, read_rows

TOPIC = "flights"
QUEUES = 4
TAG = "JFK"
AIRCRAFT = "N14228"
MESSAGES_A_SLICE = 20_000  # rows kept in memory as messages
DISPATCH_SECONDS_MAX = 60
GROUP = "quickstart"
MEMBERS = 2
RETRY_LEVEL = 1
"""Delay level of the redelivery: 1 s. By default, a group begins with 10 s."""
GROUP_SECONDS_MAX = 120
SPARK_PART = "./scripts/examples/flights/run demo"


class QuickstartFailed(Exception):
    """Error: the results differ from the CSV, or the quickstart cannot run."""


# ---- the input ----


def message_of(row: dict[str, str]) -> Message:
    """Encode a row: JSON as the body, the origin as the tag, aircraft and flight number as keys."""
    keys = []
    if row["tailnum"] != "NA":
        keys.append(row["tailnum"])
    if "NA" not in (row["carrier"], row["flight"]):
        keys.append(row["carrier"] + row["flight"])
    return Message(TOPIC, json.dumps(row).encode(), keys=keys, tags=row["origin"])


@dataclass
class Tally:
    """Count and digest of a set of bodies in any order: it differs if a body is lost, doubled or altered."""

    count: int = 0
    content: int = 0

    def add(self, body: bytes) -> None:
        self.count += 1
        self.content = (self.content + hash(body)) & 0xFFFF_FFFF_FFFF_FFFF


@dataclass
class Expected:
    """Tallies of the rows that must come back."""

    all: Tally = field(default_factory=Tally)
    of_tag: Tally = field(default_factory=Tally)
    of_aircraft: Tally = field(default_factory=Tally)

    def add(self, row: dict[str, str], body: bytes) -> None:
        self.all.add(body)
        if row["origin"] == TAG:
            self.of_tag.add(body)
        if row["tailnum"] == AIRCRAFT:
            self.of_aircraft.add(body)


def check(step: str, got: Tally, expected: Tally) -> None:
    """Raise ``QuickstartFailed`` if the tallies differ."""
    if got.count != expected.count:
        raise QuickstartFailed(f"{step}: {got.count:,} messages, but the CSV has {expected.count:,}")
    if got.content != expected.content:
        raise QuickstartFailed(f"{step}: {got.count:,} messages as in the CSV, but their bodies differ from its rows")


# ---- the steps ----


def produce(address: str) -> Expected:
    """Send every row of the CSV; return the tallies that must come back."""
    expected = Expected()
    sending_seconds = 0.0
    body_bytes = 0
    queues: set[int] = set()
    source = read_rows(packaged_csv())
    with Producer(address) as producer, console.status("producing the flights…") as status:
        while flights := list(islice(source, MESSAGES_A_SLICE)):
            messages = [message_of(row) for row in flights]
            started = time.perf_counter()
            receipts = producer.send_many(messages)
            sending_seconds += time.perf_counter() - started
            queues.update(receipt.queue for receipt in receipts)
            for row, message in zip(flights, messages, strict=True):
                body_bytes += len(message.body)
                expected.add(row, message.body)
            status.update(f"producing the flights… {expected.all.count:,}")
    sent = f"{expected.all.count:,} flights to the {len(queues)} queues of `{TOPIC}`, acknowledged"
    report("produced", sent, rate_of(expected.all.count, sending_seconds, body_bytes))
    return expected


def queue_ends(consumer: Consumer) -> list[int]:
    return [consumer.pull(TOPIC, queue=queue, offset=0, max_count=1).max_offset for queue in range(QUEUES)]


def wait_until_dispatched(consumer: Consumer, expected: Tally) -> list[int]:
    """Wait until queues and index, which the broker builds after the log, hold everything; return the queues' ends."""
    deadline = time.monotonic() + DISPATCH_SECONDS_MAX
    while True:
        ends = queue_ends(consumer)
        behind_bytes = consumer.query(TOPIC, key=AIRCRAFT, max_count=1).index_behind_bytes
        if sum(ends) >= expected.count and behind_bytes == 0:
            return ends
        if time.monotonic() > deadline:
            raise QuickstartFailed(
                f"after {DISPATCH_SECONDS_MAX} s the queues hold {sum(ends):,} of {expected.count:,} messages, "
                f"and the index is {behind_bytes:,} bytes behind the log"
            )
        time.sleep(0.05)


def pulled(consumer: Consumer, ends: Sequence[int], tags: str | None = None) -> Iterator[StoredMessage]:
    """Yield every message of the topic, or those with the tag."""
    for queue, end in enumerate(ends):
        offset = 0
        while offset < end:
            batch = consumer.pull(TOPIC, queue=queue, offset=offset, max_count=5_000, max_bytes=4 << 20, tags=tags)
            if batch.next_offset <= offset:
                raise QuickstartFailed(f"queue {queue} of `{TOPIC}` ends at {offset:,} instead of {end:,}")
            yield from batch.messages
            offset = batch.next_offset


def pull_all(consumer: Consumer, ends: Sequence[int], expected: Tally) -> None:
    """Pull every message and check it."""
    tally = Tally()
    body_bytes = 0
    started = time.perf_counter()
    for message in pulled(consumer, ends):
        tally.add(message.body)
        body_bytes += len(message.body)
    seconds = time.perf_counter() - started
    check("pulled from all queues", tally, expected)
    report("pulled", f"{tally.count:,} flights from all queues", rate_of(tally.count, seconds, body_bytes))


def pull_tag(consumer: Consumer, ends: Sequence[int], expected: Tally) -> None:
    """Pull the messages with the tag and check them."""
    tally = Tally()
    started = time.perf_counter()
    for message in pulled(consumer, ends, tags=TAG):
        tally.add(message.body)
    seconds = time.perf_counter() - started
    check(f"pulled by tag {TAG}", tally, expected)
    report("filtered", f"{tally.count:,} flights with tag {TAG} (from {TAG})", rate_of(tally.count, seconds))


def find_aircraft(consumer: Consumer, expected: Tally) -> None:
    """Find the flights of one aircraft by key, check them and show the newest."""
    tally = Tally()
    flights: list[dict[str, str]] = []
    pages = 0
    cursor = None
    started = time.perf_counter()
    while pages == 0 or cursor is not None:
        page = consumer.query(TOPIC, key=AIRCRAFT, max_count=64, cursor=cursor)
        pages += 1
        cursor = page.cursor
        for message in page:
            tally.add(message.body)
            flights.append(json.loads(message.body))
    seconds = time.perf_counter() - started
    check(f"found by key {AIRCRAFT}", tally, expected)
    found = f"{tally.count:,} flights of aircraft {AIRCRAFT} by key, in {pages} pages"
    report("found", found, f"{seconds * 1000 / pages:>11.2f} ms a page")
    show(flights[:5])


def show(flights: Sequence[dict[str, str]]) -> None:
    table = Table("newest first", "flight", "from", "to", "delay, min", box=None, header_style="dim")
    for flight in flights:
        date = f"{flight['year']}-{int(flight['month']):02}-{int(flight['day']):02}"
        number = flight["carrier"] + flight["flight"]
        table.add_row(date, number, flight["origin"], flight["dest"], flight["dep_delay"])
    console.print()
    console.print(table)
    console.print()


# ---- the group: two members share the flights; those that fail in a listener are redelivered ----


class Member:
    """Listener of one member: passes every flight to ``add``; those with ``key`` fail at the first delivery."""

    def __init__(self, key: str, add: Callable[[bytes], object], lock: threading.Lock) -> None:
        self.count = 0
        self.failed = 0
        self.retried = 0
        self._key = key
        self._add = add
        self._lock = lock

    def __call__(self, batch: Any) -> None:
        failing = []
        with self._lock:
            for message in batch:
                if not message.reconsume_times and self._key in message.keys:
                    failing.append(message)
                    continue
                self.count += 1
                self.retried += message.reconsume_times
                self._add(message.body)
            self.failed += len(failing)
        if failing:
            raise TryLater(RETRY_LEVEL, failing)


def share(address: str, expected: Expected) -> None:
    """Have a consumer group handle every flight; those of one aircraft fail at first and are redelivered."""
    tally = Tally()
    wanted = expected.all.count
    lock = threading.Lock()
    members = [Member(AIRCRAFT, tally.add, lock) for _ in range(MEMBERS)]
    consumers = [
        PushConsumer(address, GROUP, TOPIC, member, start="first", batch=1000, workers=1) for member in members
    ]
    started = time.perf_counter()
    for consumer in consumers:
        consumer.start()
    try:
        seconds = _wait(members, consumers, wanted, started)
    finally:
        for consumer in consumers:
            consumer.close()
    shares = " and ".join(f"{member.count:,}" for member in members)
    report("shared", f"{wanted:,} flights by a group of {MEMBERS}: {shares}", rate_of(wanted, seconds))
    retried = sum(member.retried for member in members)
    report("retried", f"{retried} flights of {AIRCRAFT}, which failed at first, after 1 s")
    check("handled by the group", tally, expected.all)
    if retried != expected.of_aircraft.count:
        raise QuickstartFailed(f"{retried} flights were redelivered, not {expected.of_aircraft.count}")


def _wait(members: list[Member], consumers: list[PushConsumer], wanted: int, started: float) -> float:
    """Wait until all messages are handled; return the seconds until only redeliveries were missing."""
    seconds = 0.0
    while sum(member.count for member in members) < wanted:
        now = time.perf_counter() - started
        if not seconds and sum(member.count + member.failed for member in members) >= wanted:
            seconds = now
        if now > GROUP_SECONDS_MAX:
            health = [consumer.health() for consumer in consumers]
            raise QuickstartFailed(f"after {GROUP_SECONDS_MAX} s the group had not consumed everything: {health}")
        for consumer in consumers:
            consumer.wait(0.005)  # raises if it cannot continue
    return seconds or time.perf_counter() - started


# ---- the store ----


def refuse_flights(store: Path) -> None:
    """Refuse a store that holds the topic. Only reads files, so that a refused store stays unchanged."""
    tables = [store / "config" / name for name in ("topics.json", "topics.json.bak")]
    in_tables = any(f'"{TOPIC}"' in table.read_text(errors="replace") for table in tables if table.is_file())
    if in_tables or (store / "consumequeue" / TOPIC).exists():
        raise already_holds(store)


def already_holds(store: Path) -> QuickstartFailed:
    return QuickstartFailed(
        f"{store} already holds the topic `{TOPIC}`; no flight was written. Use another folder, or serve this one: "
        f"{serve_command(store)}"
    )


def serve_command(store: Path) -> str:
    return f".venv/bin/flintmq-broker serve --store {shlex.quote(str(store))}"


def run(store: Path) -> None:
    """Run all steps without Spark."""
    refuse_flights(store)
    started = time.perf_counter()
    with StartedBroker(store) as broker:
        report("started", f"a broker on {broker.address}", f"{time.perf_counter() - started:>11.1f} s")
        with Admin(broker.address) as admin, Consumer(broker.address) as consumer:
            admin.create_topic(TOPIC, queues=QUEUES)
            if any(queue_ends(consumer)):  # rebuilt from a log whose tables and queues were lost
                raise already_holds(store)
            expected = produce(broker.address)
            ends = wait_until_dispatched(consumer, expected.all)
            pull_all(consumer, ends, expected.all)
            pull_tag(consumer, ends, expected.of_tag)
            find_aircraft(consumer, expected.of_aircraft)
        share(broker.address, expected)
    report("stopped", "the broker, gracefully")
    report("verified", "every count and every body equals the CSV")


# ---- Spark ----


def run_with_spark(store: Path, folder: Path) -> None:
    """Run the flights example in the same store; results and Spark's log go to ``folder``."""
    if os.environ.get("QUICKSTART_SPARK") == "0":
        report("skipped", f"Spark (QUICKSTART_SPARK=0); {SPARK_PART} runs this part")
        return
    console.print()
    if not install_spark():
        report("skipped", f"Spark, because the disk is too small for it; {SPARK_PART} runs this part")
        return
    from ..flights.demo import run_demo

    with StartedBroker(store) as broker:
        run_demo(broker.address, folder / "parquet", folder / "spark.log")


def install_spark() -> bool:
    """Install Spark into the environment; return False, after printing why, if the disk has no room for it."""
    python = getattr(sys, "_base_executable", sys.executable)  # the environment itself may have no pip
    exit_code = subprocess.run([python, environment.__file__, "spark"]).returncode
    if exit_code not in (0, environment.EXIT_NO_ROOM):
        raise QuickstartFailed("Spark could not be installed, see above; QUICKSTART_SPARK=0 skips its part")
    importlib.invalidate_caches()  # the packages installed just now must be found
    return exit_code == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./scripts/quickstart", description="FlintMQ's main job on real input.")
    parser.add_argument("--store", metavar="DIR", type=Path, help="keep the store in DIR (default: a temporary store)")
    chosen: Path | None = parser.parse_args().store
    # SIGTERM raises SystemExit, so that the broker is stopped and a temporary store removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-quickstart-")))
            store = folder / "store" if chosen is None else chosen.absolute()
            run(store)
            run_with_spark(store, folder)
    except (QuickstartFailed, FlintError) as failure:
        show_failure("quickstart", failure)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if chosen is not None:
        console.print(f"\nThe store is kept; serve it with\n  {serve_command(store)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
