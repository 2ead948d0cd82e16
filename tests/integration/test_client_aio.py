"""Faults that only the asyncio client can have: cancellation, blocked loops, dead tasks, foreign loops, leftovers.

``test_client_*.py`` tests the behaviour that it shares with the sync client, for both.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import uvloop

from flintmq.client import (
    ClientClosed,
    ClientFailed,
    ConnectionFailed,
    DeliveryFailed,
    ForkedClient,
    Message,
    MessageIllegal,
    RequestTimeout,
    WrongLoop,
)
from flintmq.client.aio import Admin, Consumer, Producer
from flintmq.client.core.consume.stored import StoredMessage
from flintmq.client.core.produce.delivery import Delivery
from flintmq.client.core.produce.route import queue_of
from tests.conftest import Brokers

if TYPE_CHECKING:
    from tests.conftest import BrokerFactory, RunningBroker

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a coroutine in each kind of loop; nothing may be left in the loop or logged
    afterwards.
    """

    def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await main
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
                runner.run(watched())
            gc.collect()
        assert complaints == []

    return run_in_loop


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that may be paused, because no other test uses it."""
    brokers = Brokers(tmp_path_factory.mktemp("aio"))
    yield brokers.start()
    brokers.stop_all()


@contextmanager
def paused(running: RunningBroker) -> Iterator[None]:
    """Pause the broker's process."""
    running.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        running.process.send_signal(signal.SIGCONT)


async def read(consumer: Consumer, topic: str) -> list[StoredMessage]:
    return [message async for message in consumer.iter(topic, until="latest")]


async def turns(count: int) -> None:
    """Let the loop make ``count`` turns."""
    for _ in range(count):
        await asyncio.sleep(0)


class TestBatching:
    def test_messages_sent_in_one_turn_of_the_loop_share_a_frame(
        self, run: Run, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(shared_broker.address) as producer, Admin(shared_broker.address) as admin:
                await producer.send(Message(topic, b"connects"))
                before = (await admin.status())["produces"]
                receipts = await asyncio.gather(*[producer.send(Message(topic, b"%d" % n)) for n in range(1000)])
                assert (await admin.status())["produces"] - before == 1
                assert [receipt.queue_offset for receipt in receipts] == list(
                    range(receipts[0].queue_offset, receipts[0].queue_offset + 1000)
                )

        run(main())

    def test_thousands_of_sends_at_once_are_all_stored_once(
        self, run: Run, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Producer(shared_broker.address, in_flight_bytes_max=200_000) as producer,
                Consumer(shared_broker.address) as consumer,
            ):
                sends = [producer.send(Message(topic, b"%0200d" % number)) for number in range(5000)]
                receipts = await asyncio.gather(*sends)
                assert len({receipt.message_id for receipt in receipts}) == 5000
                stored = Counter(int(message.body) for message in await read(consumer, topic))
                assert stored == Counter(range(5000))

        run(main())

    def test_messages_that_wait_for_room_or_a_topic_keep_their_order(
        self, run: Run, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Producer(shared_broker.address, in_flight_bytes_max=20_000, compress_over=None) as producer,
                Consumer(shared_broker.address) as consumer,
            ):
                queue = queue_of("a", 4)
                for number in range(200):
                    size = 5000 if number % 3 else 10
                    producer.send_async(Message(topic, b"%0*d" % (size, number), sharding_key="a"))
                    assert producer._delivery.pending_bytes <= 20_000 + 200
                last = await producer.send_many([Message(topic, b"200")], queue=queue)
                assert last[0].queue_offset == 200
                await producer.flush()
                assert [int(message.body[-10:]) for message in await read(consumer, topic)] == list(range(201))

        run(main())

    def test_a_message_without_room_in_time_fails_with_that_reason(
        self, run: Run, running: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(running.address, in_flight_bytes_max=1000, compress_over=None) as producer:
                await producer.send(Message(topic, b"connects"))
                with paused(running):
                    first = producer.send_async(Message(topic, b"x" * 2000))
                    with pytest.raises(RequestTimeout, match="in_flight_bytes_max"):
                        await producer.send(Message(topic, b"y"), timeout=0.2)
                assert (await first).topic == topic

        run(main())


class TestCancellation:
    @pytest.mark.parametrize("rounds", [0, 1, 2, 3, 5, 8, 13, 50])
    def test_a_cancelled_call_is_done_or_not_and_the_next_one_gets_its_own_answer(
        self, run: Run, shared_broker: RunningBroker, topic: str, rounds: int
    ) -> None:
        """After ``rounds`` turns of the loop each call is at a different one of its awaits."""

        async def main() -> None:
            async with (
                Producer(shared_broker.address) as producer,
                Consumer(shared_broker.address) as consumer,
                Producer(shared_broker.address) as other,
            ):
                await other.send_many([Message(topic, b"%d" % n, keys=["k"]) for n in range(10)], queue=0)
                calls: list[Coroutine[Any, Any, Any]] = [
                    producer.send(Message(topic, b"cancelled"), queue=1),
                    producer.send(Message(topic, b"cancelled too", sharding_key="a")),
                    producer.send_many([Message(topic, b"cancelled")] * 3, queue=1),
                    consumer.pull(topic, 0, 3),
                    consumer.pull(topic, 0, 10, wait_ms=5000),
                    consumer.query(topic, "k"),
                    anext(consumer.iter(topic, from_={0: 10})),
                ]
                tasks = [asyncio.create_task(call) for call in calls]
                await turns(rounds)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() or task.exception() is None for task in tasks)
                assert (await consumer.pull(topic, 0, 7)).bodies() == [b"7", b"8", b"9"]
                assert len(await consumer.query(topic, "k", max_count=4)) == 4
                receipts = [await producer.send(Message(topic, b"after"), queue=2) for _ in range(3)]
                assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2] or receipts[0].queue_offset == 1
                assert producer._delivery.pending_bytes == 0
                assert producer._delivery.idle
                acknowledged = sum(1 for task in tasks[:1] if not task.cancelled())
                stored = (await consumer.pull(topic, 1, 0)).bodies() if await has_messages(consumer, topic) else []
                assert len(stored) >= acknowledged

        async def has_messages(consumer: Consumer, topic: str) -> bool:
            return (await consumer.topic_stats(topic))[1].count > 0

        run(main())

    def test_a_send_that_is_cancelled_before_it_went_out_is_never_stored(
        self, run: Run, running: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(running.address) as producer, Consumer(running.address) as consumer:
                await producer.send(Message(topic, b"first"), queue=0)
                with paused(running):
                    in_flight = asyncio.create_task(producer.send(Message(topic, b"in flight"), queue=0))
                    await turns(3)
                    waiting = [asyncio.create_task(producer.send(Message(topic, b"never"), queue=0)) for _ in range(10)]
                    handed_over = producer.send_async(Message(topic, b"never"), queue=0)
                    await turns(3)
                    for task in waiting:
                        task.cancel()
                    handed_over.cancel()
                    in_flight.cancel()
                    await asyncio.wait([*waiting, in_flight])
                await producer.flush()
                await producer.send(Message(topic, b"last"), queue=0)
                assert producer._delivery.pending_bytes == 0
                assert [message.body for message in await read(consumer, topic)] == [b"first", b"in flight", b"last"]

        run(main())

    def test_abandoned_pulls_do_not_pile_up_in_the_broker(self, run: Run, running: RunningBroker, topic: str) -> None:
        async def main() -> None:
            async with (
                Consumer(running.address) as consumer,
                Admin(running.address) as admin,
                Producer(running.address) as producer,
            ):
                await producer.send(Message(topic, b"first"), queue=0)
                kept = asyncio.create_task(consumer.pull(topic, 0, 1, wait_ms=30_000))
                await turns(10)
                for _ in range(100):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(consumer.pull(topic, 0, 1, wait_ms=30_000), 0.005)
                while (held := (await admin.status())["held_pulls"]) > 36:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert held >= 1
                await producer.send(Message(topic, b"second"), queue=0)
                assert (await kept).bodies() == [b"second"]
                assert (await consumer.pull(topic, 0, 0)).bodies() == [b"first", b"second"]

        run(main())

    def test_an_iteration_that_is_left_ends_its_pulls(self, run: Run, running: RunningBroker, topic: str) -> None:
        async def main() -> None:
            async with (
                Consumer(running.address) as consumer,
                Admin(running.address) as admin,
                Producer(running.address) as producer,
            ):
                await producer.send_many([Message(topic, b"x")] * 10)
                for _ in range(20):
                    async with aclosing(consumer.iter(topic)) as messages:
                        await anext(messages)
                async for _ in consumer.iter(topic):
                    break
                gc.collect()
                while (status := await admin.status())["held_pulls"] or status["connections"] > 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        run(main())


class TestBlockedLoop:
    def test_a_response_received_meanwhile_is_no_failure(
        self, run: Run, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Producer(shared_broker.address, delivery_timeout=0.5) as producer,
                Consumer(shared_broker.address, timeout=0.5) as consumer,
            ):
                await producer.send(Message(topic, b"first"), queue=0)
                held = asyncio.create_task(consumer.pull(topic, 0, 1, wait_ms=300))
                sends = [asyncio.create_task(producer.send(Message(topic, b"x" * 1000))) for _ in range(500)]
                many = asyncio.create_task(producer.send_many([Message(topic, b"y" * 1000)] * 2000))
                await turns(2)
                time.sleep(1.5)  # noqa: ASYNC251 - this is what is tested
                receipts = await asyncio.gather(*sends)
                assert len({receipt.message_id for receipt in receipts}) == 500
                assert len(await many) == 2000
                assert (await held).topic == topic

        run(main())

    def test_a_message_that_could_not_even_be_sent_has_all_its_time_afterwards(
        self, run: Run, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(shared_broker.address, delivery_timeout=0.5) as producer:
                future = producer.send_async(Message(topic, b"x"))
                time.sleep(1.5)  # noqa: ASYNC251
                assert (await future).topic == topic

        run(main())

    def test_a_busy_loop_does_not_take_unread_responses_for_silence(
        self, run: Run, running: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flintmq.client.aio.driver.SILENCE_SECONDS_MAX", 0.3)

        async def main() -> None:
            async with Producer(running.address) as producer, Admin(running.address) as admin:
                await producer.send(Message(topic, b"first"))
                before = await admin.status()
                for _ in range(3):
                    send = asyncio.create_task(producer.send(Message(topic, b"x")))
                    await turns(2)
                    time.sleep(0.7)  # noqa: ASYNC251
                    await send
                status = await admin.status()
                assert status["connections"] == before["connections"]
                assert status["produces"] == before["produces"] + 3

        run(main())

    def test_a_connection_that_was_closed_meanwhile_is_replaced(self, run: Run, broker: BrokerFactory) -> None:
        running = broker(settings={"limits.idle_timeout_ms": 300})

        async def main() -> None:
            async with Producer(running.address) as producer, Consumer(running.address) as consumer:
                for _ in range(2):
                    await producer.send(Message("t", b""))
                    assert await consumer.topic_stats("t")
                    time.sleep(1.2)  # noqa: ASYNC251
                assert sum(stats.count for stats in await consumer.topic_stats("t")) == 2

        run(main())

    def test_deadlines_hold_while_the_loop_runs(self, run: Run, running: RunningBroker, topic: str) -> None:
        async def main() -> None:
            async with Producer(running.address) as producer, Consumer(running.address) as consumer:
                await producer.send(Message(topic, b"first"), queue=0)
                await consumer.topic_stats(topic)
                with paused(running):
                    for timeout in (0.05, 0.4):
                        for call in (
                            producer.send(Message(topic, b"x"), timeout=timeout),
                            consumer.pull(topic, 0, 0, timeout=timeout),
                        ):
                            began = time.monotonic()
                            with pytest.raises((RequestTimeout, ConnectionFailed)):
                                await call
                            assert timeout * 0.9 <= time.monotonic() - began < timeout + 2

        run(main())


class TestDeath:
    @pytest.mark.parametrize("where", ["answered", "next_request", "expire"])
    def test_an_unexpected_error_reaches_every_present_and_later_call(
        self, run: Run, running: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def die(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        async def main() -> None:
            producer = Producer(running.address, delivery_timeout=0.4)
            await producer.send(Message(topic, b"first"))
            with paused(running):
                waiting = [asyncio.create_task(producer.send(Message(topic, b"x"))) for _ in range(3)]
                many = asyncio.create_task(producer.send_many([Message(topic, b"x")] * 3))
                if where != "next_request":
                    await turns(3)
                monkeypatch.setattr(Delivery, where, die)
                if where == "expire":
                    await asyncio.wait([*waiting, many])
            await asyncio.wait([*waiting, many])
            for task in waiting:
                error = task.exception()
                assert isinstance(error, ClientFailed)
                assert isinstance(error.__cause__, ZeroDivisionError)
            assert isinstance(many.exception(), DeliveryFailed)
            for call in (
                producer.send(Message(topic, b"")),
                producer.send_many([Message(topic, b"")]),
                producer.flush(),
            ):
                with pytest.raises(ClientFailed, match="a bug") as raised:
                    await call
                assert isinstance(raised.value.__cause__, ZeroDivisionError)
            await producer.close()

        run(main())

    def test_a_task_that_dies_takes_the_consumer_with_it(
        self, run: Run, shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def die(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        async def main() -> None:
            consumer = Consumer(shared_broker.address)
            monkeypatch.setattr("flintmq.client.aio.dialer.Dialer.dial", die)
            for _ in range(2):
                with pytest.raises(ClientFailed, match=r"connecting.*a bug"):
                    await consumer.topic_stats("t")
            await consumer.close()
            with pytest.raises(ClientClosed):
                await consumer.topic_stats("t")

        run(main())


class TestClose:
    def test_it_waits_for_all_that_was_handed_over(self, run: Run, shared_broker: RunningBroker, topic: str) -> None:
        async def main() -> None:
            producer = Producer(shared_broker.address, in_flight_bytes_max=100_000, compress_over=None)
            sends = [asyncio.create_task(producer.send(Message(topic, b"x" * 1000))) for _ in range(500)]
            many = asyncio.create_task(producer.send_many([Message(topic, b"x")] * 5000))
            futures = [producer.send_async(Message(topic, b"x" * 1000)) for _ in range(500)]
            await turns(1)
            await asyncio.gather(producer.close(), producer.close())
            assert all(future.done() for future in futures)
            assert len(await asyncio.gather(*sends, *futures)) == 1000
            assert len(await many) == 5000
            with pytest.raises(ClientClosed):
                await producer.send(Message(topic, b""))
            await producer.close()

        run(main())

    def test_cancelled_it_still_ends_everything(self, run: Run, running: RunningBroker, topic: str) -> None:
        async def main() -> None:
            producer = Producer(running.address)
            await producer.send(Message(topic, b"first"))
            with paused(running):
                send = asyncio.create_task(producer.send(Message(topic, b"x")))
                await turns(3)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(producer.close(), 0.2)
                with pytest.raises(ClientClosed):
                    await send

        run(main())

    def test_it_does_not_wait_for_nothing(self, run: Run, shared_broker: RunningBroker, topic: str) -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                async with Producer(shared_broker.address) as producer:
                    assert list(await producer.send_bulk(topic, [])) == []
                for turns_before in range(4):
                    producer = Producer(shared_broker.address)
                    send = asyncio.create_task(producer.send(Message(topic, b"never sent")))
                    bulk = asyncio.create_task(producer.send_many([Message(topic, b"never sent")] * 10))
                    await turns(turns_before)
                    send.cancel()
                    bulk.cancel()
                    await producer.close()
                    await asyncio.wait({send, bulk})

        run(main())

    def test_unobserved_failures_are_raised_once(self, run: Run, shared_broker: RunningBroker, topic: str) -> None:
        async def main() -> None:
            async with Producer(shared_broker.address, compress_over=None) as producer:
                seen = producer.send_async(Message(topic, b"x" * 600_000))
                with pytest.raises(MessageIllegal):
                    await seen
                producer.send_async(Message(topic, b"x" * 600_000))
                with pytest.raises(DeliveryFailed, match="1 of 1 messages"):
                    await producer.flush()
                await producer.flush()

        run(main())

    def test_an_unused_client_needs_no_loop(self, run: Run) -> None:
        async def main() -> None:
            for client in (Producer(), Consumer(), Admin()):
                async with client:
                    pass
                await client.close()

        run(main())


class TestForeignLoops:
    def test_use_in_another_loop_is_refused(self, shared_broker: RunningBroker, topic: str) -> None:
        producer, consumer = Producer(shared_broker.address), Consumer(shared_broker.address)

        async def use() -> None:
            await producer.send(Message(topic, b"x"))
            await consumer.topic_stats(topic)

        async def use_elsewhere(said: str) -> None:
            for call in (
                producer.send(Message(topic, b"x")),
                producer.send_many([Message(topic, b"x")]),
                producer.flush(),
                producer.close(),
                consumer.topic_stats(topic),
                consumer.close(),
            ):
                with pytest.raises(WrongLoop, match=said):
                    await call
            with pytest.raises(WrongLoop, match=said):
                producer.send_async(Message(topic, b"x"))

        with asyncio.Runner() as first:
            first.run(use())
            with asyncio.Runner() as second:
                second.run(use_elsewhere("another one"))
            with pytest.raises(WrongLoop, match="without a running event loop"):
                producer.send_async(Message(topic, b"x"))
            first.run(use())
            first.run(producer.close())
            first.run(consumer.close())

    def test_two_loops_have_a_client_each(self, shared_broker: RunningBroker, topic: str) -> None:
        async def use() -> None:
            async with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
                receipts = await asyncio.gather(*[producer.send(Message(topic, b"x")) for _ in range(100)])
                assert len(receipts) == 100
                assert len(await read(consumer, topic)) >= 100

        for _ in range(2):
            asyncio.run(use())

    def test_after_a_fork_the_child_gets_an_error_and_the_parent_continues(
        self, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def use(producer: Producer, consumer: Consumer) -> list[str]:
            said = []
            for call in (producer.send(Message(topic, b"child")), consumer.topic_stats(topic)):
                try:
                    await call
                except ForkedClient as error:
                    said.append(str(error))
            await producer.close()
            await consumer.close()
            return said

        async def main() -> None:
            async with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
                await producer.send(Message(topic, b"before"))
                await consumer.topic_stats(topic)
                read_end, write_end = os.pipe()
                child = os.fork()
                if child == 0:
                    said = asyncio.new_event_loop().run_until_complete(use(producer, consumer))
                    os.write(write_end, "\n".join(said).encode())
                    os._exit(0)
                os.close(write_end)
                with os.fdopen(read_end) as pipe:
                    said = pipe.read().splitlines()
                assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222
                assert len(said) == 2
                assert all("after the fork" in line for line in said)
                await producer.send(Message(topic, b"after"))
                assert sum(stats.count for stats in await consumer.topic_stats(topic)) == 2

        asyncio.run(main())


def test_the_cause_of_a_clients_failure_survives_copies() -> None:
    error = ClientFailed("why", ValueError("cause"))
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(again) == "why"
        assert isinstance(again.__cause__, ValueError)
