"""A replica set beside a broker on its own: rates, processor time, a copy of the log, and pauses at a change of the
primary."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flintmq.client import Admin, Producer
from lib.replica_servers import Ledger, ReplicaServers, SetFailed

from ..bench import Bench
from ..load import QUEUES, TOPIC, columns
from ..machine import cpu_seconds
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped, percentile
from ..raw import RawClient
from .sends import seconds_of_sends

LEASE_MS = 5_000
SINGLE_SENDS = 3_000
WARM_UP_SENDS = 300
BULK_MESSAGES = 600_000
BULK = 10_000
COPY_MESSAGES = 800_000
COPY_BODY_BYTES = 1_000
CHANGES = 5
"""Number of switches, of kills, and of pauses of the primary in a run."""
CPU_TICK_S = 0.01
"""Smallest CPU time that the system counts."""
BETWEEN_S = 0.5
"""Time for which the producer sends before each change."""


def samples(bench: Bench) -> Samples:
    for _ in range(bench.runs):
        sample: Sample = {}
        with bench.broker("sync") as broker:
            single_p50 = send_one_by_one(broker.address, bench.count(SINGLE_SENDS))
            single_rate = send_bulks(broker.address, bench.count(BULK_MESSAGES))
        with replica_set(bench, "ab") as servers:
            sample["send"] = (send_one_by_one(servers.bootstrap, bench.count(SINGLE_SENDS)) - single_p50) * 1e6
            before = [cpu_seconds(servers.pid(member)) for member in "ab"]
            sample["bulk"] = send_bulks(servers.bootstrap, bench.count(BULK_MESSAGES)) / single_rate
            primary, follower = (
                cpu_seconds(servers.pid(member)) - used for member, used in zip("ab", before, strict=True)
            )
            sample["follower_cpu"] = 100 * follower / max(primary, CPU_TICK_S)
        with replica_set(bench, "abc") as servers:
            sample["copy"] = copy_rate(servers, bench.count(COPY_MESSAGES)) / 1e9
            sample.update(pauses(servers, 1 if bench.quick else CHANGES))
        yield sample


@contextmanager
def replica_set(bench: Bench, members: str) -> Iterator[ReplicaServers]:
    """Yield a running set with the topic; its primary is the first member."""
    settings = {"flush.policy": "sync", "replication.lease_ms": LEASE_MS}
    with bench.store() as folder:
        servers = ReplicaServers(folder, members, settings)
        try:
            servers.start_etcd()
            servers.begin()
            with RawClient(servers.addresses[servers.primary()]) as client:
                client.create_topic(TOPIC, QUEUES)
            yield servers
        except SetFailed as error:
            if "there is no etcd" in str(error):
                raise Skipped(str(error)) from error
            raise BenchFailed(str(error)) from error
        finally:
            servers.stop()


def send_one_by_one(address: str, count: int) -> float:
    """Return the median time of one acknowledged send, in seconds."""
    return percentile(seconds_of_sends(address, count, WARM_UP_SENDS), 0.50)


def send_bulks(address: str, count: int) -> float:
    """Return the messages per second of one producer."""
    bulks = list(columns(count).chunks(BULK))
    with Producer(address) as producer:
        producer.send_bulk(TOPIC, bodies=bulks[0].bodies, keys=bulks[0].keys)
        began = time.perf_counter()
        for bulk in bulks:
            producer.send_bulk(TOPIC, bodies=bulk.bodies, keys=bulk.keys)
        return count / (time.perf_counter() - began)


def copy_rate(servers: ReplicaServers, count: int) -> float:
    """Return the bytes per second with which a follower without a store receives the log, from its start on."""
    body = os.urandom(COPY_BODY_BYTES)
    with Producer(servers.bootstrap) as producer:
        for _ in range(0, count, BULK):
            producer.send_bulk(TOPIC, bodies=[body] * BULK)
    primary = servers.primary()
    emptied = next(member for member in servers.addresses if member != primary)
    servers.kill(emptied)
    shutil.rmtree(servers.store(emptied))
    with Admin(servers.bootstrap) as admin:
        wait_until(lambda: not all(each.in_sync for each in admin.replica_status().members), "a follower is missed")
        end = admin.replica_status().end
        began = time.perf_counter()
        servers.start(emptied)
        wait_until(lambda: all(each.in_sync for each in admin.replica_status().members), "a follower is in sync again")
        return end / (time.perf_counter() - began)


def wait_until(check: Callable[[], bool], state: str) -> None:
    """Wait for a state. Raises ``BenchFailed``."""
    end = time.monotonic() + 60
    while not check():
        if time.monotonic() > end:
            raise BenchFailed(f"not within 60 s: {state}")
        time.sleep(0.01)


def pauses(servers: ReplicaServers, count: int) -> Sample:
    """Return the longest send at a switch, a kill and a pause of the primary: medians of ``count`` each, in seconds."""
    ledger = Ledger(servers.bootstrap, TOPIC)
    thread = threading.Thread(target=ledger.run, name="producer")
    thread.start()
    try:
        found = {
            name: statistics.median(pause_at(servers, ledger, change) for _ in range(count))
            for name, change in (("switch", switch), ("kill", kill), ("hang", hang))
        }
    finally:
        ledger.stop()
        thread.join()
    if ledger.failure is not None:
        raise BenchFailed(f"the producer failed: {ledger.failure}") from ledger.failure
    return found


def pause_at(servers: ReplicaServers, ledger: Ledger, change: Callable[[ReplicaServers, Ledger, str], None]) -> float:
    """Return the longest send around one change of the primary, in seconds."""
    primary = servers.primary()
    time.sleep(BETWEEN_S)
    ledger.take_slowest()
    change(servers, ledger, primary)
    return ledger.take_slowest()


def switch(servers: ReplicaServers, ledger: Ledger, primary: str) -> None:
    """Hand the leadership to another member, and wait for it."""
    target = next(member for member in servers.addresses if member != primary)
    with Admin(servers.bootstrap) as admin:
        admin.switch_primary(target)
    wait_until(lambda: servers.primary() == target, f"{target} leads")
    ledger.wait_beyond(ledger.acknowledged + 1)


def kill(servers: ReplicaServers, ledger: Ledger, primary: str) -> None:
    """Kill the primary, and start it again after another one has acknowledged a message."""
    before = ledger.acknowledged
    servers.kill(primary)
    ledger.wait_beyond(before + 1)
    servers.start(primary)


def hang(servers: ReplicaServers, ledger: Ledger, primary: str) -> None:
    """Stop the primary's process until another one has acknowledged a message."""
    os.kill(servers.pid(primary), signal.SIGSTOP)
    try:
        before = ledger.acknowledged
        ledger.wait_beyond(before + 1)
    finally:
        os.kill(servers.pid(primary), signal.SIGCONT)


CASE = Case(
    "replication",
    "replica sets on one machine, with etcd, sync flush, a lease of 5 s",
    (
        Measure("send", "one send, 2 members: p50 above a broker on its own", "µs", 250),
        Measure("bulk", "bulks of 10,000, 2 members: share of the rate of a broker on its own", "×", 0.5),
        Measure("follower_cpu", "CPU time of the follower meanwhile: share of the primary's", "%", 70),
        Measure("copy", "an empty follower receives the log", "GB/s", 0.3),
        Measure("switch", "3 members: longest send at a switch", "s", 0.5),
        Measure("kill", "… after kill −9 of the primary", "s", LEASE_MS / 1000 + 1.5),
        Measure("hang", "… after the primary's process is stopped", "s", LEASE_MS / 1000 + 1.5),
    ),
    samples,
)
