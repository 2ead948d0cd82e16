"""Programs that use kombu without Celery, each a function that ``python kombu_programs.py NAME`` runs."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast

import flintmq.client.celery  # noqa: F401 - makes flintmq:// known
from flintmq.client import (
    Admin,
    AuthenticationFailed,
    DelayIllegal,
    InvalidArgument,
    Message,
    MessageIllegal,
    encode_name,
)
from flintmq.client import Producer as FlintProducer
from flintmq.client.celery.readers import PENDING_MAX

WAIT_SECONDS = 120
URL = os.environ["BROKER"]
ADDRESS = URL.split("//")[1].rpartition("@")[2]


def durable(name: str = "jobs.v1") -> Queue:
    """Return a queue that workers share; FlintMQ's name of it is encoded."""
    return Queue(name, Exchange(name), name)


@contextmanager
def consuming(channel: Any, queue: Queue, **options: Any) -> Iterator[list[Any]]:
    """Consume a queue; yields the list to which messages are added."""
    got: list[Any] = []
    with Consumer(channel, [queue], on_message=got.append, **options):
        yield got


def drain(connection: Connection, got: list[Any], count: int) -> list[Any]:
    """Wait for so many messages; return the numbers in them."""
    while len(got) < count:
        connection.drain_events(timeout=WAIT_SECONDS)
    return sorted(message.decode() for message in got)


def nothing_comes(connection: Connection) -> bool:
    """Return whether no message comes within a moment."""
    try:
        connection.drain_events(timeout=0.5)
    except TimeoutError:
        return True
    return False


def queues() -> None:
    """Declare, fill, measure, read, purge and delete a queue."""
    queue = durable()
    with Connection(URL, transport_options={"queues": 2}) as connection:
        bound = queue(connection.default_channel)
        bound.declare()
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(10):
            producer.publish(number)
        assert connection.default_channel.queue_declare("jobs.v1", passive=True).message_count == 10
        message = bound.get()
        assert message is not None
        message.ack()
        assert bound.purge() > 0
        assert connection.default_channel.queue_declare("jobs.v1").message_count == 0
        assert bound.get() is None
        with consuming(connection, queue) as got:
            producer.publish(0)
            assert drain(connection, got, 1) == [0]
            bound.delete(if_unused=True)
            with Admin(ADDRESS) as admin:
                assert encode_name("jobs.v1") in admin.topics()
            got[0].ack()
        bound.delete()
        with Admin(ADDRESS) as admin:
            assert encode_name("jobs.v1") not in admin.topics()


def members() -> None:
    """Consume a queue as a member of its group, which has some of the queues for itself."""
    queue = durable()
    options = {"queues": 2, "group_options": {"mode": "clustering"}}
    with (
        Connection(URL, transport_options=options) as connection,
        Admin(ADDRESS) as admin,
        consuming(connection, queue, no_ack=True) as got,
    ):
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(10):
            producer.publish(number)
        assert drain(connection, got, 10) == list(range(10))
        assert len(admin.group(encode_name("jobs.v1", "group")).members) == 1


def deleted() -> None:
    """A queue that an operator deletes while a program sends to it is there again with the next message."""
    queue = durable()
    with Connection(URL) as connection, Admin(ADDRESS) as admin:
        producer = Producer(connection, queue.exchange, queue.name)
        producer.publish(0, declare=[queue])
        admin.delete_topic(encode_name(queue.name))
        producer.publish(1, declare=[queue])
        with consuming(connection, queue, no_ack=True) as got:
            assert drain(connection, got, 1) == [1]


def purged_before_the_first_worker() -> None:
    """Purge a queue without a group: a later consumer gets the messages that are sent afterwards."""
    queue = durable()
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(5):
            producer.publish(number, declare=[queue])
        assert queue(connection.default_channel).purge() == 5
        producer.publish(5)
        with consuming(connection, queue, no_ack=True) as got:
            assert drain(connection, got, 1) == [5]
            assert nothing_comes(connection)


def prefetch() -> None:
    """No more messages come than the prefetch count allows; an acknowledgement makes room."""
    queue = durable()
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(5):
            producer.publish(number, declare=[queue])
        with consuming(connection, queue, prefetch_count=2) as got:
            drain(connection, got, 2)
            assert nothing_comes(connection)
            got[0].ack()
            drain(connection, got, 3)
            assert nothing_comes(connection)
            got[2].channel.basic_ack(got[2].delivery_tag, multiple=True)
            assert drain(connection, got, 5) == [0, 1, 2, 3, 4]


def unacknowledged() -> None:
    """Messages that a closed connection has not acknowledged come again, and those that it has requeued."""
    queue = durable()
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(4):
            producer.publish(number, declare=[queue])
        with consuming(connection, queue) as got:
            drain(connection, got, 4)
            {message.decode(): message for message in got}[0].ack()
            {message.decode(): message for message in got}[1].requeue()
    with Connection(URL) as connection, consuming(connection, queue) as got:
        assert drain(connection, got, 3) == [1, 2, 3]
        assert {message.decode() for message in got if message.delivery_info["redelivered"]} >= {1}
        for message in got:
            message.ack()


def cancelled() -> None:
    """A consumer that is cancelled can still acknowledge its message, and others get the rest, each message once."""
    queue = durable()
    with Connection(URL, transport_options={"queues": 4}) as one, Connection(URL) as two:
        producer = Producer(one, queue.exchange, queue.name)
        with consuming(one, queue, prefetch_count=1) as mine:
            for number in range(8):
                producer.publish(number)
            drain(one, mine, 1)
        with consuming(two, queue, prefetch_count=10) as yours:
            drain(two, yours, 1)
            mine[0].ack()
            drain(two, yours, 7)
            assert sorted(message.decode() for message in mine + yours) == list(range(8))
            for message in yours:
                message.ack()
    with Connection(URL) as connection, consuming(connection, queue) as got:
        assert nothing_comes(connection)
        assert not got


def exchanges() -> None:
    """A fanout reaches each process, and a durable queue too; a topic exchange goes by patterns."""
    fanout, topics = Exchange("news", type="fanout"), Exchange("logs", type="topic")
    own = {"exclusive": True, "auto_delete": True, "durable": False}
    with Connection(URL) as one, Connection(URL) as two, Connection(URL) as sender:
        mine, yours, kept = Queue("mine", fanout, **own), Queue("yours", fanout, **own), Queue("kept", fanout)
        errors = Queue("errors", topics, "*.error", **own)
        with (
            consuming(one, mine, no_ack=True) as first,
            consuming(two, yours, no_ack=True) as second,
            consuming(two, errors, no_ack=True) as third,
        ):
            producer = Producer(sender)
            producer.publish("hello", exchange=fanout, declare=[kept])
            for key in ("db.info", "db.error", "web.error"):
                producer.publish(key, exchange=topics, routing_key=key, declare=[topics])
            assert drain(one, first, 1) == ["hello"]
            drain(two, second, 1)
            assert drain(two, third, 2) == ["db.error", "web.error"]
        with consuming(one, kept, no_ack=True) as fourth:
            assert drain(one, fourth, 1) == ["hello"]


def broadcast() -> None:
    """A broadcast queue is a copy for each process, and no topic; another durable queue with auto_delete is shared."""
    with Connection(URL) as one, Connection(URL) as two, Connection(URL) as sender, Admin(ADDRESS) as admin:
        with consuming(one, Broadcast("all")) as first, consuming(two, Broadcast("all")) as second:
            Producer(sender).publish("hello", exchange=Exchange("all", type="fanout"), declare=[Broadcast("all")])
            for connection, got in ((one, first), (two, second)):
                assert drain(connection, got, 1) == ["hello"]
                got[0].ack()
        assert [name for name in admin.topics() if not name.startswith("%")] == ["all%2Eexchange"]
        shared = Queue("shared", Exchange("shared"), "shared", auto_delete=True)
        Producer(sender).publish("once", exchange=shared.exchange, routing_key="shared", declare=[shared])
        with consuming(one, shared, no_ack=True) as first:
            assert drain(one, first, 1) == ["once"]


def followed() -> None:
    """A process that is slow to read an exchange has the broker keep the messages; a deleted queue leaves nothing."""
    fanout = Exchange("news", type="fanout")
    with Connection(URL) as connection, Connection(URL) as sender:
        own = Queue("mine", fanout, exclusive=True, auto_delete=True, durable=False)
        for _ in range(2):
            with consuming(connection, own, no_ack=True) as got:
                for number in range(PENDING_MAX + 500):
                    Producer(sender).publish(number, exchange=fanout, declare=[fanout])
                arrivals = connection.transport.arrivals
                while arrivals.turn() < PENDING_MAX:
                    time.sleep(0.01)
                for count in range(1, PENDING_MAX + 501):
                    assert arrivals.turn() <= PENDING_MAX
                    drain(connection, got, count)
                assert [message.decode() for message in got] == list(range(PENDING_MAX + 500))
            own(connection.default_channel).delete()
        assert not connection.default_channel.get_table("news")
        assert not connection.transport.local_queues


def replies() -> None:
    """A message for a queue of another connection, by the default exchange, as the backend rpc:// sends results."""
    own = Queue(uuid.uuid4().hex, exclusive=True, auto_delete=True, durable=False)
    with Connection(URL) as asking, Connection(URL) as answering, consuming(asking, own, no_ack=True) as got:
        Producer(answering).publish("another's", routing_key=uuid.uuid4().hex)
        Producer(answering).publish("done", routing_key=own.name)
        asking.drain_events(timeout=WAIT_SECONDS)  # another's message is not an event
        assert drain(asking, got, 1) == ["done"]


def refusals() -> None:
    """Messages that cannot be stored are refused, and those that cannot be read are dead letters."""
    queue = durable()
    with Connection(URL) as connection, FlintProducer(ADDRESS) as raw, Admin(ADDRESS) as admin:
        producer = Producer(connection, queue.exchange, queue.name)
        producer.publish(1, declare=[queue])
        far = (datetime.now(UTC) + timedelta(days=400)).isoformat()
        large = os.urandom(1_000_000).hex()
        for error, body, headers in ((MessageIllegal, large, {}), (DelayIllegal, "x", {"eta": far})):
            try:
                producer.publish(body, headers=headers, retry=True)
            except error:
                continue
            raise AssertionError(error)
        raw.send(Message(encode_name(queue.name), b"not of kombu"))
        with consuming(connection, queue) as got:
            assert drain(connection, got, 1) == [1]
            got[0].ack()
            assert nothing_comes(connection)
        assert admin.topic_stats("%DLQ%jobs%2Ev1")[0].count == 1
    for rest, options in (("shop", {}), ("", {"ssl": {"cert_reqs": 0}})):
        try:
            Connection(f"{URL}{rest}", **options).connect()
        except InvalidArgument:
            continue
        raise AssertionError(rest)


def shapes_for(queue: str) -> list[bytes]:
    """Return what no consumer of a queue can decode."""
    sound = {"body": "[]", "content-type": "application/json", "content-encoding": "utf-8", "headers": {}}
    properties = {"delivery_info": {"routing_key": queue}, "delivery_mode": 2}
    changes: list[dict[str, Any]] = [
        {"properties": None},
        {"properties": {**properties, "delivery_info": "text"}},
        {"properties": {**properties, "delivery_info": None}},
        {"properties": {**properties, "delivery_info": {"routing_key": 1}}},
        {"properties": {**properties, "body_encoding": "base64"}, "body": "x"},
        {"properties": {**properties, "body_encoding": "unknown"}},
        {"properties": {**properties, "body_encoding": []}},
        {"properties": {**properties, "correlation_id": {}}},
        {"headers": "text"},
        {"headers": [1]},
        {"headers": {"task": []}},
        {"headers": {"id": {}}},
        {"headers": {"compression": []}},
        {"body": {"a": 1}},
        {"content-type": 7},
        {"content-encoding": []},
    ]
    return [
        b"\xff",
        b"[" * 5000 + b"]" * 5000,
        json.dumps([]).encode(),
        json.dumps({"__type__": "datetime", "__value__": 1}).encode(),
        *(json.dumps({**sound, "properties": properties, **changed}).encode() for changed in changes),
    ]


def strange_shapes() -> None:
    """Whatever cannot be decoded is a dead letter, and the consumer continues."""
    queue = durable()
    with Connection(URL) as connection, FlintProducer(ADDRESS) as raw, Admin(ADDRESS) as admin:
        producer = Producer(connection, queue.exchange, queue.name)
        producer.publish(1, declare=[queue])
        shapes = shapes_for(queue.name)
        for shape in shapes:
            raw.send(Message(encode_name(queue.name), shape))
        producer.publish(2)
        with consuming(connection, queue) as got:
            assert drain(connection, got, 2) == [1, 2]
            for message in got:
                message.ack()
            assert nothing_comes(connection)
        raw.send(Message(encode_name(queue.name), shapes[0]))
        producer.publish(3)
        channel, found = connection.channel(), None
        while found is None or sum(stats.count for stats in admin.topic_stats("%DLQ%jobs%2Ev1")) <= len(shapes):
            found = channel.basic_get(queue.name, no_ack=True) or found
        assert found.decode() == 3


def strange_tasks() -> None:
    """Send a worker what it cannot decode, a message without a task, one whose task it does not know, and some whose
    bodies have no arguments; then a task."""
    with FlintProducer(ADDRESS) as raw:
        for shape in shapes_for("celery"):
            raw.send(Message(encode_name("celery"), shape))
    queue = Queue("celery", Exchange("celery"), routing_key="celery")
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        task = {"task": "tasks.work", "id": "1", "lang": "py"}
        for headers in ({}, {**task, "task": "unknown"}):
            producer.publish([[1], {}, {}], headers=headers, declare=[queue])
        bodies: tuple[object, ...] = (5, None, True, "args", [], ["args"], [1, {}, {}], [[], [], {}])
        for body in bodies:
            producer.publish(body, headers=task, serializer="json")
        producer.publish([[0], {}, {}], headers=task)


def passwords() -> None:
    """A password with any character is understood, and shown nowhere."""
    for secret in ("se/cret", "se%2Fcret", "a@b/c", "x:y/?#"):
        connection = Connection(f"flintmq://shop:{secret}@{ADDRESS}//", transport_options={})
        shown = connection.as_uri() + repr(connection)
        transport = connection.transport
        shown += str({**connection.info(), "password": ""}) + connection.as_uri() + repr(connection)
        assert secret not in shown, shown
        assert "cret" not in shown
        assert connection.info()["hostname"] == f"flintmq://{ADDRESS}//"
        again = connection.clone()
        assert again.transport.clients._access == transport.clients._access
        assert transport.clients._access["user"] == "shop"
        assert transport.clients._access["password"] == unquote(secret)
    told = ""
    try:
        Connection(f"flintmq://shop:se/cret@{ADDRESS}/virtual").connect()
    except InvalidArgument as error:
        told = str(error)
    assert "virtual" in told
    assert "cret" not in told


def forks() -> None:
    """A child of a process that has sent sends with a client of its own."""
    queue = durable()
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        producer.publish(0, declare=[queue])
        with consuming(connection, queue) as got:
            child = os.fork()
            if not child:
                producer.publish(1)
                connection.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            producer.publish(2)
            assert drain(connection, got, 3) == [0, 1, 2]


def secured(ca: str) -> None:
    """Send and receive with TLS and a password, which no text shows."""
    queue = durable()
    with Connection(URL.replace("flintmq:", "flintmqs:"), ssl={"ca_certs": ca}) as connection:
        Producer(connection, queue.exchange, queue.name).publish(1, declare=[queue])
        with consuming(connection, queue, no_ack=True) as got:
            assert drain(connection, got, 1) == [1]
        assert "correct" not in connection.as_uri() + repr(connection)
    try:
        Connection(URL.replace("correct", "wrong"), ssl={"ca_certs": ca}).connect()
    except AuthenticationFailed:
        return
    raise AssertionError("a wrong password")


def hundred() -> None:
    """Send a hundred numbers, and print each that is acknowledged."""
    queue = durable()
    with Connection(URL) as connection:
        producer = Producer(connection, queue.exchange, queue.name)
        for number in range(100):
            producer.publish(number, declare=[queue], retry=True, retry_policy={"max_retries": 10})
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
