"""Answers of a real replica set about its tables and members stay true: slow disks, strangers, stops, suspension."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.replication.core.rules import Limits
from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.protocol.commands import (
    CHANGE_MEMBERS,
    HELLO,
    PROTOCOL_VERSION,
    REPLICATE,
    REPLICATE_TABLE,
    HelloAnswer,
    ReplicateAnswer,
    ReplicateTableRequest,
)
from flintmq.protocol.errors import SUCCESS, ReplicationRefused
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import ONE_WAY, RESPONSE, FrameParser, encode_frame
from tests.conftest import Brokers
from tests.etcd_server import EtcdServer
from tests.group_tools import until
from tests.replica_set import ReplicaSet
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tcp_proxy import Link, TcpProxy

SLOW_FOLDERS = """
import os, sys, time
path, fsync = sys.argv.pop(1), os.fsync

def slow(fd):
    if os.path.exists(path):
        time.sleep(0.3)
    fsync(fd)

os.fsync = slow
from flintmq.broker.app.daemon import main
main()
"""
"""A broker whose disk takes a while to put the entries of a folder on disk, as long as a file exists."""

SUSPENDED_CLOCK = """
import os, sys, time
path, clock_gettime_ns = sys.argv.pop(1), time.clock_gettime_ns
time.clock_gettime_ns = lambda clock: clock_gettime_ns(clock) + os.path.exists(path) * 60 * 10**9
from flintmq.broker.app.daemon import main
main()
"""
"""A broker for which a minute has passed while the machine was suspended, once a file exists."""


class WithProgram(Brokers):
    """Starts one member with a program of its own."""

    def __init__(self, folder: Path, member: str, program: str, argument: Path) -> None:
        super().__init__(folder)
        self._member = member
        self._program = ("-c", program, str(argument))

    def start(self, *options: str, **more: Any) -> Any:
        if more.get("settings", {}).get("replication.member") == self._member:
            more["program"] = self._program
        return super().start(*options, **more)


def config_of(etcd: EtcdServer, replicas: ReplicaSet) -> dict[str, Any]:
    """Return the configuration in the registry."""
    key = b64encode(f"/flintmq/flintmq/{replicas.settings('a')['replication.set']}/config".encode()).decode()
    found: dict[str, Any] = json.loads(b64decode(etcd.post("/v3/kv/range", {"key": key})["kvs"][0]["value"]))
    return found


def test_nothing_of_a_killed_primary_replaces_what_its_successor_acknowledged(tmp_path: Path, etcd: EtcdServer) -> None:
    slow = tmp_path / "slow"
    brokers = WithProgram(tmp_path, "b", SLOW_FOLDERS, slow)
    replicas = ReplicaSet(tmp_path, brokers, etcd, "ab", {"replication.lag_max_ms": 60_000})
    replicas.begin("--min-in-sync", "1")
    replicas.wait_in_sync("a", "b")
    with (
        Producer(replicas.bootstrap) as producer,
        Consumer(replicas.bootstrap) as consumer,
        Admin(replicas.bootstrap) as admin,
    ):
        admin.create_topic("t", queues=1)
        producer.send_bulk("t", [b"x"] * 1_000)
        slow.touch()
        for offset in range(1, 40):
            consumer.commit("g", "t", {0: offset})
            time.sleep(0.05)  # the load: each is a version of its own
        replicas.kill("a")
        consumer.commit("g", "t", {0: 1_000})
        for number in range(5):  # each takes as long as a version of the tables that waited
            admin.create_topic(f"after-{number}", queues=1)
            assert consumer.committed("g", "t") == {0: 1_000}
        assert {f"after-{number}" for number in range(5)} <= set(admin.topics())
    slow.unlink()
    brokers.stop_all()


def test_a_change_of_the_members_is_answered_when_the_registry_has_it(replicas: ReplicaSet, etcd: EtcdServer) -> None:
    leader = replicas.leader()
    one, other = replicas.others(leader)
    replicas.call(leader, CHANGE_MEMBERS, {"member": other, "address": ""})
    assert config_of(etcd, replicas)["members"].keys() == {leader, one}
    for request, reason in (
        ({"member": other, "address": ""}, f"'{other}' is not one of the members"),
        ({"member": one, "address": ""}, "too few members would be in sync"),
        ({"member": one, "address": "127.0.0.1:1"}, f"{one} is a member at {replicas.addresses[one]}; remove it"),
    ):
        with pytest.raises(ReplicationRefused, match=reason):
            replicas.call(leader, CHANGE_MEMBERS, request)
    replicas.call(leader, CHANGE_MEMBERS, {"member": other, "address": replicas.addresses[other]})
    # The addresses of refused changes are in no later one.
    assert config_of(etcd, replicas)["members"] == replicas.addresses
    replicas.wait_in_sync("a", "b", "c")


def test_a_follower_that_is_stopped_in_order_does_not_stop_the_writes(
    new_set: Callable[..., ReplicaSet], etcd: EtcdServer
) -> None:
    replicas = new_set(settings={"replication.lag_max_ms": 60_000})
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    leader = replicas.leader()
    with Producer(replicas.bootstrap, delivery_timeout=50) as producer:
        producer.send(Message("t", b"before"))
        third = replicas.others(leader)[-1]
        assert replicas.running.pop(third).stop() == 0
        producer.send(Message("t", b"after"))
    assert set(config_of(etcd, replicas)["in_sync"]) == {"a", "b", "c"} - {third}


def test_a_primary_shows_no_problem_that_it_had_as_a_follower(replicas: ReplicaSet) -> None:
    first = replicas.leader()
    replicas.kill(first)
    second = replicas.leader()
    assert second != first
    assert replicas.status(second)["reason"] == ""
    replicas.start(first)
    replicas.wait_in_sync("a", "b", "c")
    replicas.switch(first)
    replicas.wait_in_sync("a", "b", "c")
    assert [replicas.status(member)["reason"] for member in "abc"] == ["", "", ""]


def test_a_primary_that_was_suspended_leads_no_longer(tmp_path: Path, etcd: EtcdServer) -> None:
    suspended = tmp_path / "suspended"
    brokers = WithProgram(tmp_path, "a", SUSPENDED_CLOCK, suspended)
    replicas = ReplicaSet(tmp_path, brokers, etcd)
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    assert replicas.leader() == "a"
    suspended.touch()
    until(lambda: "a leads epoch 1 no longer" in replicas.running["a"].log, "the end of the leadership")
    replicas.wait_in_sync("a", "b", "c")
    brokers.stop_all()


def answer_as_a_primary(connection: socket.socket, users: bytes) -> None:
    """Answer a follower's requests without asking for a login, and send it users; return when it closes."""
    parser = FrameParser(1 << 20)
    while data := connection.recv(4096):
        parser.writable()[: len(data)] = data
        parser.received(len(data))
        while (frame := parser.next_frame()) is not None:
            if frame.code == HELLO.code:
                answer: Any = HelloAnswer(PROTOCOL_VERSION, "a", "0", "sync", 1 << 24, 1 << 20, 1 << 19)
            elif frame.code == REPLICATE.code:
                answer = ReplicateAnswer(epoch=1, begin=0)
            else:
                continue
            connection.sendall(encode_frame(RESPONSE, SUCCESS, frame.request_id, encode_fields(answer)))
            table = ReplicateTableRequest(epoch=1, table="flintmq/users.json", version=1)
            connection.sendall(encode_frame(ONE_WAY, REPLICATE_TABLE.code, 0, encode_fields(table), users))


def test_a_follower_takes_nothing_from_a_primary_that_asks_for_no_login(
    tmp_path: Path, new_set: Callable[..., ReplicaSet]
) -> None:
    """The registry is a real one; a stranger answers at the address of the primary."""
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    member = {"replication.user": "ops", "replication.password_file": password}
    replicas = new_set(settings=SCRAM | member)
    replicas.user = "ops"
    set_user(tmp_path / "stranger", "mallory")
    users = (tmp_path / "stranger" / "flintmq" / "users.json").read_bytes()
    host, port = replicas.addresses["a"].split(":")
    members = [f"{name}={address}" for name, address in replicas.addresses.items()]
    for name in "ab":
        set_user(replicas.store(name), "ops")
    replicas.tool("replica", "init", *members)
    replicas.start("a")
    assert replicas.leader() == "a"
    replicas.kill("a")
    with closing(socket.create_server((host, int(port)))) as stranger:
        replicas.start("b")
        stranger.settimeout(30)
        connection, _ = stranger.accept()
        connection.settimeout(30)
        with closing(connection), suppress(ConnectionError):
            answer_as_a_primary(connection, users)
        until(lambda: "asks for no login" in replicas.status("b")["reason"], "the reason")
    assert b"mallory" not in (replicas.store("b") / "flintmq" / "users.json").read_bytes()


class SlowLine(TcpProxy):
    """A line to a primary that carries few bytes a second to the other end, and has little room for more."""

    BYTES_A_SECOND = 400_000

    def _carry_requests(self, link: Link) -> None:
        with suppress(OSError):
            while blob := link.client.recv(1 << 16):
                link.broker.sendall(blob)
        link.end()

    def _carry_answers(self, link: Link) -> None:
        for sock, option in ((link.broker, socket.SO_RCVBUF), (link.client, socket.SO_SNDBUF)):
            sock.setsockopt(socket.SOL_SOCKET, option, 1 << 14)
        with suppress(OSError):
            while blob := link.broker.recv(1 << 14):
                link.send(blob)
                time.sleep(len(blob) / self.BYTES_A_SECOND)
        link.end()


@pytest.mark.slow
def test_a_follower_behind_a_slow_line_joins_with_large_tables(new_set: Callable[..., ReplicaSet]) -> None:
    """The line takes four times as long for the topics as a member may be silent."""
    replicas = new_set("ab", settings={"replication.lag_max_ms": 60_000})
    # Other fields of RocketMQ's rows are kept, so few topics make a large table.
    rows = {
        f"t{number}": {
            "perm": 6,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "attributes": {"+note": f"{number:04}" * 30_000},
        }
        for number in range(30)
    }
    table = replicas.store("a") / "config" / "topics.json"
    table.parent.mkdir(parents=True)
    table.write_text(json.dumps({"topicConfigTable": rows, "dataVersion": {"counter": 1}}))
    host, port = replicas.addresses["a"].split(":")
    line = SlowLine(host, int(port))
    assert table.stat().st_size > 4 * Limits().silence_s * line.BYTES_A_SECOND
    listens, replicas.addresses["a"] = replicas.addresses["a"], line.address
    replicas.listens["a"] = listens
    with closing(line):
        replicas.begin("--min-in-sync", "1")
        replicas.wait_in_sync("a", "b")
        with Admin(replicas.running["b"].address) as admin:
            assert rows.keys() <= set(admin.topics())
        for member in "ab":
            replicas.running.pop(member).stop()
