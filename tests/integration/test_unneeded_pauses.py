"""Nothing stops the event loop that requests could do without: collections of what they leave, and imports."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

from flintmq.client import GroupConsumer
from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT
from flintmq.protocol.remoting import codes
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.delivery_tools import receive
from tests.remoting_tools import RemotingBroker

REPORTING = """
import gc, os, signal, sys
known = set()

def report(number, frame):
    gc.disable()
    # Not print: the signal may have interrupted it.
    os.write(1, f"garbage: {gc.collect()}\\nimported: {' '.join(sorted(set(sys.modules) - known))}\\n".encode())
    known.update(sys.modules)

signal.signal(signal.SIGUSR1, report)
from flintmq.broker.app.daemon import main
sys.exit(main())
"""
TOPIC, GROUP = "orders", "billing"
WARM, COUNT = 20, 200


def report(broker: RunningBroker) -> tuple[int, list[str]]:
    """Return the number of objects that a collection finds in the broker, and the modules imported since the last
    report."""
    broker.process.send_signal(signal.SIGUSR1)
    assert broker.process.stdout is not None
    lines = iter(broker.process.stdout)
    garbage = next(line for line in lines if line.startswith("garbage:"))
    return int(garbage.split()[1]), next(lines).split()[1:]


class Requests:
    """Requests of each kind, once for each call, from two connections."""

    def __init__(self, broker: RunningBroker, connect: ConnectionFactory, gateway: RemotingBroker) -> None:
        self.gateway = gateway
        self.remote = gateway.connect()
        self.broker, self.connect = broker, connect
        self.one, self.other = connect(broker), connect(broker)
        for connection in (self.one, self.other):
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self.produce()
        self.worker = GroupConsumer(broker.address, "workers", TOPIC, mode="work", start="last")
        self.worker.start()

    def produce(self) -> None:
        self.one.produce(TOPIC, b"apples", queue=0).raise_for_error()
        self.sent += 1

    def pull(self) -> None:
        assert self.one.pull(TOPIC, 0, 0, max_count=3).raise_for_error().fields["count"]

    def held_pull(self) -> None:
        self._held(wait_ms=60_000)

    def held_pull_of_a_tag(self) -> None:
        self._held(wait_ms=60_000, tags="*")

    def held_pull_with_a_filter(self) -> None:
        self._held(wait_ms=60_000, filter="missing IS NULL")

    def _held(self, **fields: object) -> None:
        request = self.other.send(
            commands.PULL, {"topic": TOPIC, "queue": 0, "offset": self.sent, "max_count": 1, **fields}
        )
        self.other.runtime_info()  # the pull is held by now
        self.produce()
        assert self.other.receive_for(request).raise_for_error().fields["count"] == 1

    def expired_pull(self) -> None:
        self.one.pull(TOPIC, 0, self.sent, wait_ms=1).raise_for_error()

    def query(self) -> None:
        self.one.call(commands.QUERY_BY_KEY, {"topic": TOPIC, "key": "o-1"}).raise_for_error()

    def commit(self) -> None:
        fields = {"group": GROUP, "topic": TOPIC, "count": 1}
        body = CONSUMER_OFFSET_STRUCT.pack(0, 1)
        self.one.call(commands.UPDATE_CONSUMER_OFFSET, fields, body).raise_for_error()

    def refused_request(self) -> None:
        assert self.one.pull("missing").code

    def gateway_send(self) -> None:
        assert self.remote.produce(TOPIC, queueId=0).code == codes.SUCCESS
        self.sent += 1

    def gateway_pull(self) -> None:
        assert self.remote.pull(TOPIC, 0, 0)

    def gateway_expired_pull(self) -> None:
        assert self.remote.pull(TOPIC, 0, self.sent, wait_ms=1) == []

    def gateway_heart_beat(self) -> None:
        self.remote.heart_beat("one", producers=("senders",))

    def connection(self) -> None:
        self.connect(self.broker).close()

    def gateway_connection(self) -> None:
        with self.gateway.connect() as remote:
            remote.produce(TOPIC, queueId=0)
        self.sent += 1

    def delivery(self) -> None:
        self.produce()
        (delivery,) = receive(self.worker, 1)
        delivery.ack()
        self.worker.commit()


KINDS = [name for name in vars(Requests) if not name.startswith("_")]


def test_no_kind_of_request_leaves_objects_to_the_collector_or_imports_anything(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    gateway = RemotingBroker(broker, {"flush.policy": "async"}, program=("-c", REPORTING))
    running = gateway.running
    report(running)
    requests = Requests(running, connect, gateway)
    left, imported = {}, set()
    for kind in KINDS:
        request: Callable[[], None] = getattr(requests, kind)
        for _ in range(WARM):
            request()
        imported.update(report(running)[1])
        for _ in range(COUNT):
            request()
        left[kind], _ = report(running)
    requests.worker.close()
    requests.remote.close()
    assert {kind: count for kind, count in left.items() if count >= COUNT} == {}
    assert imported == set()
