"""The commands of the flights example with a broker, up to the step that needs Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from flintmq.client import (
    Admin,
    ConnectionFailed,
    Consumer,
    InvalidArgument,
    Message,
    Producer,
    StoredMessage,
    TopicNotExist,
)
from flintmq.client.spark import SparkUnavailable
from flintmq.scripts.examples.flights.__main__ import main
from flintmq.scripts.examples.flights.errors import InvalidFlights, InvalidFolder
from flintmq.scripts.examples.flights.queries import LATENESS
from flintmq.scripts.examples.flights.results_folder import ResultsFolder
from tests.conftest import RunningBroker
from tests.flights_csv import write_flights

Run = Callable[..., str]

FLIGHTS = 1500


@pytest.fixture
def run(shared_broker: RunningBroker) -> Run:
    """Return a function that runs a command line, returns its standard output, and raises its errors."""

    def run(*args: str, broker: str = shared_broker.address) -> str:
        return CliRunner().invoke(main, [*args, "--broker", broker], catch_exceptions=False).stdout

    return run


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write_flights(tmp_path / "flights.csv", FLIGHTS)


def event_time_of(message: StoredMessage) -> datetime:
    return datetime.fromisoformat(json.loads(message.body)["time_hour"])


def test_a_replay_holds_every_flight_in_order_and_no_queue_runs_ahead(
    run: Run, csv: Path, topic: str, shared_broker: RunningBroker
) -> None:
    sent = re.match(r"sent ([\d,]+) flights and ([\d,]+) heartbeats to 4 queues", run_produce(run, topic, csv))
    assert sent is not None
    flights, heartbeats = (int(number.replace(",", "")) for number in sent.groups())
    assert flights == FLIGHTS
    hours: dict[int, list[datetime]] = {}
    with Consumer(shared_broker.address) as consumer:
        for message in consumer.iter(topic, from_="earliest", until="latest"):
            hours.setdefault(message.queue, []).append(event_time_of(message))
    assert sum(map(len, hours.values())) == FLIGHTS + heartbeats
    assert all(queue == sorted(queue) for queue in hours.values())
    assert len(hours) == 4
    for row in zip(*hours.values(), strict=True):  # the same place in each queue is about the same hour
        assert max(row) - min(row) <= LATENESS / 2


def run_produce(run: Run, topic: str, csv: Path) -> str:
    return run("produce", "--topic", topic, "--csv", str(csv))


def test_a_replay_into_a_topic_that_holds_messages_is_refused(
    run: Run, csv: Path, topic: str, shared_broker: RunningBroker
) -> None:
    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"here first"))
    with pytest.raises(InvalidArgument, match="holds 1 messages already"):
        run_produce(run, topic, csv)
    with Admin(shared_broker.address) as admin:
        assert sum(queue.count for queue in admin.topic_stats(topic)) == 1


def test_an_invalid_csv_is_named_before_anything_is_sent(run: Run, tmp_path: Path, topic: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidFlights, match=r"other\.csv has no column"):
        run_produce(run, topic, path)


@pytest.mark.parametrize("command", ["produce", "count"])
def test_an_unreachable_broker_is_reported_at_once(run: Run, tmp_path: Path, command: str) -> None:
    options = ["--parquet", str(tmp_path / "out")] if command == "count" else []
    with pytest.raises(ConnectionFailed):
        run(command, *options, broker="127.0.0.1:1")
    assert not (tmp_path / "out").exists()


def test_a_missing_topic_is_reported_before_spark_starts(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TopicNotExist, match="nowhere"):
        run("count", "--topic", "nowhere", "--parquet", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_alerts_cannot_go_to_the_topic_that_is_read(run: Run, tmp_path: Path, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="use another topic for the alerts"):
        run("count", "--topic", topic, "--alerts-topic", topic, "--parquet", str(tmp_path / "out"))


def test_a_second_run_in_the_same_folder_is_refused_before_spark_starts(
    run: Run, tmp_path: Path, topic: str, shared_broker: RunningBroker
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic)
    purpose = {"topic": topic, "alerts": "flight-alerts"}
    with ResultsFolder(tmp_path / "out").claimed(purpose), pytest.raises(InvalidFolder, match="another run uses"):
        run("count", "--topic", topic, "--parquet", str(tmp_path / "out"))


def test_the_error_without_pyspark_names_the_package_to_install(
    run: Run, tmp_path: Path, topic: str, shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic)
    for name in [name for name in sys.modules if name == "pyspark" or name.startswith("pyspark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if Spark were not installed
    with pytest.raises(SparkUnavailable, match=re.escape('pip install "flintmq[spark]"')):
        run("count", "--topic", topic, "--parquet", str(tmp_path / "out"))


def test_a_folder_without_results_cannot_be_verified(run: Run, tmp_path: Path, csv: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidFolder, match="holds no results"):
        run("verify", "--parquet", str(tmp_path / "out"), "--csv", str(csv))


def test_an_error_is_one_line_and_exit_code_1() -> None:
    command = [sys.executable, "-P", "-m", "flintmq.scripts.examples.flights", "produce", "--broker", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(r"flights: .*127\.0\.0\.1:1.*\n", done.stderr)
