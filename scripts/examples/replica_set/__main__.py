"""A replica set that loses its primary while a producer runs: a ledger of what was acknowledged and what is there.

Started by ``scripts/replica-demo``. Exits with 0 if every acknowledged message is there once and in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from flintmq.client import Consumer, FlintError

from ...lib.replica_servers import Ledger, ReplicaServers, SetFailed
from ...lib.step_report import rate_of, report, show_failure

TOPIC = "ledger"
SETTINGS = {"store.commitlog_file_bytes": 64 * 1024 * 1024, "replication.lease_ms": 2_000}


def demonstrate(servers: ReplicaServers, kills: int, seconds: float) -> None:
    """Run the demonstration. Raises ``SetFailed`` if anything differs."""
    servers.start_etcd()
    servers.begin()
    primary = servers.primary()
    report("started", f"etcd and the brokers {', '.join(servers.addresses)}; {primary} leads")
    ledger = Ledger(servers.bootstrap, TOPIC)
    thread = threading.Thread(target=ledger.run, name="producer")
    began = time.monotonic()
    thread.start()
    try:
        for number in range(1, kills + 1):
            time.sleep(seconds)
            ledger.take_slowest()
            before = ledger.acknowledged
            servers.kill(primary)
            servers.start(primary)
            killed, primary = primary, servers.primary()
            ledger.wait_beyond(before + 1)  # the message that was in flight is acknowledged now
            paused = ledger.take_slowest()
            report(
                f"kill {number}", f"{killed} killed after {before:,} messages; {primary} leads", f"pause {paused:.2f} s"
            )
        time.sleep(seconds)
    finally:
        ledger.stop()
        thread.join()
    if ledger.failure is not None:
        raise SetFailed(f"the producer failed: {ledger.failure}")
    report("sent", f"{ledger.acknowledged:,} acknowledged", rate_of(ledger.acknowledged, time.monotonic() - began))
    judge(servers, ledger.acknowledged)


def judge(servers: ReplicaServers, acknowledged: int) -> None:
    """Compare the ledger with the topic."""
    with Consumer(servers.bootstrap) as consumer:
        found = [int(bytes(message.body)) for message in consumer.iter(TOPIC, from_="earliest", until="latest")]
    times = Counter(found)
    lost = [number for number in range(acknowledged) if not times[number]]
    doubled = [number for number, count in times.items() if count > 1]
    report("lost", f"{len(lost):,}")
    report("doubled", f"{len(doubled):,}")
    report("disorder", f"{sum(after < before for before, after in pairwise(found)):,}")
    if lost or found != sorted(set(found)):
        raise SetFailed("the topic is not what was acknowledged")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./scripts/replica-demo")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flintmq-replicas-") as folder:
        servers = ReplicaServers(Path(folder), "abc", SETTINGS)
        try:
            demonstrate(servers, arguments.kills, arguments.seconds)
        except (SetFailed, FlintError) as error:
            show_failure("replica-demo", error)
            return 1
        finally:
            servers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
