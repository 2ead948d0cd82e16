"""The flights example with a real broker and a real Spark: results, progress, and a second run after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Admin, Consumer, Producer
from flintmq.scripts.examples.flights import queries, runner, verification
from flintmq.scripts.examples.flights.flight import encode, replay
from flintmq.scripts.examples.flights.runner import SINK_LOG, Pipeline, QueryFailed, QueryProgress, ResultsFolder
from tests.conftest import RunningBroker
from tests.flights_csv import write_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
TIMEOUT_S = 120.0
LONG_S = 150.0
LATE_FLIGHT = {
    "time_hour": "2013-03-02T10:00:00Z",
    "carrier": "AA",
    "flight": 9999,
    "tailnum": "N1",
    "origin": "JFK",
    "dest": "BOS",
    "dep_time": 1000,
    "dep_delay": 500,
}


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flights(tmp_path_factory.mktemp("flights") / "flights.csv", FLIGHTS)


@pytest.fixture
def pipeline(shared_broker: RunningBroker, topic: str, csv: Path, tmp_path: Path) -> Pipeline:
    """Replay flights into a topic of their own; return the pipeline that reads it."""
    replay(shared_broker.address, topic, csv, timeout=TIMEOUT_S)
    results = ResultsFolder(tmp_path / "results")
    return Pipeline(
        broker=shared_broker.address, topic=topic, alerts_topic=f"{topic}-alerts", results=results, once=True
    )


def run(spark: SparkSession, pipeline: Pipeline) -> dict[str, QueryProgress]:
    with runner.prepared(pipeline, TIMEOUT_S):
        return {progress.query: progress for progress in runner.run(spark, pipeline)}


def verify(spark: SparkSession, pipeline: Pipeline, csv: Path) -> verification.Verification:
    """Compare everything with the CSV. Raises ``ResultsDiffer``."""
    expected = verification.Expected.of_csv(csv)
    verified = verification.verify(spark, pipeline.results.path, pipeline.broker, pipeline.alerts_topic, expected)
    verified.raise_for_differences(10)
    assert verified.hours == len(expected.hours) > 1000
    assert verified.alerts == len(expected.alerts) > 100
    return verified


def test_results_equal_the_csv_and_late_or_invalid_rows_are_counted(
    spark: SparkSession, pipeline: Pipeline, csv: Path
) -> None:
    progress = run(spark, pipeline)
    with Admin(pipeline.broker) as admin:
        there = sum(queue.count for queue in admin.topic_stats(pipeline.topic))
    for each in progress.values():
        assert (each.state, each.messages, each.lag, each.late, each.unreadable) == ("ended", there, 0, 0, 0)
    assert verify(spark, pipeline, csv).repeated_alerts == 0

    # The same folders again: finished work is not repeated, and new messages are judged by their time.
    on_time_but_cancelled = LATE_FLIGHT | {"time_hour": "2013-05-01T10:00:00Z", "dep_time": None, "dep_delay": None}
    bodies = [encode(on_time_but_cancelled), bytes(range(256)), b'{"time_hour":"2013-05-01T10:00:00Z","dep_delay":"x"}']
    with Producer(pipeline.broker) as producer:
        producer.send_bulk(pipeline.topic, [*bodies, encode(LATE_FLIGHT | {"dep_delay": 5})])
    progress = run(spark, pipeline)
    assert [(each.messages, each.unreadable) for each in progress.values()] == [(4, 2), (4, 2)]
    assert (progress["departures"].late, progress["alerts"].late) == (1, 0)
    assert verify(spark, pipeline, csv).repeated_alerts == 0


@pytest.mark.long(seconds=25)
def test_small_batches_drop_nothing(spark: SparkSession, pipeline: Pipeline, csv: Path) -> None:
    lateness = timedelta(days=1)
    small = Pipeline(
        broker=pipeline.broker,
        topic=pipeline.topic,
        alerts_topic=pipeline.alerts_topic,
        results=pipeline.results,
        once=True,
        lateness=lateness,
        rows_a_batch=1001,
    )
    progress = run(spark, small)
    assert progress["departures"].batches >= FLIGHTS // 1001
    assert progress["departures"].late == 0
    verify(spark, small, csv)


def test_the_queries_return_the_same_for_a_batch(spark: SparkSession, pipeline: Pipeline, csv: Path) -> None:
    read = spark.read.format("flintmq").option("bootstrap", pipeline.broker).option("subscribe", pipeline.topic)
    flights = queries.flights(read.load().select("body"))
    expected = verification.Expected.of_csv(csv)
    rows = queries.departures(flights).collect()
    assert sum(row["departures"] for row in rows) == sum(row.departures for row in expected.hours.values())
    alerts = [json.loads(row["body"]) for row in queries.alerts(flights).collect()]
    by_flight = {alert["flight"]: alert for alert in alerts}
    assert by_flight == {alert["flight"]: alert for alert in expected.alerts.values()}


def test_a_failing_query_prints_one_line_and_ends_the_other(spark: SparkSession, pipeline: Pipeline) -> None:
    with Admin(pipeline.broker) as admin:
        admin.create_topic(pipeline.alerts_topic, perm=4)  # not to be written to
    with pytest.raises(QueryFailed) as caught:
        run(spark, pipeline)
    said = str(caught.value)
    assert "the query 'alerts' failed: " in said
    assert pipeline.alerts_topic in said
    assert "run it again with the same folder" in said
    assert "\n" not in said
    assert "Traceback" not in said
    assert [query.name for query in spark.streams.active] == []


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until ``condition`` holds; the process must live until then."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def start_count(pipeline: Pipeline, environment: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
    """Start the command ``count`` in a process group of its own: its Java and workers die with it."""
    command = [sys.executable, "-P", "-m", "flintmq.scripts.examples.flights", "count", "--broker", pipeline.broker]
    command += ["--topic", pipeline.topic, "--alerts-topic", pipeline.alerts_topic]
    command += ["--parquet", str(pipeline.results.path), "--batch", "700", "--master", "local[2]", *options]
    # As in the tests' own Spark: the JVM's second compiler takes a core for a minute.
    environment = {**environment, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.long(seconds=50)
def test_after_a_kill_the_next_run_continues_and_the_results_are_exact(
    spark: SparkSession, spark_environment: dict[str, str], pipeline: Pipeline, csv: Path
) -> None:
    results = pipeline.results.path
    first = start_count(pipeline, spark_environment, "--once")
    wait_until((results / SINK_LOG / "1").exists, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=TIMEOUT_S)
    expected = verification.Expected.of_csv(csv)
    done = len(verification.read_hours(spark, results))
    assert 0 < done < len(expected.hours)

    second = start_count(pipeline, spark_environment)  # follows the topic until the test stops it
    try:
        wait_until(lambda: alerts_of(pipeline) >= expected.alerts.keys(), second)
        wait_until(lambda: len(verification.read_hours(spark, results)) == len(expected.hours), second)
        second.send_signal(signal.SIGTERM)
        out, err = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 0, err
        assert [line.split(",")[0] for line in out.decode().splitlines()] == ["departures: stopped", "alerts: stopped"]
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
    verify(spark, pipeline, csv)


def alerts_of(pipeline: Pipeline) -> set[str]:
    with Consumer(pipeline.broker) as consumer:
        found = consumer.iter(pipeline.alerts_topic, from_="earliest", until="latest")
        return {message.keys[0] for message in found}
