"""A real replica set for tests: brokers on loopback, with a real etcd."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack

from flintmq.client import Consumer, Message, Producer
from flintmq.protocol.commands import (
    GET_ALL_TOPIC_CONFIG,
    GET_REPLICA_STATUS,
    HELLO,
    PROTOCOL_VERSION,
    SWITCH_PRIMARY,
    Command,
    ReplicaStatusAnswer,
)
from flintmq.protocol.fields import decode_fields
from flintmq.testing import SMALL_FILES
from tests.conftest import Answer, Brokers, RawConnection, RunningBroker
from tests.etcd_server import EtcdServer
from tests.forked import FORKS
from tests.group_tools import UNREACHABLE, WAIT_SECONDS, until
from tests.processes import free_port
from tests.security_tools import authenticate

LEASE_MS = 2_000


class ReplicaSet:
    """The members of one set, by their ids. ``settings``: further settings of all members."""

    def __init__(
        self,
        folder: Path,
        brokers: Brokers,
        etcd: EtcdServer,
        members: str = "abc",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._brokers = brokers
        self._etcd = etcd
        self._more = dict(settings or {})
        self.addresses = {member: f"127.0.0.1:{free_port()}" for member in members}
        self.listens: dict[str, str] = {}
        """Where members listen whose ``addresses`` are those of something in front of them."""
        self.running: dict[str, RunningBroker] = {}
        self.user = ""
        """User with ``PASSWORD`` for the set's own requests, in a set that requires one."""
        self.tls: ssl.SSLContext | None = None
        """TLS of the set's own requests; None: without."""

    @property
    def bootstrap(self) -> str:
        """Addresses of all members, as clients expect them."""
        return ",".join(self.addresses.values())

    def settings(self, member: str) -> dict[str, Any]:
        """Return the settings of a member."""
        return {
            "server.listen": self.listens.get(member, self.addresses[member]),
            "flush.policy": "sync",
            "replication.set": self.folder.name[:64],
            "replication.member": member,
            "replication.etcd": self._etcd.url,
            "replication.lease_ms": LEASE_MS,
            "replication.lag_max_ms": 1_000,
            **self._more,
        }

    def store(self, member: str) -> Path:
        """Return the folder of a member's store."""
        return self.folder / member

    def tool(self, *arguments: str, member: str = "a", settings: Mapping[str, Any] | None = None) -> str:
        """Run ``flintmq-broker`` with a member's settings; return its output. Raises ``CalledProcessError``."""
        values = {"store.path": self.store(member), **SMALL_FILES, **self.settings(member), **(settings or {})}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        done = FORKS.run([*arguments, *sets], WAIT_SECONDS)
        done.check_returncode()
        return done.stdout

    def begin(self, *options: str, first: str = "a") -> None:
        """Begin the set with ``replica init``, and start all members."""
        members = [f"{member}={address}" for member, address in self.addresses.items()]
        self.tool("replica", "init", *members, *options, member=first)
        for member in self.addresses:
            self.start(member)

    def restore(self) -> None:
        """Start the members that do not run, and wait until all are in sync."""
        for member in self.addresses.keys() - self.running.keys():
            self.start(member)
        self.wait_in_sync(*self.addresses)

    def others(self, member: str) -> list[str]:
        """Return the ids of the other members, sorted."""
        return sorted(self.addresses.keys() - {member})

    def switch(self, target: str) -> None:
        """Hand the leadership over, and wait until the target leads."""
        self.call(self.leader(), SWITCH_PRIMARY, {"member": target, "within_ms": 5_000})
        until(lambda: self.leader() == target, "the switch")

    def send(self, topic: str, first: int, end: int) -> None:
        """Send messages to queue 0, each with its number as body and key."""
        with Producer(self.bootstrap) as producer:
            for number in range(first, end):
                producer.send(Message(topic, b"%d" % number, keys=f"k{number}"), queue=0)

    def read(self, topic: str) -> list[int]:
        """Return the numbers of all messages of a topic, sorted."""
        with Consumer(self.bootstrap) as consumer:
            return sorted(int(message.body) for message in consumer.iter(topic, from_="earliest", until="latest"))

    def brokers_of(self, member: str) -> Brokers:
        """Return what starts a member."""
        return self._brokers

    def start(self, member: str, settings: Mapping[str, Any] | None = None) -> RunningBroker:
        """Start a member."""
        values = {**self.settings(member), **(settings or {})}
        address = values.pop("server.listen")
        brokers = self.brokers_of(member)
        self.running[member] = brokers.start("--listen", address, store=self.store(member), settings=values)
        return self.running[member]

    def kill(self, member: str) -> None:
        """Kill a member with SIGKILL."""
        self.running.pop(member).kill()

    def status(self, member: str) -> dict[str, Any]:
        """Return GET_REPLICA_STATUS of a running member: its fields, and ``rows`` by member."""
        answer = self.call(member, GET_REPLICA_STATUS)
        names = ("address", "in_sync", "connected", "flushed", "behind_ms")
        rows = {row[0]: dict(zip(names, row[1:], strict=True)) for row in msgpack.unpackb(answer.body)}
        return {**asdict(decode_fields(ReplicaStatusAnswer, answer.fields)), "rows": rows}

    def call(self, member: str, command: Command, fields: dict[str, Any] | None = None) -> Answer:
        """Return a running member's response to one request. Raises ``OSError`` or ``EOFError`` while it opens its
        store again, or the error of the response or of the connection."""
        running = self.running[member]
        sock = socket.create_connection((running.host, running.port), timeout=WAIT_SECONDS)
        if self.tls is not None:
            sock = self.tls.wrap_socket(sock, server_hostname=running.host)
        with closing(RawConnection(sock)) as connection:
            connection.call(HELLO, {"protocol": PROTOCOL_VERSION, "client": "test"}).raise_for_error()
            if self.user:
                authenticate(connection, self.user)
            return connection.call(command, fields or {}).raise_for_error()

    def leader(self) -> str:
        """Wait until a running member leads and serves; return its id."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            for member in self.running:
                with suppress(*UNREACHABLE):  # it opens its store again, or follows
                    self.call(member, GET_ALL_TOPIC_CONFIG)
                    return member
            time.sleep(0.05)
        raise AssertionError(f"no member leads:\n{self.logs()}")

    def wait_in_sync(self, *members: str, under_load: bool = False) -> dict[str, Any]:
        """Wait until exactly these members are in sync, connected, and have confirmed all; return the status.

        ``under_load``: they need not have everything, because there is always more.
        """
        end = time.monotonic() + WAIT_SECONDS
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            leader = self.leader()
            try:
                status = self.status(leader)
            except UNREACHABLE:  # it leads no longer
                continue
            rows = status["rows"]
            synced = {each for each, row in rows.items() if row["in_sync"]}
            others = synced - {leader}
            needed = 0 if under_load else status["end"]
            complete = all(rows[each]["connected"] and rows[each]["flushed"] >= needed for each in others)
            if synced == set(members) and complete and status["confirmed"] >= needed:
                return status
            time.sleep(0.05)
        raise AssertionError(f"{members} are not in sync, but {status}:\n{self.logs()}")

    def log_of(self, member: str, end: int) -> bytes:
        """Return a member's log up to a physical offset."""
        files = sorted((self.store(member) / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files if path.stem.isdigit())[:end]

    def logs(self) -> str:
        """Return the last lines of the members' logs."""
        return "\n".join(f"--- {member}\n{running.log[-3000:]}" for member, running in self.running.items())
