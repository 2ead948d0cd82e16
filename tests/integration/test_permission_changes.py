"""Grants that change while a broker runs, and the audit log of users' actions."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.client import (
    Admin,
    Message,
    NoPermission,
    Outcome,
    Producer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TryLater,
)
from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT
from tests.cli_tools import Cli, Done
from tests.conftest import ConnectionFactory, RunningBroker
from tests.group_tools import Seen, until
from tests.security_tools import PASSWORD, LogIn, authenticate, broker_with_users, set_grants

ADMIN = [{"actions": ["admin"], "broker": True}]
HALF = "TRAN_MSG\x01true\x02PGROUP\x01shop\x02"
"""Properties with which a producer of the group ``shop`` begins a transaction."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with users and an audit log."""
    folder = tmp_path_factory.mktemp("changes")
    users = {"admin": ADMIN, "ann": [], "bob": []}
    with broker_with_users(folder, users, {"log.audit": folder / "audit.log"}) as running:
        yield running


@pytest.fixture
def log_in(running: RunningBroker, connect: ConnectionFactory) -> LogIn:
    return lambda name: authenticate(connect(running), name)


def user(running: RunningBroker, tmp_path: Path, *args: str) -> Done:
    """Run ``flintmq user`` on the broker's store."""
    with Cli(tmp_path) as cli:
        done = cli.run("user", *args, "--store", str(running.store))
    assert done.code == 0, done.err
    return done


def test_a_new_grant_takes_effect_and_a_removed_one_ends(running: RunningBroker, log_in: LogIn, tmp_path: Path) -> None:
    admin, ann = log_in("admin"), log_in("ann")
    admin.produce("orders", b"m", queue=0).raise_for_error()
    assert ann.pull("orders").code == ann.produce("orders", b"x").code == NoPermission.code

    user(running, tmp_path, "grant", "ann", "--consume", "orders", "--publish", "orders")
    until(lambda: ann.pull("orders").code == 0, "the grant")
    ann.produce("orders", b"x", queue=0).raise_for_error()
    end = ann.call(commands.GET_MAX_OFFSET, {"topic": "orders", "queue": 0}).raise_for_error().fields["offset"]
    held = ann.send(commands.PULL, {"topic": "orders", "queue": 0, "offset": end, "wait_ms": 60_000})

    user(running, tmp_path, "revoke", "ann", "--consume", "orders")
    answer = ann.receive_for(held)
    assert answer.code == NoPermission.code
    assert "consume on topic orders" in answer.fields["message"]
    ann.produce("orders", b"x", queue=0).raise_for_error()

    user(running, tmp_path, "revoke", "ann", "--all")
    until(lambda: ann.produce("orders", b"x", queue=0).code == NoPermission.code, "the revocation")


def test_a_user_without_publish_permission_creates_no_topic(running: RunningBroker, log_in: LogIn) -> None:
    assert log_in("bob").produce("made-by-bob", b"x").code == NoPermission.code
    topics = msgpack.unpackb(log_in("admin").call(commands.GET_ALL_TOPIC_CONFIG).body)
    assert "made-by-bob" not in {row["topic"] for row in topics}


def test_grants_spoiled_by_hand_allow_nothing_and_are_named_in_the_log(running: RunningBroker, log_in: LogIn) -> None:
    set_grants(running.store, {"bob": [{"actions": ["fly"], "topic": "orders"}]})
    until(lambda: "'fly' is not an action" in running.log or log_in("bob").pull("orders").code == 0, "the message")
    assert log_in("bob").pull("orders").code == NoPermission.code
    set_grants(running.store, {"bob": []})


def test_clients_name_the_missing_permission(running: RunningBroker) -> None:
    with (
        Producer(running.address, user="bob", password=PASSWORD) as producer,
        pytest.raises(NoPermission, match="user bob has no permission: publish on topic orders"),
    ):
        producer.send(Message("orders", b"x"))
    with (
        Admin(running.address, user="bob", password=PASSWORD) as admin,
        pytest.raises(NoPermission, match="flintmq user grant bob --manage orders"),
    ):
        admin.delete_topic("orders")


# ---- the audit log


def audit_of(running: RunningBroker, action: str, target: str) -> list[dict[str, Any]]:
    """Return the audit lines about an object without their times and addresses, which are checked here."""
    path = running.store.parent / "audit.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert entry.pop("time").endswith("Z")
        if entry["action"] == action and entry["object"] == target:
            assert entry.pop("address").startswith("127.0.0.1:")
            found.append({key: value for key, value in entry.items() if key not in ("action", "object")})
    return found


def test_changes_of_topics_are_audited_with_the_previous_values(running: RunningBroker, log_in: LogIn) -> None:
    admin, bob = log_in("admin"), log_in("bob")
    create = {"topic": "audited", "read_queues": 4, "write_queues": 4}
    admin.call(commands.UPDATE_AND_CREATE_TOPIC, create).raise_for_error()
    admin.call(commands.UPDATE_AND_CREATE_TOPIC, {**create, "perm": 4}).raise_for_error()
    assert bob.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": "audited"}).code == NoPermission.code
    admin.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": "audited"}).raise_for_error()
    admin.produce("audited-auto", b"secret-body").raise_for_error()

    writable = {"read_queues": 4, "write_queues": 4, "perm": 6, "order": False}
    writable |= {"retention_hours": 0, "retention_bytes": 0}
    who = {"user": "admin", "client": "test", "outcome": "done"}
    assert audit_of(running, "UPDATE_AND_CREATE_TOPIC", "topic audited") == [
        {**who, "after": writable},
        {**who, "before": writable, "after": {**writable, "perm": 4}},
    ]
    refused, deleted = audit_of(running, "DELETE_TOPIC_IN_BROKER", "topic audited")
    assert (refused["user"], refused["outcome"]) == ("bob", "NO_PERMISSION")
    assert "admin on topic audited" in refused["reason"]
    assert deleted == {**who, "before": {**writable, "perm": 4}}
    assert audit_of(running, "PRODUCE", "topic audited-auto") == [{**who, "after": writable}]


def test_changes_of_groups_and_dead_letters_are_in_the_audit_log(running: RunningBroker, log_in: LogIn) -> None:
    admin = log_in("admin")
    sent = admin.produce("audited-2", b"m", queue=0).raise_for_error()
    fields = {"group": "audited", "topic": "audited-2", "count": 1}
    admin.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 1)).raise_for_error()
    reset = {"group": "audited", "topic": "audited-2", "to": "first", "queue": 0}
    admin.call(commands.INVOKE_BROKER_TO_RESET_OFFSET, reset).raise_for_error()
    back = {"group": "audited", "count": 1, "delay_level": -1}
    admin.call(commands.CONSUMER_SEND_MSG_BACK, back, sent.body).raise_for_error()
    purge = {"group": "audited", "topic": "%DLQ%audited", "count": 1}
    admin.call(commands.UPDATE_CONSUMER_OFFSET, purge, CONSUMER_OFFSET_STRUCT.pack(0, 1)).raise_for_error()
    admin.call(commands.DELETE_SUBSCRIPTIONGROUP, {"group": "audited"}).raise_for_error()

    who = {"user": "admin", "client": "test", "outcome": "done"}
    assert audit_of(running, "INVOKE_BROKER_TO_RESET_OFFSET", "group audited, topic audited-2") == [
        {**who, "before": {"0": 1}, "after": {"0": 0}}
    ]
    (purged,) = audit_of(running, "UPDATE_CONSUMER_OFFSET", "group audited, topic %DLQ%audited")
    assert purged["after"] == {"0": 1}
    assert audit_of(running, "UPDATE_CONSUMER_OFFSET", "group audited, topic audited-2") == []
    (gone,) = audit_of(running, "DELETE_SUBSCRIPTIONGROUP", "group audited")
    assert "audited-2" in gone["before"]["topics"]


def test_settings_and_transactions_by_hand_are_in_the_audit_log(running: RunningBroker, log_in: LogIn) -> None:
    admin = log_in("admin")
    body = msgpack.packb({"limits.held_pulls_max": 77})
    admin.call(commands.UPDATE_BROKER_CONFIG, {"count": 1}, body).raise_for_error()
    refused = admin.call(commands.UPDATE_BROKER_CONFIG, {"count": 1}, msgpack.packb({"store.path": "/x"}))
    assert refused.code != 0
    who = {"user": "admin", "client": "test", "outcome": "done"}
    assert audit_of(running, "UPDATE_BROKER_CONFIG", "setting limits.held_pulls_max") == [
        {**who, "before": 100_000, "after": 77}
    ]
    (line,) = audit_of(running, "UPDATE_BROKER_CONFIG", "the broker")
    assert line["outcome"] == "INVALID_PARAMETER"

    for number, by_hand in ((1, False), (2, True)):
        unique = {"unique_prefix": "EF" * 10, "unique_first": number}
        admin.produce("audited-3", b"h", queue=0, common=HALF, **unique).raise_for_error()
        (row,) = msgpack.unpackb(admin.call(commands.GET_TRANSACTIONS).body)
        end = {"group": "shop", "transaction_id": row["id"], "commit": False, "parked": by_hand}
        admin.call(commands.END_TRANSACTION, end).raise_for_error()
        lines = audit_of(running, "END_TRANSACTION", f"group shop, transaction {row['id']}")
        assert lines == ([{**who, "after": "rollback"}] if by_hand else [])


def test_changes_of_users_are_in_the_audit_log_when_the_broker_notices(
    running: RunningBroker, log_in: LogIn, tmp_path: Path
) -> None:
    grant = {"actions": ["publish"], "topic": "orders"}
    user(running, tmp_path, "add", "eve", "--generate")
    user(running, tmp_path, "grant", "eve", "--publish", "orders")
    until(lambda: bool(audit_of_users(running)), "the line")
    user(running, tmp_path, "remove", "eve", "--yes")
    until(lambda: audit_of_users(running)[-1][0] == "USER_REMOVED", "the line")
    actions = [action for action, _, _ in audit_of_users(running)]
    assert actions in (["USER_ADDED", "USER_GRANTS", "USER_REMOVED"], ["USER_ADDED", "USER_REMOVED"])
    assert audit_of_users(running)[-1] == ("USER_REMOVED", [grant], None)


def audit_of_users(running: RunningBroker) -> list[tuple[str, Any, Any]]:
    """Return (action, before, after) of the changes of the user ``eve``."""
    lines = [json.loads(line) for line in (running.store.parent / "audit.log").read_text().splitlines()]
    return [(row["action"], row.get("before"), row.get("after")) for row in lines if row["object"] == "user eve"]


def test_a_wrong_password_is_in_the_audit_log_and_no_secret_ever_is(
    running: RunningBroker, connect: ConnectionFactory, log_in: LogIn
) -> None:
    with pytest.raises(Exception, match="wrong"):
        authenticate(connect(running), "ann", "guessed-password")
    (line,) = audit_of(running, "AUTH", "user ann")
    assert line["outcome"] != "done"
    text = (running.store.parent / "audit.log").read_text()
    for secret in ("guessed-password", PASSWORD, "secret-body", "storedKey"):
        assert secret not in text
    assert text.isascii()


def test_hostile_names_stay_on_their_line(running: RunningBroker, connect: ConnectionFactory) -> None:
    peer = connect(running, hello=False)
    peer.call(commands.HELLO, {"protocol": 1, "client": "c\n\x1b[2J{}"}).raise_for_error()
    authenticate(peer, "bob")
    topic = 'x\n{"action":"forged"}\x1b]0;\u202e'
    assert peer.call(commands.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == NoPermission.code
    text = (running.store.parent / "audit.log").read_text()
    assert '\n{"action":"forged"}' not in text
    assert all(line.isascii() and line.isprintable() for line in text.splitlines())
    assert json.loads(text.splitlines()[-1])["object"] == f"topic {topic}"


# ---- the clients, with the grants that the README lists


def test_a_group_consumes_and_tries_again_with_its_topic_and_group_alone(running: RunningBroker, log_in: LogIn) -> None:
    log_in("admin").call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "consumed"}).raise_for_error()
    grants = [{"actions": ["consume"], "topic": "consumed"}, {"actions": ["consume"], "group": "eaters"}]
    set_grants(running.store, {"eater": grants, "sender": [{"actions": ["publish"], "topic": "consumed"}]})
    failed: list[str] = []

    def fail_once(message: StoredMessage) -> None:
        if message.message_id not in failed:
            failed.append(message.message_id)
            raise TryLater(1)

    seen = Seen(fail_once)
    consumer = PushConsumer(
        running.address,
        group="eaters",
        topics="consumed",
        listener=seen,
        start="first",
        user="eater",
        password=PASSWORD,
    )
    with consumer, Producer(running.address, user="sender", password=PASSWORD) as producer:
        producer.send(Message("consumed", b"1", keys=["k"]))
        assert [message.body for message in seen.wait(2)] == [b"1", b"1"]


def test_a_transaction_takes_its_topic_and_its_producer_group(running: RunningBroker, log_in: LogIn) -> None:
    log_in("admin").call(commands.UPDATE_AND_CREATE_TOPIC, {"topic": "sold"}).raise_for_error()
    grants = [{"actions": ["publish"], "topic": "sold"}, {"actions": ["publish"], "group": "sellers"}]
    set_grants(running.store, {"seller": grants, "topic-alone": grants[:1]})

    def unknown(message: StoredMessage) -> Outcome:
        return Outcome.UNKNOWN

    def seller(name: str) -> TransactionProducer:
        return TransactionProducer(running.address, "sellers", unknown, user=name, password=PASSWORD)

    with seller("seller") as producer, producer.transaction(Message("sold", b"1")):
        pass
    assert log_in("admin").pull("sold", 0).code != NoPermission.code
    with (
        pytest.raises(NoPermission, match="publish on group sellers"),
        seller("topic-alone") as producer,
        producer.transaction(Message("sold", b"1")),
    ):
        pass
