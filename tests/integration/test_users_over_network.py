"""Administrators add, change and remove users over the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.client import Admin, InvalidArgument, InvalidParameter, Message, NoPermission, Producer
from flintmq.client.aio import Admin as AioAdmin
from flintmq.protocol import commands
from flintmq.protocol.auth.permissions import ADMIN, BROKER, CONSUME, PUBLISH, TOPIC, Grant
from flintmq.protocol.auth.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.auth.users import USERS_FILE, verifier_row
from flintmq.protocol.errors import AuthenticationFailed, AuthenticationRequired, UserExistsAlready, UserNotExist
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RunningBroker
from tests.security_tools import PASSWORD, SCRAM, authenticate, set_grants, set_user

EVERYTHING = Grant(frozenset((ADMIN,)), BROKER)
SCRAM_ROW = verifier_row(make_verifier(PASSWORD, ITERATIONS_MIN))
FLY = {"actions": ["fly"], "topic": "orders"}


def publish(topic: str) -> Grant:
    return Grant(frozenset((PUBLISH,)), TOPIC, topic)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker with one administrator, ``ops``."""
    set_user(tmp_path / "store", "ops")
    brokers = Brokers(tmp_path)
    yield brokers.start(
        store=tmp_path / "store", settings=SCRAM | {"log.audit": tmp_path / "audit.log", "topics.auto_create": True}
    )
    brokers.stop_all()


@pytest.fixture
def admin(running: RunningBroker) -> Iterator[Admin]:
    with Admin(running.address, user="ops", password=PASSWORD) as admin:
        yield admin


def send(running: RunningBroker, user: str, password: str, topic: str = "orders") -> None:
    with Producer(running.address, user=user, password=password, delivery_timeout=20) as producer:
        producer.send(Message(topic, b"x"))


def test_a_user_can_connect_as_soon_as_the_change_is_answered(running: RunningBroker, admin: Admin) -> None:
    admin.create_user("shop", "a good password", [publish("orders")])
    send(running, "shop", "a good password")
    assert [(each.user, each.grants) for each in admin.users()] == [
        ("ops", (EVERYTHING,)),
        ("shop", (publish("orders"),)),
    ]

    admin.change_user("shop", grant=[publish("bills")], revoke=[publish("orders")])
    send(running, "shop", "a good password", "bills")
    with pytest.raises(NoPermission, match="publish on topic orders"):
        send(running, "shop", "a good password")

    admin.change_user("shop", password="another password")
    send(running, "shop", "another password", "bills")
    with pytest.raises(AuthenticationFailed):
        send(running, "shop", "a good password", "bills")

    admin.change_user("shop", revoke=None)
    with pytest.raises(NoPermission):
        send(running, "shop", "another password", "bills")
    admin.delete_user("shop")
    with pytest.raises(AuthenticationFailed):
        send(running, "shop", "another password", "bills")


def test_the_broker_keeps_no_password_and_the_users_outlive_a_restart(broker: BrokerFactory, tmp_path: Path) -> None:
    set_user(tmp_path / "store", "ops")
    running = broker(store=tmp_path / "store", settings=SCRAM)
    with Admin(running.address, user="ops", password=PASSWORD) as admin:
        admin.create_user("shop", "a good password", [publish("orders")])
    assert "a good password" not in (running.store / USERS_FILE).read_text()
    running.stop()
    again = broker(store=tmp_path / "store", settings=SCRAM | {"topics.auto_create": True})
    send(again, "shop", "a good password")


def test_a_removed_user_loses_its_connections_at_once(
    running: RunningBroker, admin: Admin, connect: ConnectionFactory
) -> None:
    admin.create_user("shop", PASSWORD, [publish("orders")])
    connection = connect(running)
    authenticate(connection, "shop")
    held = connection.send(commands.GET_ALL_TOPIC_CONFIG, {})
    connection.receive_for(held)
    admin.delete_user("shop")
    assert connection.receive().code == AuthenticationRequired.code


async def test_the_asyncio_admin_changes_users_too(running: RunningBroker) -> None:
    async with AioAdmin(running.address, user="ops", password=PASSWORD) as admin:
        await admin.create_user("shop", PASSWORD, [publish("orders")])
        await admin.change_user("shop", grant=[Grant(frozenset((CONSUME,)), TOPIC, "orders")])
        found = {each.user: each.grants for each in await admin.users()}
        assert found["shop"] == (Grant(frozenset((PUBLISH, CONSUME)), TOPIC, "orders"),)
        with pytest.raises(UserExistsAlready, match="user 'shop' already exists"):
            await admin.create_user("shop", PASSWORD)
        await admin.delete_user("shop")
        with pytest.raises(UserNotExist, match="there is no user 'shop'"):
            await admin.delete_user("shop")


def test_only_administrators_see_and_change_users(running: RunningBroker, admin: Admin) -> None:
    admin.create_user("shop", PASSWORD, [publish("orders")])
    with Admin(running.address, user="shop", password=PASSWORD) as shop:
        for call in (
            shop.users,
            lambda: shop.create_user("eve", PASSWORD, [EVERYTHING]),
            lambda: shop.change_user("shop", grant=[EVERYTHING]),
            lambda: shop.delete_user("ops"),
        ):
            with pytest.raises(NoPermission, match="admin on the broker"):
                call()
    assert {each.user for each in admin.users()} == {"ops", "shop"}


@pytest.mark.parametrize("password", ["half \ud800 a pair", "", "\x00", "x" * 2_000])
def test_a_password_that_no_user_can_have_is_an_invalid_argument(admin: Admin, password: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^password: ") as raised:
        admin.create_user("late", password)
    assert not password or password not in str(raised.value)
    with pytest.raises(InvalidArgument, match=r"^password: "):
        admin.change_user("ops", password=password)


def test_the_last_administrator_stays(admin: Admin) -> None:
    with pytest.raises(InvalidParameter, match="no user with full access would be left"):
        admin.delete_user("ops")
    with pytest.raises(InvalidParameter, match="no user with full access would be left"):
        admin.change_user("ops", revoke=[EVERYTHING])
    admin.create_user("second", PASSWORD, [EVERYTHING])
    admin.delete_user("ops")


def test_a_broker_that_serves_everybody_names_the_other_way(broker: BrokerFactory) -> None:
    with Admin(broker().address) as admin:
        for call in (admin.users, lambda: admin.create_user("shop", PASSWORD), lambda: admin.delete_user("shop")):
            with pytest.raises(InvalidParameter, match=r"flintmq user --store DIR"):
                call()


@pytest.mark.parametrize(
    ("command", "user", "body", "why"),
    [
        (commands.AUTH_CREATE_USER, "a/b", {"scram": SCRAM_ROW}, "is not a valid user name"),
        (commands.AUTH_CREATE_USER, "shop", {}, "the body must contain scram"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": {}}, "scram.iterations None"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": SCRAM_ROW | {"iterations": 1}}, "it must be 4096 to"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": SCRAM_ROW | {"salt": "?"}}, "needs scram.salt"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": SCRAM_ROW, "grants": [FLY]}, "'fly'"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": SCRAM_ROW, "grants": 7}, "must be a list of grants"),
        (commands.AUTH_CREATE_USER, "shop", {"scram": SCRAM_ROW, "password": "x"}, "any of grants, scram"),
        (commands.AUTH_CREATE_USER, "shop", [], "must be one msgpack map"),
        (commands.AUTH_CREATE_USER, "shop", b"\xc1", "is not one msgpack map"),
        (commands.AUTH_CREATE_USER, "shop", b"\xdf\xff\xff\xff\xff", "is not one msgpack map"),
        (commands.AUTH_CREATE_USER, "shop", b"\x91" * 100_000, "is not one msgpack map"),
        (commands.AUTH_CREATE_USER, "shop", b"\x00" * (commands.USER_BODY_BYTES_MAX + 1), "the maximum is"),
        (commands.AUTH_UPDATE_USER, "ops", {}, "contains no change"),
        (commands.AUTH_UPDATE_USER, "ops", {"revoke": [{"actions": ["publish"], "topic": "t"}]}, "there is no grant"),
        (commands.AUTH_UPDATE_USER, "op", {"grant": []}, "did you mean 'ops'"),
        (commands.AUTH_DELETE_USER, "nobody", b"", "there is no user 'nobody'"),
        (commands.AUTH_LIST_USER, "nobody", b"", "there is no user 'nobody'"),
    ],
)
def test_an_impossible_change_is_refused_and_changes_nothing(
    running: RunningBroker, connect: ConnectionFactory, command: commands.Command, user: str, body: Any, why: str
) -> None:
    before = (running.store / USERS_FILE).read_bytes()
    connection = connect(running)
    authenticate(connection, "ops")
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    answer = connection.call(command, {"user": user}, packed)
    assert answer.code in (InvalidParameter.code, UserNotExist.code)
    assert why in answer.fields["message"]
    assert connection.call(commands.AUTH_LIST_USER).fields["count"] == 1
    assert (running.store / USERS_FILE).read_bytes() == before


def test_a_file_of_users_that_cannot_be_read_is_named(running: RunningBroker, admin: Admin) -> None:
    for name in ("users.json", "users.json.bak"):
        (running.store / "flintmq" / name).write_text("{")
    with pytest.raises(InvalidParameter, match=r"users.json is not JSON.*nothing was changed"):
        admin.create_user("shop", PASSWORD)
    assert [each.user for each in admin.users()] == ["ops"]


def test_the_audit_log_names_the_changer_of_a_user(running: RunningBroker, admin: Admin, tmp_path: Path) -> None:
    admin.create_user("shop", PASSWORD)
    with Admin(running.address, user="shop", password=PASSWORD) as shop, pytest.raises(NoPermission):
        shop.delete_user("ops")
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    added = next(line for line in lines if line["action"] == "USER_ADDED" and line["object"] == "user shop")
    assert added["user"] == "ops"
    refused = next(line for line in lines if line["action"] == "AUTH_DELETE_USER")
    assert (refused["user"], refused["object"], refused["outcome"]) == ("shop", "user ops", "NO_PERMISSION")


def test_the_command_line_changes_users_at_the_broker(running: RunningBroker, tmp_path: Path) -> None:
    variables = {"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD}
    cli = Cli(tmp_path / "home", running.address, variables)
    made = cli.run("user", "add", "shop", "--generate")
    assert made.code == 0, made.err
    (tmp_path / "secret").write_text("a password of its own\n")
    assert cli.run("user", "add", "second", "--admin", "--new-password-file", str(tmp_path / "secret")).code == 0
    granted = cli.run("user", "grant", "shop", "--publish", "orders")
    assert "user shop has 1 grant now; a running broker applies it at once" in granted.err
    send(running, "shop", made.lines[0])
    assert cli.run("user", "list", "-o", "json").rows == [
        {"user": "ops", "admin": True, "grants": 1},
        {"user": "second", "admin": True, "grants": 1},
        {"user": "shop", "admin": False, "grants": 1},
    ]
    assert [row["name"] for row in cli.run("user", "show", "shop", "-o", "json").rows] == ["orders"]
    assert cli.run("user", "revoke", "shop", "--all").code == 0
    assert cli.run("user", "show", "shop", "-o", "json").rows == []
    assert cli.run("user", "passwd", "shop", "--generate").lines != made.lines
    assert cli.run("user", "remove", "shop", "--yes").code == 0
    missing = cli.run("user", "grant", "shop", "--publish", "orders")
    assert (missing.code, "USER_NOT_EXIST (1430): there is no user 'shop'" in missing.err) == (4, True)
    no_password = cli.run("user", "add", "third")
    assert (no_password.code, "needs a password: use --generate" in no_password.err) == (2, True)
    plain = Cli(
        tmp_path / "home", running.address, {"FLINTMQ_USER": "second", "FLINTMQ_PASSWORD": "a password of its own"}
    )
    assert plain.run("user", "remove", "ops", "--yes").code == 0


def test_grants_by_file_and_by_network_are_the_same(running: RunningBroker, admin: Admin) -> None:
    set_grants(running.store, {"shop": [publish("orders").as_json()]})
    # The broker reads the file under its lock, whether it has noticed the change or not.
    admin.change_user("shop", grant=[publish("bills")])
    assert {each.user: each.grants for each in admin.users()}["shop"] == (publish("orders"), publish("bills"))
