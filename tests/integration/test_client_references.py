"""A client's errors are in no reference cycle, so they keep nothing alive longer than needed.

A traceback holds its frames, and each frame its caller and its locals. An object that a program drops must be freed
without a garbage collection, because a dropped handle of a transaction leaves the decision to ``check``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    FlintError,
    Message,
    Outcome,
    Producer,
    StoredMessage,
    TransactionProducer,
    aio,
)
from tests.conftest import BrokerFactory
from tests.group_tools import WAIT_SECONDS, until

QUIET = {"transactions.timeout_ms": 3_600_000}


def check(message: StoredMessage) -> Outcome:
    return Outcome.COMMIT


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Turn garbage collection off: reference counts alone must free dropped objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def half_is_registered(producer: Any) -> Callable[[], bool]:
    """Return a function that tells whether the broker knows a producer of transactions."""
    return lambda: bool(producer.health().registered)


@contextlib.contextmanager
def no_cycles(what: str = "") -> Iterator[None]:
    """Check that no traceback and no error is left in a reference cycle. ``what`` is named if one is."""
    with no_collection():
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            yield
            gc.collect()
            kept = (BaseException, types.TracebackType, types.FrameType)
            left = [repr(thing)[:300] for thing in gc.garbage if isinstance(thing, kept)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left, "\n".join([what, *left])


OPERATIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "send": lambda producer, half, consumer, admin: producer.send(Message("orders", b"x"), timeout=0.4),
    "send_many": lambda producer, half, consumer, admin: producer.send_many([Message("orders", b"x")], timeout=0.4),
    "send_bulk": lambda producer, half, consumer, admin: producer.send_bulk("orders", [b"x"], timeout=0.4),
    "send_keyed": lambda producer, half, consumer, admin: producer.send(
        Message("other", b"x", sharding_key="a"), timeout=0.4
    ),
    "send_illegal": lambda producer, half, consumer, admin: producer.send(Message("%bad", b"x"), timeout=0.4),
    "send_half": lambda producer, half, consumer, admin: half.send_half(Message("orders", b"x"), timeout=0.4),
    "pull": lambda producer, half, consumer, admin: consumer.pull("orders", 0, 0, timeout=0.4),
    "topics": lambda producer, half, consumer, admin: admin.topics(timeout=0.4),
}


@pytest.mark.parametrize("away", [True, False], ids=["away", "refused"])
def test_a_failure_leaves_no_error_in_a_reference_cycle(broker: BrokerFactory, away: bool) -> None:
    running = broker(settings=QUIET)
    with contextlib.ExitStack() as stack:
        clients = {}
        for name in OPERATIONS:  # each with clients that have not met a failure
            producer = stack.enter_context(Producer(running.address))
            half = stack.enter_context(TransactionProducer(running.address, "g", check))
            consumer = stack.enter_context(Consumer(running.address))
            clients[name] = (producer, half, consumer, stack.enter_context(Admin(running.address)))
            producer.send(Message("orders", b"first"))
            consumer.pull("orders", 0, 0)
            until(half_is_registered(half))
        if away:
            running.kill()
        for name, operation in OPERATIONS.items():
            with no_cycles(name), contextlib.suppress(FlintError):
                operation(*clients[name])


@pytest.mark.parametrize("away", [True, False], ids=["away", "refused"])
async def test_a_failure_in_asyncio_leaves_no_error_in_a_reference_cycle(broker: BrokerFactory, away: bool) -> None:
    running = await asyncio.to_thread(broker, settings=QUIET)
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for name in OPERATIONS:
            producer = await stack.enter_async_context(aio.Producer(running.address))
            half = await stack.enter_async_context(aio.TransactionProducer(running.address, "g", check))
            consumer = await stack.enter_async_context(aio.Consumer(running.address))
            admin = await stack.enter_async_context(aio.Admin(running.address))
            clients[name] = (producer, half, consumer, admin)
            await producer.send(Message("orders", b"first"))
            await consumer.pull("orders", 0, 0)
            await asyncio.to_thread(until, half_is_registered(half))
        if away:
            await asyncio.to_thread(running.kill)
        for name, operation in OPERATIONS.items():
            with no_cycles(name):
                with contextlib.suppress(FlintError):
                    await operation(*clients[name])
                await asyncio.sleep(0)


def test_a_commit_and_an_iteration_that_fail_leave_no_error_in_a_cycle(broker: BrokerFactory) -> None:
    running = broker(settings=QUIET)
    with (
        TransactionProducer(running.address, "g", check) as producer,
        Consumer(running.address, timeout=0.4) as consumer,
    ):
        half = producer.send_half(Message("orders", b"x"))
        until(lambda: producer.health().registered)
        running.kill()
        with no_cycles():
            with pytest.raises(FlintError):
                half.commit(timeout=0.4)
            with pytest.raises(FlintError):
                list(consumer.iter("orders", from_="earliest", until="latest"))


async def test_a_commit_that_fails_leaves_no_error_in_a_cycle_of_asyncio(broker: BrokerFactory) -> None:
    running = await asyncio.to_thread(broker, settings=QUIET)
    async with aio.TransactionProducer(running.address, "g", check) as producer:
        half = await producer.send_half(Message("orders", b"x"))
        await asyncio.to_thread(until, lambda: producer.health().registered)
        await asyncio.to_thread(running.kill)
        with no_cycles():
            with contextlib.suppress(FlintError):
                await half.commit(timeout=0.4)
            await asyncio.sleep(0)


def test_a_handle_whose_half_message_met_trouble_is_left_to_check_when_it_is_dropped(broker: BrokerFactory) -> None:
    running = broker(settings=QUIET)
    sent, drop = threading.Event(), threading.Event()
    handles: list[weakref.ref[Any]] = []

    def send_half() -> None:
        half = producer.send_half(Message("orders", b"x"), timeout=WAIT_SECONDS)
        handles.append(weakref.ref(half))
        sent.set()
        assert drop.wait(WAIT_SECONDS)

    with no_collection(), TransactionProducer(running.address, "g", check) as producer:
        producer.send_half(Message("orders", b"x")).rollback()
        running.kill()
        sending = threading.Thread(target=send_half)
        sending.start()
        until(lambda: producer._halves._delivery.hold_seconds(0.0) > 0, "trouble")
        again = broker("--listen", running.address, store=running.store, settings=QUIET)
        assert again.address == running.address
        assert sent.wait(WAIT_SECONDS)
        assert producer.health().open == 1
        drop.set()
        sending.join()
        until(lambda: handles[0]() is None, "the end of the handle")
        assert producer.health().open == 0


async def test_an_asyncio_handle_whose_half_message_met_trouble_is_left_to_check(broker: BrokerFactory) -> None:
    running = await asyncio.to_thread(broker, settings=QUIET)

    async def send_half() -> weakref.ref[Any]:
        half = await producer.send_half(Message("orders", b"x"), timeout=WAIT_SECONDS)
        assert producer.health().open == 1
        return weakref.ref(half)

    with no_collection():
        async with aio.TransactionProducer(running.address, "g", check) as producer:
            await (await producer.send_half(Message("orders", b"x"))).rollback()
            await asyncio.to_thread(running.kill)
            sending = asyncio.create_task(send_half())
            await asyncio.to_thread(until, lambda: producer._halves._delivery.hold_seconds(0.0) > 0, "trouble")
            await asyncio.to_thread(lambda: broker("--listen", running.address, store=running.store, settings=QUIET))
            handle = await sending
            del sending
            assert handle() is None
            assert producer.health().open == 0
