"""``flintmq pipeline`` against a broker, up to the step that needs Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, StoredMessage
from flintmq.client.cli.failures import EXIT_NOT_FOUND, EXIT_UNREACHED, EXIT_USAGE
from flintmq.client.pipeline.folders import Folders
from flintmq.client.pipeline.queries import LATENESS
from tests.cli_tools import Cli
from tests.conftest import RunningBroker
from tests.pipeline_tools import write_flights

FLIGHTS = 1500


@pytest.fixture
def cli(shared_broker: RunningBroker, tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path / "config", shared_broker.address) as made:
        yield made


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write_flights(tmp_path / "flights.csv", FLIGHTS)


def event_time_of(message: StoredMessage) -> datetime:
    return datetime.fromisoformat(json.loads(message.body)["time_hour"])


def test_a_replay_holds_every_flight_in_order_and_no_queue_runs_ahead(
    cli: Cli, csv: Path, topic: str, shared_broker: RunningBroker
) -> None:
    done = cli.run("pipeline", "produce", "--topic", topic, "--csv", str(csv), "-o", "json")
    assert done.code == 0, done.err
    assert done.rows[0]["flights"] == FLIGHTS
    hours: dict[int, list[datetime]] = {}
    with Consumer(shared_broker.address) as consumer:
        for message in consumer.iter(topic, from_="earliest", until="latest"):
            hours.setdefault(message.queue, []).append(event_time_of(message))
    assert sum(map(len, hours.values())) == FLIGHTS + done.rows[0]["heartbeats"]
    assert all(queue == sorted(queue) for queue in hours.values())
    assert len(hours) == 4
    for row in zip(*hours.values(), strict=True):  # the same place in each queue is about the same hour
        assert max(row) - min(row) <= LATENESS / 2


def test_a_topic_that_holds_messages_is_not_replayed_into(
    cli: Cli, csv: Path, topic: str, shared_broker: RunningBroker
) -> None:
    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"here first"))
    done = cli.run("pipeline", "produce", "--topic", topic, "--csv", str(csv))
    assert done.code == EXIT_USAGE
    assert "holds 1 messages already" in done.err
    with Admin(shared_broker.address) as admin:
        assert sum(queue.count for queue in admin.topic_stats(topic)) == 1


def test_an_invalid_csv_is_named_before_anything_is_sent(
    cli: Cli, tmp_path: Path, topic: str, shared_broker: RunningBroker
) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    done = cli.run("pipeline", "produce", "--topic", topic, "--csv", str(path))
    assert done.code == EXIT_USAGE
    assert "other.csv has no column" in done.err


@pytest.mark.parametrize("command", ["produce", "run"])
def test_a_broker_that_is_away_is_said_at_once(cli: Cli, tmp_path: Path, command: str) -> None:
    cli.broker = "127.0.0.1:1"
    options = ["--parquet", str(tmp_path / "out")] if command == "run" else []
    done = cli.run("pipeline", command, *options)
    assert done.code == EXIT_UNREACHED
    assert not (tmp_path / "out").exists()


def test_a_topic_that_is_not_there_is_said_before_spark_is_started(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("pipeline", "run", "--topic", "nowhere", "--parquet", str(tmp_path / "out"))
    assert done.code == EXIT_NOT_FOUND
    assert "nowhere" in done.err
    assert not (tmp_path / "out").exists()


def test_alerts_cannot_go_to_the_topic_that_is_read(cli: Cli, tmp_path: Path, topic: str) -> None:
    options = ("--topic", topic, "--alerts-topic", topic, "--parquet", str(tmp_path / "out"))
    done = cli.run("pipeline", "run", *options)
    assert done.code == EXIT_USAGE
    assert "alerts need another one" in done.err


def test_a_second_pipeline_in_the_same_folders_is_refused_before_spark_is_started(
    cli: Cli, tmp_path: Path, topic: str, shared_broker: RunningBroker
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic)
    purpose = {"topic": topic, "alerts": "flight-alerts"}
    with Folders.of(tmp_path / "out").claimed(purpose):
        done = cli.run("pipeline", "run", "--topic", topic, "--parquet", str(tmp_path / "out"))
    assert done.code == EXIT_USAGE
    assert "another pipeline runs" in done.err


def test_without_pyspark_it_says_what_to_install(
    cli: Cli, tmp_path: Path, topic: str, shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic)
    for name in [name for name in sys.modules if name == "pyspark" or name.startswith("pyspark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if Spark were not installed
    done = cli.run("pipeline", "run", "--topic", topic, "--parquet", str(tmp_path / "out"))
    assert done.code == EXIT_USAGE
    assert 'pip install "flintmq[spark]"' in done.err


def test_results_that_are_not_there_cannot_be_verified(cli: Cli, tmp_path: Path, csv: Path) -> None:
    (tmp_path / "out").mkdir()
    done = cli.run("pipeline", "verify", "--parquet", str(tmp_path / "out"), "--csv", str(csv))
    assert done.code == EXIT_USAGE
    assert "holds no results of the pipeline" in done.err
