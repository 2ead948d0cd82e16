"""The next primary of a replica set has what the killed one had beside its log."""

from __future__ import annotations

import json
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    AuthenticationFailed,
    Consumer,
    GroupConsumer,
    Message,
    NoPermission,
    Outcome,
    Producer,
    StoredMessage,
    TransactionProducer,
)
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.protocol.auth.permissions import Grant
from flintmq.protocol.auth.users import BACKUP_SUFFIX, USERS_FILE
from flintmq.protocol.commands import (
    ACK_MESSAGE,
    CHANGE_MEMBERS,
    HELLO,
    POP_MESSAGE,
    PROTOCOL_VERSION,
    RECEIPT_STRUCT,
    SWITCH_PRIMARY,
)
from flintmq.protocol.errors import ReplicationRefused
from tests.conftest import RawConnection
from tests.delivery_tools import acknowledge, receive
from tests.delivery_tools import bodies as bodies_of
from tests.group_tools import until
from tests.replica_set import ReplicaSet
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tls_tools import Authority
from tests.transaction_tools import common, send_half

LATER = "later"


def bodies(replicas: ReplicaSet, topic: str) -> Counter[bytes]:
    """Return how often the topic has each body."""
    with Consumer(replicas.bootstrap) as consumer:
        return Counter(message.body for message in consumer.iter(topic, from_="earliest", until="latest"))


def send_later(replicas: ReplicaSet, name: str, seconds: float) -> set[bytes]:
    """Send messages that are due after so many seconds, and one of the first delay level; return their bodies."""
    with Producer(replicas.bootstrap) as producer:
        for number in range(3):
            producer.send(Message(LATER, f"{name}-{number}".encode(), delay=timedelta(seconds=seconds)))
        producer.send(Message(LATER, f"{name}-level".encode(), delay_level=1))
    return {f"{name}-{number}".encode() for number in range(3)} | {f"{name}-level".encode()}


def _address(replicas: ReplicaSet) -> tuple[str, int]:
    leader = replicas.running[replicas.leader()]
    return leader.host, leader.port


def test_each_delayed_message_is_delivered_once_whoever_leads(replicas: ReplicaSet) -> None:
    sent = send_later(replicas, "before", 0.2)
    until(lambda: bodies(replicas, LATER) == Counter(sent), "the delivery by the first primary")
    first = replicas.leader()
    sent |= send_later(replicas, "between", 1)
    replicas.kill(first)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery by the next primary")
    second = replicas.leader()
    assert second != first
    sent |= send_later(replicas, "after", 0.2)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery of new messages")
    assert bodies(replicas, LATER) == Counter(sent)

    # The first primary leads again, with what its own files said before its end.
    replicas.start(first)
    replicas.wait_in_sync("a", "b", "c")
    with Admin(replicas.bootstrap) as admin:
        admin.switch_primary(first)
    until(lambda: replicas.leader() == first, "the switch")
    sent |= send_later(replicas, "last", 0.2)
    until(lambda: bodies(replicas, LATER) >= Counter(sent), "the delivery after the switch")
    assert bodies(replicas, LATER) == Counter(sent)


@pytest.fixture(scope="module")
def replica_settings() -> dict[str, Any]:
    # The set soon asks the producers of unfinished transactions.
    return {"transactions.timeout_ms": 500, "transactions.check_interval_ms": 500}


def test_transactions_groups_and_offsets_continue_at_the_next_primary(replicas: ReplicaSet) -> None:
    checked: list[bytes] = []

    def check(message: StoredMessage) -> Outcome:
        checked.append(message.body)
        return Outcome.COMMIT

    def no_answer(message: StoredMessage) -> Outcome:
        return Outcome.UNKNOWN

    with (
        Producer(replicas.bootstrap) as producer,
        Consumer(replicas.bootstrap) as consumer,
        Admin(replicas.bootstrap) as admin,
        TransactionProducer(replicas.bootstrap, "payers", no_answer) as payer,
    ):
        for topic in ("paid", "staged", "read"):
            admin.create_topic(topic, queues=1)
        producer.send_bulk("read", [b"%d" % number for number in range(10)])
        consumer.commit("readers", "read", {0: 7})
        committed, dropped = (payer.send_half(Message("paid", body)) for body in (b"committed", b"dropped"))
        half = RawConnection(socket.create_connection(_address(replicas)))
        half.call(HELLO, {"protocol": PROTOCOL_VERSION, "client": "gone"}).raise_for_error()
        send_half(half, "paid", b"unfinished", 1, common=common("others"))
        half.close()
        producer.send_many([Message("staged", b"%d" % number) for number in range(3)], prepare="kept")
        producer.send_many([Message("staged", b"never")], prepare="given-up")
        # The answer says that all members in sync have every table as it is now.
        admin.reset_offsets("moved", "read", {0: 4})
        replicas.kill(replicas.leader())

        committed.commit()
        dropped.rollback()
        assert admin.commit_prepared("series", 1, {"kept": 3}, drop="given-up").messages == 3
        assert admin.commit_prepared("series", 1, {"kept": 3}).messages == 0
        with TransactionProducer(replicas.bootstrap, "others", check):
            until(lambda: bodies(replicas, "paid") == Counter([b"committed", b"unfinished"]), "the check")
        assert set(checked) == {b"unfinished"}
        assert bodies(replicas, "staged") == Counter(b"%d" % number for number in range(3))
        assert consumer.committed("readers", "read") == {0: 7}
        assert consumer.committed("moved", "read") == {0: 4}
        assert {"moved"} <= {group.group for group in admin.groups()}


def test_leases_and_acknowledgements_of_a_work_queue_hold_at_the_next_primary(replicas: ReplicaSet) -> None:
    with (
        Producer(replicas.bootstrap) as producer,
        Admin(replicas.bootstrap) as admin,
        GroupConsumer(replicas.bootstrap, "g", "work", mode="work", start="first", lease=600) as one,
        GroupConsumer(replicas.bootstrap, "g", "work", mode="work", start="first", lease=600) as two,
    ):
        admin.create_topic("work", queues=1)
        producer.send_bulk("work", [b"%d" % number for number in range(10)])
        leased = receive(one, 6)
        for delivery in leased[1::2]:
            delivery.ack()
        one.commit()
        admin.create_topic(
            "another", queues=1
        )  # its answer says that all members in sync have every table as it is now
        replicas.kill(replicas.leader())
        assert bodies_of(acknowledge(two, 4)) == [b"6", b"7", b"8", b"9"]
        for delivery in leased[::2]:
            delivery.ack()
        one.commit()
        two.commit()
        with Consumer(replicas.bootstrap) as consumer:
            assert consumer.committed("g", "work") == {0: 10}


def test_a_work_group_that_another_primary_reset_begins_there(replicas: ReplicaSet) -> None:
    first = replicas.leader()
    second = replicas.others(first)[0]
    with Producer(replicas.bootstrap) as producer, Admin(replicas.bootstrap) as admin:
        admin.create_topic("reset", queues=1)
        producer.send_bulk("reset", [b"%d" % number for number in range(10)])
        raw = RawConnection(socket.create_connection(_address(replicas)))
        raw.call(HELLO, {"protocol": PROTOCOL_VERSION, "client": "worker"}).raise_for_error()
        wanted = {"group": "g2", "topic": "reset", "max_count": 6, "start": "first", "lease_ms": 600_000}
        popped = raw.call(POP_MESSAGE, wanted).raise_for_error().fields
        receipts = b"".join(RECEIPT_STRUCT.pack(0, 0, offset, popped["pop_ms"]) for offset in range(3))
        settled = {"group": "g2", "topic": "reset", "count": 3}
        assert raw.call(ACK_MESSAGE, settled, receipts).raise_for_error().fields == {"done": 3}
        raw.close()
        admin.switch_primary(second)
        until(lambda: replicas.leader() == second, "the switch")
        admin.reset_offsets("g2", "reset", {0: 1}, force=True)
        replicas.wait_in_sync("a", "b", "c")
        admin.switch_primary(first)
        until(lambda: replicas.leader() == first, "the switch back")
    with GroupConsumer(replicas.bootstrap, "g2", "reset", mode="work", lease=600) as worker:
        assert bodies_of(acknowledge(worker, 9)) == [b"%d" % number for number in range(1, 10)]


@pytest.fixture
def guarded(tmp_path: Path, new_set: Callable[..., ReplicaSet]) -> ReplicaSet:
    """Return a set whose members have a user, with all of them in sync."""
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    member = {"replication.user": "ops", "replication.password_file": password, "log.audit": tmp_path / "audit"}
    replicas = new_set(settings=SCRAM | member)
    replicas.user = "ops"
    set_user(replicas.store("a"), "ops")
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    return replicas


def test_members_and_clients_of_a_set_encrypt_and_authenticate(
    tmp_path: Path, new_set: Callable[..., ReplicaSet]
) -> None:
    """With client certificates too; a member without a CA that knows the others' certificates says so."""
    authority = Authority(tmp_path)
    certificate = authority.issue()
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    secure = {"replication.user": "ops", "replication.password_file": password, "replication.tls_ca": authority.path}
    mutual = {"security.tls_client_ca": authority.path, **certificate.broker_settings}
    replicas = new_set(settings={**SCRAM, **secure, **mutual})
    replicas.user, replicas.tls = "ops", ssl.create_default_context(cafile=authority.path)
    replicas.tls.load_cert_chain(certificate.certificate, certificate.key)
    set_user(replicas.store("a"), "ops")
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    access: AccessOptions = {"user": "ops", "password": PASSWORD, "tls": authority.path}
    access |= {"tls_certificate": certificate.certificate, "tls_key": certificate.key}
    with (
        Producer(replicas.bootstrap, **access) as producer,
        Consumer(replicas.bootstrap, read_from="any", **access) as consumer,
    ):
        producer.send(Message("t", b"before"))
        replicas.kill(replicas.leader())
        producer.send(Message("t", b"after"))
        left = sorted(replicas.running)
        replicas.wait_in_sync(*left)
        until(lambda: len(list(consumer.iter("t", until="latest"))) == 2, "both messages")
    other = Authority(tmp_path, "other")
    (third,) = {"a", "b", "c"} - set(left)
    replicas.start(third, {"replication.tls_ca": other.path})
    until(lambda: "certificate verify failed" in replicas.running[third].log, "the reason")


def test_users_are_on_the_next_primary_as_soon_as_their_change_is_answered(guarded: ReplicaSet, tmp_path: Path) -> None:
    first = guarded.leader()
    with Admin(guarded.bootstrap, user="ops", password=PASSWORD) as admin:
        for name in ("ann", "bob"):
            admin.create_user(name, "first password of all")
        admin.create_topic("t", queues=1)
        admin.change_user("bob", password="second password of all")
        admin.change_user("bob", grant=[Grant(frozenset({"publish"}), "topic", "t")])
        admin.delete_user("ann")
        guarded.kill(first)
        assert {row.user for row in admin.users()} == {"ops", "bob"}
    with Producer(guarded.bootstrap, user="bob", password="second password of all") as producer:
        producer.send(Message("t", b"x"))
        with pytest.raises(NoPermission):
            producer.send(Message("other", b"x"))
    for name, password in (("ann", "first password of all"), ("bob", "first password of all")):
        with pytest.raises(AuthenticationFailed), Producer(guarded.bootstrap, user=name, password=password) as producer:
            producer.send(Message("t", b"x"))
    for member in guarded.others(first):
        for suffix in ("", BACKUP_SUFFIX):
            path = guarded.store(member) / f"{USERS_FILE}{suffix}"
            assert path.stat().st_mode & 0o777 == 0o600
            assert b"ann" not in path.read_bytes()


def test_a_follower_with_a_wrong_password_says_so_and_follows_once_it_is_corrected(
    guarded: ReplicaSet, tmp_path: Path
) -> None:
    third = guarded.others(guarded.leader())[-1]
    guarded.kill(third)
    wrong = tmp_path / "wrong"
    wrong.write_text("guessed password\n")
    guarded.start(third, {"replication.password_file": wrong})
    until(lambda: "user 'ops'" in guarded.status(third)["reason"], "the reason")
    assert f"cannot follow the primary at {guarded.addresses[guarded.leader()]}" in guarded.running[third].log
    assert guarded.running[third].log.count("cannot follow the primary") == 1
    wrong.write_text(PASSWORD + "\n")
    guarded.wait_in_sync("a", "b", "c")
    until(lambda: guarded.status(third)["reason"] == "", "following again")

    # Changes of the set are in the audit log, and refused ones too.
    leader = guarded.leader()
    with pytest.raises(ReplicationRefused, match="not one of the members in sync: "):
        guarded.call(leader, SWITCH_PRIMARY, {"member": "nobody", "within_ms": 1_000})
    with pytest.raises(ReplicationRefused):
        guarded.call(leader, CHANGE_MEMBERS, {"member": leader, "address": ""})
    guarded.call(leader, SWITCH_PRIMARY, {"member": third, "within_ms": 5_000})
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    found = [(row["action"], row["object"], row["outcome"]) for row in lines if row.get("user") == "ops"]
    assert [row for row in found if row[0] in ("SWITCH_PRIMARY", "CHANGE_MEMBERS")] == [
        ("SWITCH_PRIMARY", "member nobody", "REPLICATION_REFUSED"),
        ("CHANGE_MEMBERS", f"member {leader}", "REPLICATION_REFUSED"),
        ("SWITCH_PRIMARY", f"primary {third}", "done"),
    ]
