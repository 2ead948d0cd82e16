"""Ends of the asyncio client: dead tasks, closing, foreign loops.

These faults only the asyncio client can have; ``test_client_*.py`` tests what it shares with the sync client, for both.
"""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from typing import TYPE_CHECKING

import pytest

from flintmq.client import ClientClosed, ClientFailed, DeliveryFailed, ForkedClient, Message, MessageIllegal, WrongLoop
from flintmq.client.aio import Admin, Consumer, Producer
from flintmq.client.core.produce.delivery import Outbox

if TYPE_CHECKING:
    from tests.aio_tools import RunInLoop
from tests.aio_tools import read, turns
from tests.conftest import RunningBroker


class TestDeath:
    @pytest.mark.parametrize("where", ["answered", "next_request", "expire"])
    def test_an_unexpected_error_reaches_every_present_and_later_call(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def die(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        async def main() -> None:
            producer = Producer(own_broker.address, delivery_timeout=0.4 if where == "expire" else 60)
            await producer.send(Message(topic, b"first"))
            with own_broker.paused():
                waiting = [asyncio.create_task(producer.send(Message(topic, b"x"))) for _ in range(3)]
                many = asyncio.create_task(producer.send_many([Message(topic, b"x")] * 3))
                if where != "next_request":
                    await turns(3)
                monkeypatch.setattr(Outbox, where, die)
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

        run_in_loop(main())

    def test_a_task_that_dies_takes_the_consumer_with_it(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def die(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        async def main() -> None:
            monkeypatch.setattr("flintmq.client.aio.rpc.Dialer.dial", die)
            consumer = Consumer(shared_broker.address)
            for _ in range(2):
                with pytest.raises(ClientFailed, match=r"connecting.*a bug"):
                    await consumer.topic_stats("t")
            await consumer.close()
            with pytest.raises(ClientClosed):
                await consumer.topic_stats("t")

        run_in_loop(main())


class TestClose:
    def test_it_waits_for_all_that_was_handed_over(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
    ) -> None:
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

        run_in_loop(main())

    def test_cancelled_it_still_ends_everything(
        self, run_in_loop: RunInLoop, own_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            producer = Producer(own_broker.address)
            await producer.send(Message(topic, b"first"))
            with own_broker.paused():
                send = asyncio.create_task(producer.send(Message(topic, b"x")))
                await turns(3)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(producer.close(), 0.2)
                with pytest.raises(ClientClosed):
                    await send

        run_in_loop(main())

    def test_it_does_not_wait_for_nothing(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
    ) -> None:
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

        run_in_loop(main())

    def test_unobserved_failures_are_raised_once(
        self, run_in_loop: RunInLoop, shared_broker: RunningBroker, topic: str
    ) -> None:
        async def main() -> None:
            async with Producer(shared_broker.address, compress_over=None) as producer:
                seen = producer.send_async(Message(topic, b"x" * 600_000))
                with pytest.raises(MessageIllegal):
                    await seen
                producer.send_async(Message(topic, b"x" * 600_000))
                with pytest.raises(DeliveryFailed, match="1 of 1 messages"):
                    await producer.flush()
                await producer.flush()

        run_in_loop(main())

    def test_an_unused_client_needs_no_loop(self, run_in_loop: RunInLoop) -> None:
        async def main() -> None:
            for client in (Producer(), Consumer(), Admin()):
                async with client:
                    pass
                await client.close()

        run_in_loop(main())


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
