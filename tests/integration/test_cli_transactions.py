"""``flintmq tx`` against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin, TransactionEnded
from flintmq.client.cli.failures import EXIT_NOT_FOUND
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.transaction_tools import GROUP, end, listed, messages, send_half, wait_until

PARKING = {"transactions.timeout_ms": 400, "transactions.check_interval_ms": 400, "transactions.check_times_max": 1}


@pytest.fixture(scope="module")
def parking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that parks a transaction after one check, which no producer answers."""
    brokers = Brokers(tmp_path_factory.mktemp("parking"))
    yield brokers.start(settings=PARKING)
    brokers.stop_all()


@pytest.fixture
def connection(parking: RunningBroker, connect: ConnectionFactory) -> RawConnection:
    return connect(parking)


@pytest.fixture
def cli(tmp_path: Path, parking: RunningBroker) -> Iterator[Cli]:
    with Cli(tmp_path, parking.address) as cli:
        yield cli


_numbers = iter(range(1, 1_000_000))


def parked_one(connection: RawConnection, topic: str) -> str:
    """Return the id of a transaction that was parked."""
    half = send_half(connection, topic, b"paid", next(_numbers))
    wait_until(lambda: half.transaction_id in [row["id"] for row in listed(connection, parked=True)], connection)
    return half.transaction_id


class TestList:
    def test_open_transactions_come_first(
        self, broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path
    ) -> None:
        topic, store = "orders", tmp_path / "store"
        parking = broker(store=store, settings=PARKING)
        parked = parked_one(connect(parking), topic)
        assert parking.stop() == 0
        patient = broker(store=store)
        connection, cli = connect(patient), Cli(tmp_path, patient.address)
        half = send_half(connection, topic, b"paid", next(_numbers))
        rows = [row for row in cli.run("tx", "list", "-o", "json").rows if row["topic"] == topic]
        assert [(row["id"], row["state"], row["group"]) for row in rows] == [
            (half.transaction_id, "open", GROUP),
            (parked, "parked", GROUP),
        ]
        assert rows[1]["checks"] == 1
        assert 0 <= rows[1]["age_seconds"] < 600
        only = cli.run("tx", "list", "--parked", "-o", "json").rows
        assert half.transaction_id not in [row["id"] for row in only]
        assert len(cli.run("tx", "list", "-n", "1", "-o", "plain").lines) == 1
        end(connection, half, commit=False).raise_for_error()


class TestEnds:
    def test_a_parked_transaction_can_still_be_delivered_once(
        self, cli: Cli, connection: RawConnection, topic: str
    ) -> None:
        parked = parked_one(connection, topic)
        assert messages(connection, topic) == []
        assert cli.run("tx", "commit", parked).code == 0
        assert cli.run("tx", "commit", parked).code == 0
        assert [message.body for message in messages(connection, topic)] == [b"paid"]
        (row,) = [row for row in cli.run("tx", "list", "-o", "json").rows if row["id"] == parked]
        assert row["state"] == "delivered"
        assert end(connection, parked).fields["outcome"] == "commit"

    def test_a_parked_one_is_not_ended_by_accident(self, cli: Cli, connection: RawConnection, topic: str) -> None:
        parked = parked_one(connection, topic)
        with pytest.raises(TransactionEnded) as raised:
            end(connection, parked).raise_for_error()
        assert raised.value.details["outcome"] == "parked"
        assert cli.run("tx", "rollback", parked).code == 0
        assert messages(connection, topic) == []

    def test_a_transaction_with_a_deleted_topic_is_marked(
        self, cli: Cli, connection: RawConnection, parking: RunningBroker, topic: str
    ) -> None:
        parked = parked_one(connection, topic)
        with Admin(parking.address) as admin:
            admin.delete_topic(topic)
        done = cli.run("tx", "commit", parked)
        assert done.code == EXIT_NOT_FOUND
        assert "TOPIC_NOT_EXIST" in done.err
