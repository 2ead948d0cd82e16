"""The flights example on a real cluster whose machines die: the result is still exact."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Consumer
from flintmq.scripts.examples.flights.flight import FIELDS, replay
from flintmq.scripts.examples.flights.verification import (
    Expected,
    Verification,
    compare_alerts,
    compare_hours,
    read_hours,
)
from tests.conftest import BrokerFactory
from tests.spark.cluster import running_cluster

FLIGHTS = 6000
DAYS = 12
ROWS_A_BATCH = 1000
TIMEOUT_S = 280
ROOT = Path(__file__).resolve().parents[2]


def made_up_flights(seed: int) -> list[dict[str, str]]:
    """Flights of some days in the columns of the CSV, in the order of their hours; some late, some cancelled."""
    rng = random.Random(seed)
    begin = datetime(2013, 1, 1, tzinfo=UTC)
    rows = []
    for number in range(FLIGHTS):
        hour = begin + timedelta(hours=number * 24 * DAYS // FLIGHTS)
        cancelled = rng.random() < 0.02
        delay = rng.choice((rng.randint(-20, 60), rng.randint(0, 400)))
        rows.append(
            {
                "time_hour": hour.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "carrier": rng.choice(("UA", "AA", "B6")),
                "flight": str(number),
                "tailnum": rng.choice(("N14228", "N24211", "NA")),
                "origin": rng.choice(("EWR", "JFK", "LGA")),
                "dest": rng.choice(("IAH", "MIA", "BQN")),
                "dep_time": "NA" if cancelled else "517",
                "dep_delay": "NA" if cancelled else str(delay),
            }
        )
    return rows


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(FIELDS))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.long(seconds=140)
@pytest.mark.timeout(600)
def test_a_killed_worker_and_a_restarted_broker_change_nothing(
    spark: Any, spark_environment: dict[str, str], broker: BrokerFactory, tmp_path: Path
) -> None:
    rows = made_up_flights(seed=20131231)
    east, west = broker(), broker()
    for running, share, name in ((east, rows[0::2], "east.csv"), (west, rows[1::2], "west.csv")):
        replay(running.address, "flights", write_csv(tmp_path / name, share), queues=2)
    bootstrap = f"east={east.address},west={west.address}"
    with running_cluster(tmp_path, spark_environment, workers=2) as cluster:
        arguments = (cluster.url, bootstrap, east.address, str(tmp_path), str(ROWS_A_BATCH))
        application = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_app", *arguments],
            cwd=ROOT,
            env=spark_environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert application.stdout is not None
            batches = 0
            for line in application.stdout:
                batches += line.startswith("batch")
                if batches == 2 and line.startswith("batch"):
                    cluster.kill_worker(0)
                if batches == 3 and line.startswith("batch"):
                    west.kill()
                    west = broker("--listen", west.address, store=west.store)
                    break
            assert batches == 3, "it ended before anything could be killed"
            output, _ = application.communicate(timeout=TIMEOUT_S)
            assert application.returncode == 0
            assert output.splitlines()[-1] == "done"
        finally:
            if application.poll() is None:
                application.kill()
                application.communicate()
    expected = Expected.of_csv(write_csv(tmp_path / "all.csv", rows))
    assert len(expected.alerts) > 500
    verified = Verification()
    compare_hours(read_hours(spark, tmp_path / "results"), expected, verified)
    with Consumer(east.address) as consumer:
        compare_alerts(consumer.iter("alerts", until="latest"), expected, verified)
    verified.raise_for_differences(5)
    assert verified.repeated_alerts == 0
    assert verified.hours == len(expected.hours)
