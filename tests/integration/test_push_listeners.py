"""Listeners that are coroutine functions, plain functions, and plain functions that return an awaitable."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from flintmq.client import Admin, Batch, ListenerTimeout, Message, Producer, PushConsumer, StoredMessage, aio
from tests.conftest import RunningBroker
from tests.group_tools import WAIT_SECONDS, Seen, until

MESSAGES = 20


@pytest.fixture
def address(shared_broker: RunningBroker, topic: str) -> str:
    """A broker with messages in ``topic``."""
    with Producer(shared_broker.address) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(MESSAGES)])
    return shared_broker.address


def lag(address: str, group: str) -> int:
    with Admin(address) as admin:
        return sum(queue.lag for queue in admin.group(group).queues)


async def handle_later(message: StoredMessage) -> None:
    """Do nothing; no test runs it."""


def generate(message: StoredMessage) -> Iterator[None]:
    yield


async def generate_later(message: StoredMessage) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("call", [handle_later, generate, generate_later])
def test_an_awaitable_result_that_is_never_awaited_is_a_failure(
    address: str, topic: str, call: Callable[[StoredMessage], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was never awaited
        with PushConsumer(address, topic, topic, lambda message: call(message), start="first") as consumer:
            until(lambda: consumer.health().retried == MESSAGES, "sending all back")
            assert consumer.health().consumed == 0
    assert "which this consumer does not run" in caplog.text


async def test_an_asyncio_consumer_calls_a_plain_function_in_threads(address: str, topic: str) -> None:
    threads: set[threading.Thread] = set()
    both = threading.Barrier(2)
    seen = Seen()

    def listener(message: StoredMessage) -> None:
        threads.add(threading.current_thread())
        if message.body in (b"0", b"1"):
            both.wait(WAIT_SECONDS)  # at a time
        seen(message)

    async with aio.PushConsumer(address, topic, topic, listener, start="first") as consumer:
        await asyncio.to_thread(seen.wait, MESSAGES)
        await asyncio.to_thread(until, lambda: consumer.health().pending_messages == 0, "all being done")
        await consumer.commit()
        assert consumer.health().failed == 0
        assert await asyncio.to_thread(lag, address, topic) == 0
    assert threading.main_thread() not in threads
    assert len(seen.messages) == MESSAGES


async def test_an_awaitable_returned_by_a_plain_function_is_awaited_in_the_loop(address: str, topic: str) -> None:
    loop = asyncio.get_running_loop()
    seen = Seen()

    async def handle(message: StoredMessage) -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        seen(message)

    async with aio.PushConsumer(address, topic, topic, lambda message: handle(message), start="first") as consumer:
        await asyncio.to_thread(seen.wait, MESSAGES)
        assert consumer.health().failed == 0


async def test_a_plain_function_gets_batches_and_its_errors_cause_retries(address: str, topic: str) -> None:
    seen = Seen()
    failed = threading.Event()

    def listener(batch: Batch) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("no")
        seen(batch)

    options: dict[str, Any] = {"start": "first", "delay_level": 1}
    async with aio.PushConsumer(address, topic, topic, listener, batch=8, **options) as consumer:
        await asyncio.to_thread(seen.wait, MESSAGES)
        assert consumer.health().retried > 0
    assert {message.body for message in seen.messages} == {b"%d" % number for number in range(MESSAGES)}


async def test_a_plain_function_that_does_not_come_back_is_replaced_and_does_not_keep_the_loop(
    address: str, topic: str
) -> None:
    go_on = threading.Event()
    seen = Seen()

    def listener(message: StoredMessage) -> None:
        if message.body == b"0" and not message.reconsume_times:
            go_on.wait(WAIT_SECONDS)
        seen(message)

    options: dict[str, Any] = {"start": "first", "delay_level": 1, "workers": 1, "listener_timeout": 0.2}
    try:
        async with aio.PushConsumer(address, topic, topic, listener, **options) as consumer:
            await asyncio.to_thread(until, lambda: {m.body for m in seen.messages} >= {b"%d" % n for n in range(1, 20)})
            assert consumer.health().stuck >= 1
    finally:
        go_on.set()


async def test_close_does_not_wait_for_ever_for_a_plain_function(address: str, topic: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def listener(message: StoredMessage) -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS)

    consumer = await aio.PushConsumer(address, topic, topic, listener, start="first", workers=1).start()
    await asyncio.to_thread(begun.wait, WAIT_SECONDS)
    with pytest.raises(ListenerTimeout, match="1 listeners"):
        await consumer.close(0.1)
    go_on.set()
