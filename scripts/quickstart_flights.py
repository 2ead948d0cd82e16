"""The quickstart's main job: the flights of 2013 through a real broker, then through Spark, checked against their CSV.

Started by ``scripts/quickstart``. Ends with 0 if everything equals the CSV's, with 1 on any difference or failure.
Where QUICKSTART_SPARK is 0, or the disk has no room for Spark, the part with Spark is left out, which is said.
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
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.table import Table

from flintmq.client import Admin, Consumer, FlintError, Message, Producer, StoredMessage
from flintmq.client.pipeline.flights import packaged_csv, read_rows
from lib.environment import EXIT_NO_ROOM  # scripts/lib: a script's folder is on its path
from lib.flights_group import GroupFailed, consume_as_group
from lib.flights_pipeline import run_pipeline
from lib.local_broker import BrokerFailed, LocalBroker
from lib.reporting import console, rate_of, report, show_failure

TOPIC = "flights"
QUEUES = 4
TAG = "JFK"
AIRCRAFT = "N14228"
MESSAGES_A_SLICE = 20_000  # rows that are in memory as messages at once
DISPATCH_SECONDS_MAX = 60


class QuickstartFailed(Exception):
    """A difference from the CSV, or something that keeps the quickstart from its work."""


# ---- the input ----


def message_of(row: dict[str, str]) -> Message:
    """Body: the row as JSON. Tag: the origin. Keys: the aircraft, and the flight number with its carrier."""
    keys = []
    if row["tailnum"] != "NA":
        keys.append(row["tailnum"])
    if "NA" not in (row["carrier"], row["flight"]):
        keys.append(row["carrier"] + row["flight"])
    return Message(TOPIC, json.dumps(row).encode(), keys=keys, tags=row["origin"])


@dataclass
class Tally:
    """Number and content of a set of bodies, whatever their order: no body is lost, doubled or altered unseen."""

    count: int = 0
    content: int = 0

    def add(self, body: bytes) -> None:
        self.count += 1
        self.content = (self.content + hash(body)) & 0xFFFF_FFFF_FFFF_FFFF


@dataclass
class Expected:
    """What the CSV says that must come back."""

    all: Tally = field(default_factory=Tally)
    of_tag: Tally = field(default_factory=Tally)
    of_aircraft: Tally = field(default_factory=Tally)

    def add(self, row: dict[str, str], body: bytes) -> None:
        self.all.add(body)
        if row["origin"] == TAG:
            self.of_tag.add(body)
        if row["tailnum"] == AIRCRAFT:
            self.of_aircraft.add(body)


def check(what: str, got: Tally, expected: Tally) -> None:
    if got.count != expected.count:
        raise QuickstartFailed(f"{what}: {got.count:,} messages, but the CSV has {expected.count:,}")
    if got.content != expected.content:
        raise QuickstartFailed(f"{what}: {got.count:,} messages as in the CSV, but their bodies differ from its rows")


# ---- the steps ----


def produce(address: str) -> Expected:
    """Sends every row of the CSV; returns what must be found again."""
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
    """Queues and index are built behind the log: waits until both hold everything; the queues' ends."""
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
    for queue, end in enumerate(ends):
        offset = 0
        while offset < end:
            batch = consumer.pull(TOPIC, queue=queue, offset=offset, max_count=5_000, max_bytes=4 << 20, tags=tags)
            if batch.next_offset <= offset:
                raise QuickstartFailed(f"queue {queue} of `{TOPIC}` ends at {offset:,} instead of {end:,}")
            yield from batch.messages
            offset = batch.next_offset


def pull_all(consumer: Consumer, ends: Sequence[int], expected: Tally) -> None:
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
    tally = Tally()
    started = time.perf_counter()
    for message in pulled(consumer, ends, tags=TAG):
        tally.add(message.body)
    seconds = time.perf_counter() - started
    check(f"pulled by tag {TAG}", tally, expected)
    report("filtered", f"{tally.count:,} flights with tag {TAG} (from {TAG})", rate_of(tally.count, seconds))


def find_aircraft(consumer: Consumer, expected: Tally) -> None:
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


def share(address: str, expected: Expected) -> None:
    """A consumer group handles every flight; those of one aircraft fail the first time and come again."""
    tally = Tally()
    tried_again = consume_as_group(address, TOPIC, AIRCRAFT, expected.all.count, tally.add)
    check("handled by the group", tally, expected.all)
    if tried_again != expected.of_aircraft.count:
        raise QuickstartFailed(f"{tried_again} flights were tried again, not {expected.of_aircraft.count}")


def show(flights: Sequence[dict[str, str]]) -> None:
    table = Table("newest first", "flight", "from", "to", "delay, min", box=None, header_style="dim")
    for flight in flights:
        date = f"{flight['year']}-{int(flight['month']):02}-{int(flight['day']):02}"
        number = flight["carrier"] + flight["flight"]
        table.add_row(date, number, flight["origin"], flight["dest"], flight["dep_delay"])
    console.print()
    console.print(table)
    console.print()


# ---- the store ----


def refuse_flights(store: Path) -> None:
    """Looks at the files alone, so that nothing is written to a store that is refused."""
    tables = [store / "config" / name for name in ("topics.json", "topics.json.bak")]
    is_known = any(f'"{TOPIC}"' in table.read_text(errors="replace") for table in tables if table.is_file())
    if is_known or (store / "consumequeue" / TOPIC).exists():
        raise already_holds(store)


def already_holds(store: Path) -> QuickstartFailed:
    return QuickstartFailed(
        f"{store} already holds the topic `{TOPIC}`; no flight was written. Choose another folder, or serve this one: "
        f"{serve_command(store)}"
    )


def serve_command(store: Path) -> str:
    return f".venv/bin/flintmq-broker serve --store {shlex.quote(str(store))}"


def run(store: Path) -> None:
    refuse_flights(store)
    started = time.perf_counter()
    with LocalBroker(store) as broker:
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
    report("stopped", "the broker, in order")
    report("verified", "every count and every body against the CSV: no difference")


# ---- Spark ----


def run_with_spark(store: Path, folder: Path) -> None:
    """The flights pipeline, in the same store; results and Spark's log are in ``folder``."""
    if os.environ.get("QUICKSTART_SPARK") == "0":
        report("left out", "the part with Spark (QUICKSTART_SPARK=0); ./scripts/pipeline runs it")
        return
    console.print()
    if not install_spark():
        report("left out", "the part with Spark, for want of room; ./scripts/pipeline runs it once there is some")
        return
    with LocalBroker(store) as broker:
        run_pipeline(broker.address, folder / "parquet", folder / "spark.log")


def install_spark() -> bool:
    """Make the environment complete for Spark; False where the disk has no room for it, which was said."""
    script = Path(__file__).parent / "lib" / "environment.py"
    python = getattr(sys, "_base_executable", sys.executable)  # the environment itself may have no pip
    exit_code = subprocess.run([python, str(script), "spark"]).returncode
    if exit_code not in (0, EXIT_NO_ROOM):
        raise QuickstartFailed("Spark could not be installed: see above. QUICKSTART_SPARK=0 leaves its part out")
    importlib.invalidate_caches()  # what was installed just now is to be found
    return exit_code == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/quickstart", description="FlintMQ's main job on real input.")
    parser.add_argument("--store", metavar="DIR", type=Path, help="keep the store in DIR (default: a temporary store)")
    return parser.parse_args()


def main() -> int:
    chosen: Path | None = arguments().store
    # Ended from outside, the broker is stopped and a temporary store removed all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-quickstart-")))
            store = folder / "store" if chosen is None else chosen.absolute()
            run(store)
            run_with_spark(store, folder)
    except (QuickstartFailed, BrokerFailed, GroupFailed, FlintError) as failure:
        show_failure("quickstart", failure)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if chosen is not None:
        console.print(f"\nThe store stays; serve it with\n  {serve_command(store)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
