"""Texts and numbers that no request can carry: clients refuse them before anything is sent."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    GroupConsumer,
    InvalidArgument,
    InvalidMessage,
    Message,
    Producer,
    PushConsumer,
    Subscription,
    TransactionProducer,
    aio,
)
from flintmq.protocol.commands import PRODUCE
from tests.cli_tools import Cli
from tests.conftest import ConnectionFactory, RunningBroker, rows

BAD = os.fsdecode(b"caf\xe9")
SECONDS = [math.inf, -math.inf, math.nan, 1e300, 10**400]


@pytest.mark.parametrize(
    "call",
    [
        lambda clients, topic: clients.Consumer.query(topic, BAD),
        lambda clients, topic: clients.Consumer.message(BAD),
        lambda clients, topic: clients.Consumer.pull(topic, 0, 0, tags=BAD),
        lambda clients, topic: clients.Consumer.pull(topic, 0, 0, filter=f"a = '{BAD}'"),
        lambda clients, topic: clients.Consumer.committed(BAD, topic),
        lambda clients, topic: clients.Admin.create_topic(BAD),
        lambda clients, topic: clients.Admin.delete_group(BAD),
        lambda clients, topic: clients.Admin.change_settings({"log.level": BAD}),
        lambda clients, topic: clients.Admin.remove_access_key("ops", BAD),
        lambda clients, topic: clients.Producer.send_bulk(topic, [b"x"], keys=[BAD]),
        *(lambda clients, topic, each=each: clients.Consumer.committed("g", topic, timeout=each) for each in SECONDS),
        *(lambda clients, topic, each=each: clients.Admin.switch_primary("a", within=each) for each in SECONDS),
        *(lambda clients, topic, each=each: clients.Producer.flush(timeout=each) for each in SECONDS),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_call_with_an_argument_that_cannot_be_sent_is_refused(
    shared_broker: RunningBroker, topic: str, kind: str, call: Callable[[Any, str], Any]
) -> None:
    address = shared_broker.address

    class Sync:
        Consumer, Admin, Producer = Consumer(address), Admin(address), Producer(address)

    async def in_a_loop() -> None:
        class Aio:
            Consumer, Admin, Producer = aio.Consumer(address), aio.Admin(address), aio.Producer(address)

        try:
            await call(Aio, topic)
        finally:
            for each in (Aio.Consumer, Aio.Admin, Aio.Producer):
                await each.close()

    with Sync.Consumer, Sync.Admin, Sync.Producer, pytest.raises((InvalidArgument, InvalidMessage)):
        asyncio.run(in_a_loop()) if kind == "asyncio" else call(Sync, topic)


@pytest.mark.parametrize(
    "options",
    [
        {"topics": {"t": BAD}},
        {"topics": {"t": Subscription(None, f"a = '{BAD}'")}},
        {"client_name": BAD},
        {"member": BAD},
        *({name: each} for name in ("timeout", "commit_interval", "session_timeout") for each in SECONDS),
        *({"listener_timeout": each} for each in SECONDS[1:]),
    ],
)
@pytest.mark.parametrize("make", [PushConsumer, GroupConsumer, aio.PushConsumer, aio.GroupConsumer])
def test_an_option_that_cannot_be_sent_is_refused(make: Callable[..., Any], options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"addresses": "127.0.0.1:1", "group": "g", "topics": "t"} | options
    if make in (PushConsumer, aio.PushConsumer):

        async def listener(message: object) -> None: ...

        arguments["listener"] = listener if make is aio.PushConsumer else print
    with pytest.raises(InvalidArgument):
        make(**arguments)


def test_a_client_that_names_itself_in_no_unicode_is_refused() -> None:
    for make in (Producer, Consumer, Admin, aio.Producer, aio.Consumer, aio.Admin):
        with pytest.raises(InvalidArgument, match="client_name"):
            make("127.0.0.1:1", client_name=BAD)
    with pytest.raises(InvalidArgument, match="client_name"):
        TransactionProducer("127.0.0.1:1", "g", lambda message: None, client_name=BAD)  # type: ignore[arg-type, return-value] # never called


@pytest.mark.parametrize("parts", [{"tags": "*"}, {"tags": BAD}, {"delay": timedelta.max}, {"properties": {"a": BAD}}])
def test_a_message_that_no_consumer_could_get_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        Message("t", b"", **parts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "key", "t", BAD),
        ("send", "t", "x", "--tag", BAD),
        ("send", "t", "x", "--tag", "*"),
        ("send", "t", "x", "--delay", "9" * 400 + "d"),
        ("pull", "t", "--filter", BAD),
        ("pull", BAD),
        ("status", "--timeout", "inf"),
        ("status", "--timeout", "nan"),
        ("check", "--disk-critical", "nan"),
        ("topic", "create", "t2", "--retention-bytes", "9" * 400),
    ],
)
def test_a_command_with_an_argument_that_cannot_be_sent_is_a_usage_error(
    cli: Cli, topic: str, arguments: tuple[str, ...]
) -> None:
    assert cli.run("topic", "create", topic).code == 0
    done = cli.run(*(topic if word == "t" else word for word in arguments))
    assert done.code == (3 if arguments[0] == "check" else 2), done.err
    assert "PROTOCOL" not in done.err


def test_a_wait_may_be_very_long(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address, delivery_timeout=1e9) as producer, Admin(shared_broker.address) as admin:
        producer.send(Message(topic, b"x"), timeout=1e9)
        assert topic in admin.topics(timeout=1e9)
    with GroupConsumer(shared_broker.address, f"{topic}-g", topic, start="first", listener_timeout=math.inf) as member:
        [delivery] = member.receive(timeout=1e9)
        delivery.ack()
        for timeout in SECONDS:
            with pytest.raises(InvalidArgument):
                member.wait(timeout)
        assert not member.wait(0)


def test_a_tag_that_another_client_stored_is_kept(
    shared_broker: RunningBroker, topic: str, connect: ConnectionFactory
) -> None:
    connect(shared_broker).call(
        PRODUCE, {"topic": topic, "count": 1, "queue": 0}, rows([b"x", {"TAGS": "*"}])
    ).raise_for_error()
    with Consumer(shared_broker.address) as consumer, Producer(shared_broker.address) as producer:
        [stored] = consumer.pull(topic, 0, 0).messages
        again = pickle.loads(pickle.dumps(Message.again(stored)))
        receipt = producer.send(again, queue=0)
        assert consumer.pull(topic, 0, receipt.queue_offset).messages[0].tags == "*"
