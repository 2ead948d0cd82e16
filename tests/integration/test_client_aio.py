"""Faults that only the asyncio client can have: cancellation, blocked loops, dead tasks, foreign loops, leftovers.

``test_client_*.py`` tests the behaviour that it shares with the sync client, for both.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client import Message, RequestTimeout
from flintmq.client.aio import Admin, Consumer, Producer
from flintmq.client.core.produce.packer import queue_of
from tests.aio_tools import RunInLoop

if TYPE_CHECKING:
    from tests.conftest import BrokerFactory, RunningBroker

from tests.aio_tools import read, turns


class TestBatching:
    def test_messages_sent_in_one_turn_of_the_loop_share_a_frame(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
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

        run_in_loop(main())

    def test_thousands_of_sends_at_once_are_all_stored_once(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
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

        run_in_loop(main())

    def test_messages_that_wait_for_room_or_a_topic_keep_their_order(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
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

        run_in_loop(main())

    def test_a_message_without_room_in_time_fails_with_that_reason(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(own_broker.address, in_flight_bytes_max=1000, compress_over=None) as producer:
                await producer.send(Message(topic, b"connects"))
                with own_broker.paused():
                    first = producer.send_async(Message(topic, b"x" * 2000))
                    with pytest.raises(RequestTimeout, match="in_flight_bytes_max"):
                        await producer.send(Message(topic, b"y"), timeout=0.2)
                assert (await first).topic == topic

        run_in_loop(main())


class TestCancellation:
    @pytest.mark.parametrize("rounds", [0, 1, 2, 3, 5, 8, 13, 50])
    def test_a_cancelled_call_is_done_or_not_and_the_next_one_gets_its_own_answer(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str, rounds: int
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

        run_in_loop(main())

    def test_a_send_that_is_cancelled_before_it_went_out_is_never_stored(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(own_broker.address) as producer, Consumer(own_broker.address) as consumer:
                await producer.send(Message(topic, b"first"), queue=0)
                with own_broker.paused():
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

        run_in_loop(main())

    def test_abandoned_pulls_do_not_pile_up_in_the_broker(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Consumer(own_broker.address) as consumer,
                Admin(own_broker.address) as admin,
                Producer(own_broker.address) as producer,
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

        run_in_loop(main())

    def test_an_iteration_that_is_left_ends_its_pulls(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Consumer(own_broker.address) as consumer,
                Admin(own_broker.address) as admin,
                Producer(own_broker.address) as producer,
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

        run_in_loop(main())


class TestBlockedLoop:
    def test_a_response_received_meanwhile_is_no_failure(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with (
                Producer(shared_broker.address, delivery_timeout=0.5) as producer,
                Consumer(shared_broker.address, timeout=0.5) as consumer,
            ):
                await producer.send(Message(topic, b"first"), queue=0)
                assert await consumer.topic_stats(topic)
                held = asyncio.create_task(consumer.pull(topic, 0, 1, wait_ms=300))
                sends = [asyncio.create_task(producer.send(Message(topic, b"x" * 1000))) for _ in range(100)]
                many = asyncio.create_task(producer.send_many([Message(topic, b"y" * 1000)] * 200))
                await turns(2)
                time.sleep(1.5)  # noqa: ASYNC251 - this is what is tested
                receipts = await asyncio.gather(*sends)
                assert len({receipt.message_id for receipt in receipts}) == 100
                assert len(await many) == 200
                assert (await held).topic == topic

        run_in_loop(main())

    def test_a_message_that_could_not_be_sent_in_its_time_fails_and_the_next_one_is_sent(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(shared_broker.address, delivery_timeout=0.5) as producer:
                future = producer.send_async(Message(topic, b"x"))
                time.sleep(1.5)  # noqa: ASYNC251
                with pytest.raises(RequestTimeout):
                    await future
                assert (await producer.send(Message(topic, b"y"), timeout=10)).topic == topic

        run_in_loop(main())

    def test_a_busy_loop_does_not_take_unread_responses_for_silence(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flintmq.client.core.rpc.timeouts.SILENCE_SECONDS_MAX", 0.3)

        async def main() -> None:
            async with Producer(own_broker.address) as producer, Admin(own_broker.address) as admin:
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

        run_in_loop(main())

    def test_a_connection_that_was_closed_meanwhile_is_replaced(
        self, run_in_loop: RunInLoop, broker: BrokerFactory
    ) -> None:
        running = broker(settings={"limits.idle_timeout_ms": 300})

        async def main() -> None:
            async with Producer(running.address) as producer, Consumer(running.address) as consumer:
                for _ in range(2):
                    await producer.send(Message("t", b""))
                    assert await consumer.topic_stats("t")
                    time.sleep(1.2)  # noqa: ASYNC251
                assert sum(stats.count for stats in await consumer.topic_stats("t")) == 2

        run_in_loop(main())
