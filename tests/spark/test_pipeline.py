"""The flights pipeline through a real broker and a real Spark: its results, what it reports, how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Admin, Consumer, Producer
from flintmq.client.pipeline import queries, runner, verification
from flintmq.client.pipeline.errors import PipelineFailed
from flintmq.client.pipeline.flights import encode
from flintmq.client.pipeline.folders import SINK_LOG, Folders
from flintmq.client.pipeline.progress import QueryProgress
from flintmq.client.pipeline.replay import replay
from flintmq.client.pipeline.runner import Pipeline
from tests.cli_tools import Cli
from tests.conftest import RunningBroker
from tests.pipeline_tools import write_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3000
TIMEOUT_S = 60.0
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
    return write_flights(tmp_path_factory.mktemp("pipeline") / "flights.csv", FLIGHTS)


@pytest.fixture
def pipeline(shared_broker: RunningBroker, topic: str, csv: Path, tmp_path: Path) -> Pipeline:
    """Flights in a topic of their own, and folders for the results."""
    replay(shared_broker.address, topic, csv, timeout=TIMEOUT_S)
    folders = Folders.of(tmp_path / "results")
    return Pipeline(
        broker=shared_broker.address, topic=topic, alerts_topic=f"{topic}-alerts", folders=folders, once=True
    )


def run(spark: SparkSession, pipeline: Pipeline) -> dict[str, QueryProgress]:
    with runner.prepared(pipeline, TIMEOUT_S):
        return {progress.query: progress for progress in runner.run(spark, pipeline)}


def verify(spark: SparkSession, pipeline: Pipeline, csv: Path) -> verification.PipelineVerified:
    """Compare everything with the CSV. Raises ``ResultsDiffer``."""
    expected = verification.Expected.of_csv(csv)
    verified = verification.PipelineVerified()
    hours = verification.read_hours(spark, pipeline.folders.results)
    verification.compare_hours(hours, expected, verified)
    with Consumer(pipeline.broker) as consumer:
        alerts = consumer.iter(pipeline.alerts_topic, from_="earliest", until="latest")
        verification.compare_alerts(alerts, expected, verified)
    verified.raise_for_differences(10)
    assert verified.hours == len(expected.hours) > 1000
    assert verified.alerts == len(expected.alerts) > 100
    return verified


def test_results_are_those_of_the_csv_and_what_comes_too_late_or_is_no_flight_is_counted(
    spark: SparkSession, pipeline: Pipeline, csv: Path
) -> None:
    progress = run(spark, pipeline)
    with Admin(pipeline.broker) as admin:
        there = sum(queue.count for queue in admin.topic_stats(pipeline.topic))
    for each in progress.values():
        assert (each.state, each.messages, each.behind, each.late, each.unreadable) == ("ended", there, 0, 0, 0)
    assert verify(spark, pipeline, csv).repeated_alerts == 0

    # The same folders again: what was done is not done again, and what came meanwhile is judged by its time.
    on_time_but_cancelled = LATE_FLIGHT | {"time_hour": "2013-05-01T10:00:00Z", "dep_time": None, "dep_delay": None}
    bodies = [encode(on_time_but_cancelled), bytes(range(256)), b'{"time_hour":"2013-05-01T10:00:00Z","dep_delay":"x"}']
    with Producer(pipeline.broker) as producer:
        producer.send_bulk(pipeline.topic, [*bodies, encode(LATE_FLIGHT | {"dep_delay": 5})])
    progress = run(spark, pipeline)
    assert [(each.messages, each.unreadable) for each in progress.values()] == [(4, 2), (4, 2)]
    assert (progress["departures"].late, progress["alerts"].late) == (1, 0)
    assert verify(spark, pipeline, csv).repeated_alerts == 0


def test_small_batches_drop_nothing(spark: SparkSession, pipeline: Pipeline, csv: Path) -> None:
    lateness = timedelta(days=1)
    small = Pipeline(
        broker=pipeline.broker,
        topic=pipeline.topic,
        alerts_topic=pipeline.alerts_topic,
        folders=pipeline.folders,
        once=True,
        lateness=lateness,
        rows_a_batch=1001,
    )
    progress = run(spark, small)
    assert progress["departures"].batches >= FLIGHTS // 1001
    assert progress["departures"].late == 0
    verify(spark, small, csv)


def test_the_queries_do_the_same_to_a_batch(spark: SparkSession, pipeline: Pipeline, csv: Path) -> None:
    read = spark.read.format("flintmq").option("bootstrap", pipeline.broker).option("subscribe", pipeline.topic)
    flights = queries.flights(read.load().select("body"))
    expected = verification.Expected.of_csv(csv)
    rows = queries.departures(flights).collect()
    assert sum(row["departures"] for row in rows) == sum(row.departures for row in expected.hours.values())
    alerts = [json.loads(row["body"]) for row in queries.alerts(flights).collect()]
    by_flight = {alert["flight"]: alert for alert in alerts}
    assert by_flight == {alert["flight"]: alert for alert in expected.alerts.values()}


def test_a_query_that_fails_is_one_line_and_ends_the_other(spark: SparkSession, pipeline: Pipeline) -> None:
    with Admin(pipeline.broker) as admin:
        admin.create_topic(pipeline.alerts_topic, perm=4)  # not to be written to
    with pytest.raises(PipelineFailed) as caught:
        run(spark, pipeline)
    said = str(caught.value)
    assert said.startswith("the query 'alerts' failed: ")
    assert pipeline.alerts_topic in said
    assert "run it again with the same folders" in said
    assert "\n" not in said
    assert "Traceback" not in said
    assert [query.name for query in spark.streams.active] == []


@pytest.fixture
def cli(shared_broker: RunningBroker, spark_environment: dict[str, str], tmp_path: Path) -> Iterator[Cli]:
    # As in the tests' own session: the JVM's second compiler takes a core for a minute.
    variables = {**spark_environment, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    with Cli(tmp_path / "config", shared_broker.address, variables=variables) as made:
        yield made


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Until ``condition`` holds; the process has to live so long."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_killed_in_the_middle_it_goes_on_and_the_results_are_exact(
    spark: SparkSession, cli: Cli, pipeline: Pipeline, csv: Path
) -> None:
    results = pipeline.folders.results
    line = [
        "pipeline",
        "run",
        "--topic",
        pipeline.topic,
        "--alerts-topic",
        pipeline.alerts_topic,
        "--parquet",
        str(results),
        "--batch",
        "700",
        "--master",
        "local[2]",
    ]
    first = cli.start(*line, "--once", start_new_session=True)  # a group of its own: its Java and workers die with it
    wait_until((results / SINK_LOG / "1").exists, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=TIMEOUT_S)
    expected = verification.Expected.of_csv(csv)
    done = len(verification.read_hours(spark, results))
    assert 0 < done < len(expected.hours)

    second = cli.start(*line, start_new_session=True)  # follows, until it is told to stop
    try:
        wait_until(lambda: alerts_of(pipeline) >= expected.alerts.keys(), second)
        wait_until(lambda: len(verification.read_hours(spark, results)) == len(expected.hours), second)
        second.send_signal(signal.SIGTERM)
        out, err = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode == 0, err
        assert [row.split("\t")[:2] for row in out.decode().splitlines()] == [
            ["departures", "stopped"],
            ["alerts", "stopped"],
        ]
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
    verify(spark, pipeline, csv)


def alerts_of(pipeline: Pipeline) -> set[str]:
    with Consumer(pipeline.broker) as consumer:
        found = consumer.iter(pipeline.alerts_topic, from_="earliest", until="latest")
        return {message.keys[0] for message in found}
