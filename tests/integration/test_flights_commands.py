"""The replay of the flights example with a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from flintmq.client import Admin, Consumer, InvalidArgument, Message, Producer, StoredMessage
from flintmq.scripts.examples.flights.__main__ import main
from flintmq.scripts.examples.flights.queries import LATENESS
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
