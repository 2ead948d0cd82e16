"""GET_CONNECTIONS, CLOSE_CONNECTION and GET_RIGHTS: who is connected, and what the own user may do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    InvalidArgument,
    InvalidArgumentType,
    InvalidParameter,
    Message,
    NoPermission,
    Producer,
    ServiceNotAvailable,
)
from flintmq.client.cli.failures import EXIT_USAGE
from flintmq.protocol import commands
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.group_tools import until
from tests.security_tools import PASSWORD, broker_with_users
from tests.tls_tools import Authority

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "shop": [{"actions": ["publish"], "topic": "orders"}, {"actions": ["consume"], "topicPrefix": "bills-"}],
    "nobody": [],
}


@pytest.fixture
def with_users(tmp_path: Path) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path, GRANTS, {}) as running:
        yield running


def test_a_connection_is_listed_with_its_client_and_its_traffic(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    began = int(time.time() * 1000)
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", queues=1)
        (own,) = admin.connections()
        producer.send(Message("orders", bytes(1_000)))
        raw = connect(running)
        held = raw.send(commands.PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 30_000})
        until(lambda: any(each.held_pulls for each in admin.connections()))
        first, second, third = admin.connections()
        assert (first.id, first.client, first.opened_ms) == (own.id, own.client, own.opened_ms)
        assert "pid" in first.client
        assert first.id < second.id < third.id
        assert began <= first.opened_ms <= third.opened_ms <= time.time() * 1000
        assert first.frames_in > own.frames_in
        assert first.bytes_out > own.bytes_out
        assert second.frames_in >= 2  # HELLO and PRODUCE
        assert 1_000 < second.bytes_in < 2_000
        assert (third.client, third.held_pulls, third.frames_in) == ("test", 1, 2)
        assert (third.host, third.port) == raw.sock.getsockname()[:2]
        assert (third.user, third.tls) == ("", False)
        producer.send(Message("orders", b"x"))
        assert raw.receive().request_id == held
        assert [each.held_pulls for each in admin.connections()] == [0, 0, 0]


def test_pages_continue_after_an_id(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    for _ in range(7):
        connect(running)
    with Admin(running.address) as admin:
        everything = [each.id for each in admin.connections()]
        assert len(everything) == 8
        found: list[int] = []
        while page := admin.connections(found[-1] if found else 0, max_count=3):
            assert len(page) <= 3
            found += [each.id for each in page]
        assert found == everything


def test_clients_appear_under_the_names_that_they_choose(broker: BrokerFactory) -> None:
    running = broker()
    with (
        Admin(running.address, client_name="billing for 10.1.2.3") as admin,
        Producer(running.address, client_name="till 7") as producer,
    ):
        producer.send(Message("new-topic", b"x"))  # greets again, to learn how many queues a new topic gets
        assert [each.client for each in admin.connections()] == ["till 7", "billing for 10.1.2.3"]


def test_a_client_name_is_checked_before_anything_is_sent() -> None:
    with pytest.raises(InvalidArgument, match="client_name has 257 characters"):
        Admin(client_name="x" * 257)
    with pytest.raises(InvalidArgumentType, match="client_name must be a str, not int"):
        Admin(client_name=7)  # type: ignore[arg-type] # that is the test


def test_a_closed_connection_is_not_listed(broker: BrokerFactory) -> None:
    running = broker()
    with Admin(running.address) as admin:
        with Producer(running.address) as producer:
            producer.send(Message("orders", b"x"))
            assert len(admin.connections()) == 2
        until(lambda: len(admin.connections()) == 1)


def test_an_idle_connection_says_for_how_long(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"net.server:HALF_FRAME_S": 0.4})  # the broker then looks every 100 ms
    connect(running)
    with Admin(running.address) as admin:
        until(lambda: admin.connections()[0].idle_ms >= 300)
        idle, asking = admin.connections()
        assert asking.idle_ms < idle.idle_ms


def test_a_user_sees_its_own_rights_and_only_an_operator_the_connections(with_users: RunningBroker) -> None:
    with (
        Admin(with_users.address, user="ops", password=PASSWORD) as ops,
        Admin(with_users.address, user="shop", password=PASSWORD) as shop,
    ):
        own = shop.whoami()
        assert own.user == "shop"
        assert [grant.as_json() for grant in own.grants] == GRANTS["shop"]
        assert {each.user for each in ops.connections()} == {"ops", "shop"}
        with pytest.raises(NoPermission, match="query on the broker"):
            shop.connections()


def test_a_closed_client_is_told_and_connects_again(
    broker: BrokerFactory, connect: ConnectionFactory, clients: Clients
) -> None:
    running = broker()
    with clients.Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", queues=1)
        producer.send(Message("orders", b"x"))
        raw = connect(running)
        raw.send(commands.PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 30_000})
        until(lambda: any(each.held_pulls for each in admin.connections()))
        _, sending, pulling = admin.connections()
        admin.close_connection(pulling.id)
        told = raw.receive()  # instead of the answer to the held pull
        assert (told.request_id, told.code) == (0, ServiceNotAvailable.code)
        assert "an administrator closed this connection" in told.fields["message"]
        assert raw.sock.recv(1) == b""
        with pytest.raises(InvalidParameter, match=f"connection {pulling.id} is not open"):
            admin.close_connection(pulling.id)
        admin.close_connection(sending.id, sending.opened_ms)
        producer.send(Message("orders", b"y"))
        again = [each for each in admin.connections() if each.client == sending.client]
        assert sending.id not in [each.id for each in again]


def test_a_connection_that_was_opened_at_another_time_stays_open(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    connect(running)
    with Admin(running.address) as admin:
        other = admin.connections()[0]
        with pytest.raises(InvalidParameter, match="not open"):
            admin.close_connection(other.id, other.opened_ms - 1)
        assert admin.connections()[0].id == other.id


def test_who_closes_the_own_connection_gets_the_response_first(broker: BrokerFactory) -> None:
    with Admin(broker().address) as admin:
        (own,) = admin.connections()
        admin.close_connection(own.id)
        until(lambda: [each.id for each in admin.connections()] == [own.id + 1])


def test_only_an_administrator_closes_a_connection_and_the_audit_log_has_it(tmp_path: Path) -> None:
    with broker_with_users(tmp_path, GRANTS, {"log.audit": tmp_path / "audit.log"}) as running:
        with (
            Admin(running.address, user="ops", password=PASSWORD) as ops,
            Admin(running.address, user="shop", password=PASSWORD, client_name="till 7") as shop,
        ):
            shop.whoami()
            with pytest.raises(NoPermission, match="admin on the broker"):
                shop.close_connection(1)
            till = next(each for each in ops.connections() if each.client == "till 7")
            ops.close_connection(till.id)
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        refused, closed = [line for line in lines if line["action"] == "CLOSE_CONNECTION"]
        assert (refused["user"], refused["object"], refused["outcome"]) == ("shop", "connection 1", "NO_PERMISSION")
        assert (closed["user"], closed["object"], closed["outcome"]) == ("ops", f"connection {till.id}", "done")
        assert closed["before"] == {"address": f"{till.host}:{till.port}", "user": "shop", "client": "till 7"}


def test_the_command_line_closes_connections(broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path) -> None:
    running = broker()
    cli = Cli(tmp_path / "home", running.address)
    connect(running)
    connect(running)
    first, second, _ = cli.run("connections", "-o", "json").rows
    unsure = cli.run("connections", "close", str(first["id"]))
    assert unsure.code == EXIT_USAGE
    assert "--yes closes without asking" in unsure.err
    closed = cli.run("connections", "close", str(first["id"]), str(second["id"]), "--yes")
    assert closed.code == 0
    assert f"closed connection {first['id']} of {first['address']} (test)" in closed.err
    until(lambda: len(cli.run("connections", "-o", "json").rows) == 1)  # the clients have the time to read why
    gone = cli.run("connections", "close", str(first["id"]), "--yes")
    assert gone.code == EXIT_USAGE
    assert f"connection {first['id']} is not open" in gone.err


def test_encrypted_connections_are_marked(broker: BrokerFactory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    running = broker(settings=authority.issue().broker_settings)
    with Admin(running.address, tls=authority.path) as admin:
        assert [each.tls for each in admin.connections()] == [True]


def test_the_command_line_shows_both(with_users: RunningBroker, broker: BrokerFactory, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", with_users.address, {"FLINTMQ_USER": "shop", "FLINTMQ_PASSWORD": PASSWORD})
    shown = cli.run("whoami")
    assert "user shop may:" in shown.err
    assert any("publish" in line and "orders" in line for line in shown.lines)
    assert cli.run("whoami", "-o", "json").rows[1] == {
        "user": "shop",
        "actions": ["consume"],
        "on": "topic",
        "name": "bills-",
        "prefix": True,
    }
    nobody = Cli(tmp_path / "home", with_users.address, {"FLINTMQ_USER": "nobody", "FLINTMQ_PASSWORD": PASSWORD})
    assert "user nobody has no permissions" in nobody.run("whoami", "-o", "table").out
    everybody = Cli(tmp_path / "home", broker().address, {})
    assert "the broker has no users: every client may do everything" in everybody.run("whoami", "-o", "table").out
    (row,) = everybody.run("connections", "-o", "json").rows
    assert row["address"].startswith("127.0.0.1:")
    assert row["frames_in"] >= 1
    assert "HELD PULLS" in everybody.run("connections", "-o", "table").lines[0]
