"""Reads that a follower of a real replica set answers: what is confirmed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Consumer
from flintmq.client.errors import InvalidArgument
from flintmq.protocol.commands import (
    GET_CONNECTIONS,
    GET_MAX_OFFSET,
    HELLO,
    PRODUCE,
    PROTOCOL_VERSION,
    PULL,
    READ_FROM_ANY,
)
from flintmq.protocol.errors import PULL_NOT_FOUND, NotPrimary, OffsetOutOfRange
from tests.client_drivers import Clients
from tests.conftest import Brokers, ConnectionFactory, RawConnection, RunningBroker, rows
from tests.etcd_server import etcd_cluster
from tests.group_tools import until
from tests.replica_set import ReplicaSet

Reader = Callable[[str], RawConnection]


@pytest.fixture(scope="module")
def replica_settings() -> dict[str, Any]:
    return {"replication.lag_max_ms": 30_000}  # the tests' primary, ``a``, waits long for a silent member


@pytest.fixture
def reader(replicas: ReplicaSet, connect: ConnectionFactory) -> Reader:
    """Return ``reader(member)``: a connection to a member that may answer it as a follower."""

    return lambda member: reading(connect, replicas.running[member])


def reading(connect: ConnectionFactory, running: RunningBroker) -> RawConnection:
    """Return a connection to a member that may answer it as a follower."""
    connection = connect(running, hello=False)
    hello = {"protocol": PROTOCOL_VERSION, "client": "reader", "read_from": READ_FROM_ANY}
    connection.call(HELLO, hello).raise_for_error()
    return connection


def send(replicas: ReplicaSet, topic: str, first: int, end: int) -> None:
    """Send messages, and wait until all members show them."""
    replicas.send(topic, first, end)
    confirmed = replicas.wait_in_sync(*replicas.running)["confirmed"]
    until(lambda: all(replicas.status(each)["confirmed"] >= confirmed for each in replicas.running), "the confirmation")


def test_clients_read_from_the_first_member_that_answers(replicas: ReplicaSet, topic: str, clients: Clients) -> None:
    send(replicas, topic, 0, 10)
    addresses = ",".join(replicas.addresses[member] for member in "bca")
    with clients.Consumer(addresses, read_from="any", client_name="reader", timeout=30) as consumer:

        def check(end: int) -> None:
            assert consumer.max_offset(topic, 0) == end
            messages = list(consumer.iter(topic, from_="earliest", until="latest"))
            assert [int(message.body) for message in messages] == list(range(end))
            assert [message.body for message in consumer.query(topic, "k3")] == [b"3"]
            assert consumer.message(messages[4].message_id, topic).body == b"4"
            assert sum(row.max_offset for row in consumer.topic_stats(topic)) == end

        def readers(member: str) -> int:
            return replicas.call(member, GET_CONNECTIONS).body.count(b"reader")

        check(10)
        assert (readers("a"), readers("b") > 0, readers("c")) == (0, True, 0)
        # Progress of groups is for the primary; reads stay where they are.
        consumer.commit("workers", topic, {0: 7})
        assert consumer.committed("workers", topic) == {0: 7}
        assert readers("a") == 1
        replicas.kill("b")
        check(10)
        assert readers("c") > 0


def test_a_follower_shows_nothing_that_is_not_confirmed(
    replicas: ReplicaSet, topic: str, connect: ConnectionFactory, reader: Reader
) -> None:
    send(replicas, topic, 0, 3)
    follower = reader("b")
    producer = connect(replicas.running["a"])
    before = replicas.status("b")["end"]
    with replicas.running["c"].paused():
        sent = producer.send(PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"3", {}]))
        until(lambda: replicas.status("b")["end"] > before, "the message on b")
        until(lambda: replicas.status("a")["rows"]["b"]["flushed"] > before, "the message on the disk of b")
        assert replicas.status("b")["confirmed"] == before
        found = follower.pull(topic, offset=3)
        assert (found.code, found.fields["max_offset"]) == (PULL_NOT_FOUND, 3)
        assert follower.call(GET_MAX_OFFSET, {"topic": topic, "queue": 0}).fields["offset"] == 3
        held = follower.send(PULL, {"topic": topic, "queue": 0, "offset": 3, "wait_ms": 30_000})
    assert producer.receive_for(sent).raise_for_error().fields["queue_offset"] == 3
    assert follower.receive_for(held).raise_for_error().fields["count"] == 1


def test_a_follower_waits_for_an_offset_that_another_member_has_shown(
    replicas: ReplicaSet, topic: str, connect: ConnectionFactory, reader: Reader
) -> None:
    send(replicas, topic, 0, 3)
    follower = reader("b")
    assert follower.pull(topic, offset=4).code == PULL_NOT_FOUND
    held = follower.send(PULL, {"topic": topic, "queue": 0, "offset": 4, "wait_ms": 30_000})
    replicas.send(topic, 3, 5)
    found = follower.receive_for(held).raise_for_error()
    assert (found.fields["count"], found.fields["next_offset"]) == (1, 5)
    with pytest.raises(OffsetOutOfRange):
        connect(replicas.running["a"]).pull(topic, offset=9).raise_for_error()


def test_a_follower_refuses_what_only_the_primary_answers(
    replicas: ReplicaSet, topic: str, connect: ConnectionFactory, reader: Reader
) -> None:
    send(replicas, topic, 0, 3)
    for fields in ({"group": "workers"}, {"group": "workers", "member": "m", "epoch": 1}):
        with pytest.raises(NotPrimary):
            reader("b").pull(topic, **fields).raise_for_error()
    with pytest.raises(NotPrimary):
        reader("b").produce(topic, b"x").raise_for_error()
    with pytest.raises(NotPrimary):
        connect(replicas.running["b"]).pull(topic).raise_for_error()
    assert reader("a").pull(topic).raise_for_error().fields["count"] == 3


def test_a_follower_that_does_not_hear_the_primary_answers_no_reads(
    tmp_path: Path, topic: str, connect: ConnectionFactory
) -> None:
    brokers = Brokers(tmp_path)
    with etcd_cluster(tmp_path) as (etcd,):
        replicas = ReplicaSet(tmp_path, brokers, etcd, "ab")
        replicas.begin()
        replicas.wait_in_sync("a", "b")
        replicas.send(topic, 0, 1)
        follower = reading(connect, replicas.running["b"])
        until(lambda: follower.pull(topic).fields.get("count") == 1, "the message on b")
        etcd.kill()  # so that b does not lead
        replicas.kill("a")
        until(lambda: follower.pull(topic).code == NotPrimary.code, "the refusal")
        etcd.start()
        brokers.stop_all()


def test_another_word_for_read_from_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="read_from must be 'primary' or 'any', not 'nearest'"):
        Consumer("127.0.0.1:1", read_from="nearest")  # type: ignore[arg-type] # the wrong word
