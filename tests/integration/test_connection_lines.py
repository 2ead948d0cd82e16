"""Log lines of every client about an outage: the connection broke, and the broker is back, each once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Message, Outcome, Producer, TransactionProducer, endpoint
from tests.cli_tools import Cli, Terminal
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import Seen, until


def restart(broker: BrokerFactory, running: RunningBroker) -> RunningBroker:
    running.stop()
    return broker("--listen", running.address, store=running.store)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "flintmq"):
        yield caplog


def events(log: pytest.LogCaptureFixture, name: str) -> list[str]:
    """Return the log lines of one client, in order."""
    return [record.event for record in log.records if hasattr(record, "event") and record.getMessage().startswith(name)]


OUTAGE = [endpoint.CONNECTED, endpoint.LOST, endpoint.BACK]


def changes(log: pytest.LogCaptureFixture, name: str) -> list[str]:
    """Return the same as ``events``, without the parts that depend on how fast the broker was back."""
    return [event for event in events(log, name) if event != endpoint.WAITING]


def test_a_producer_says_that_it_waits_and_that_the_broker_is_back(
    clients: Clients, broker: BrokerFactory, log: pytest.LogCaptureFixture
) -> None:
    running = broker()
    with clients.Producer(running.address, delivery_timeout=60) as producer:
        producer.send(Message("t", b"before"))
        running.stop()
        future = threading.Thread(target=producer.send, args=[Message("t", b"meanwhile")])
        future.start()
        until(lambda: endpoint.WAITING in events(log, "Producer"))
        broker("--listen", running.address, store=running.store)
        future.join()
    said = events(log, "Producer")
    assert said in (
        [endpoint.CONNECTED, endpoint.LOST, endpoint.WAITING, endpoint.BACK],
        [endpoint.CONNECTED, endpoint.WAITING, endpoint.BACK],  # the connection was idle when it broke
    )


def test_a_following_consumer_logs_it(clients: Clients, broker: BrokerFactory, log: pytest.LogCaptureFixture) -> None:
    running = broker()
    with (
        clients.Producer(running.address, delivery_timeout=60) as producer,
        clients.Consumer(running.address, timeout=60) as consumer,
    ):
        producer.send(Message("t", b"before"))
        messages = consumer.iter("t")
        assert next(iter(messages)).body == b"before"
        followed: list[bytes] = []
        follower = threading.Thread(target=lambda: followed.append(next(iter(messages)).body))
        follower.start()
        restart(broker, running)
        producer.send(Message("t", b"after"))
        follower.join()
    assert followed == [b"after"]
    assert changes(log, "Consumer") == OUTAGE


def test_a_push_consumer_and_a_transactional_producer_say_so(
    clients: Clients, broker: BrokerFactory, log: pytest.LogCaptureFixture
) -> None:
    running = broker()
    seen = Seen()
    with (
        clients.Producer(running.address, delivery_timeout=60) as producer,
        clients.PushConsumer(running.address, "g", "t", seen, start="first"),
        TransactionProducer(running.address, "p", lambda message: Outcome.COMMIT),
    ):
        producer.send(Message("t", b"before"))
        seen.wait(1)
        until(lambda: changes(log, "producer group p") == OUTAGE[:1])
        restart(broker, running)
        producer.send(Message("t", b"after"))
        seen.wait(2)
        until(lambda: changes(log, "producer group p") == OUTAGE)
    assert changes(log, "group g") == OUTAGE
    levels = {record.levelname for record in log.records if getattr(record, "event", "") == endpoint.LOST}
    assert "WARNING" in levels


def test_tail_says_on_standard_error_that_the_broker_went_and_came_back(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Cli(tmp_path, running.address) as cli:
        assert cli.run("send", "orders", "first").code == 0
        terminal = Terminal(cli, ["tail", "orders", "-n", "2", "--timeout", "60"], 300)
        terminal.read_until("first")
        running.stop()
        terminal.read_until("waiting for the broker: cannot reach a broker at")
        again = broker("--listen", running.address, store=running.store)
        terminal.read_until(f"connected to the broker at {running.address} again, after")
        with Producer(again.address) as producer:
            producer.send(Message("orders", b"second"))
        assert terminal.finish() == 0
        assert "second" in terminal.text
        assert terminal.text.count("waiting for the broker") == 1
