"""``flintmq tx list`` against a real broker that has both kinds of transactions; transcripts show the rest."""

from __future__ import annotations

from pathlib import Path

from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, ConnectionFactory
from tests.integration.test_cli_transcripts import SETTINGS
from tests.transaction_tools import GROUP, end, listed, send_half, wait_until


def test_open_transactions_come_first(broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path) -> None:
    topic, store = "orders", tmp_path / "store"
    parking = broker(store=store, settings=SETTINGS["parked"])
    before = connect(parking)
    parked = send_half(before, topic, b"paid", 1).transaction_id
    wait_until(lambda: parked in [row["id"] for row in listed(before, parked=True)], before)
    assert parking.stop() == 0
    patient = broker(store=store)
    connection, cli = connect(patient), Cli(tmp_path, patient.address)
    half = send_half(connection, topic, b"paid", 2)
    rows = cli.run("tx", "list", "-o", "json").rows
    assert [(row["id"], row["state"], row["group"], row["checks"]) for row in rows] == [
        (half.transaction_id, "open", GROUP, 0),
        (parked, "parked", GROUP, 1),
    ]
    assert 0 <= rows[1]["age_seconds"] < 600
    assert [row["id"] for row in cli.run("tx", "list", "--parked", "-o", "json").rows] == [parked]
    assert len(cli.run("tx", "list", "-n", "1", "-o", "plain").lines) == 1
    end(connection, half, commit=False).raise_for_error()
