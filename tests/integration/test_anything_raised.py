"""Code of the application may raise anything at all: it costs an attempt, and neither a consumer nor a producer."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

import flintmq.client
from flintmq.client import AuthenticationFailed, Consumer, FlintError, GiveUp, Message, Outcome, Producer, TryLater, aio
from tests.client_drivers import Clients
from tests.conftest import Brokers, RunningBroker
from tests.group_tools import until

ASKING = {"transactions.timeout_ms": 20, "transactions.check_interval_ms": 20, "transactions.check_times_max": 10_000}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that checks transactions soon and repeatedly."""
    brokers = Brokers(tmp_path_factory.mktemp("asking"))
    yield brokers.start(settings=ASKING)
    brokers.stop_all()


class Outside(BaseException):
    pass


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise Outside

    __repr__ = __str__


async def cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


def throw(error: BaseException) -> NoReturn:
    raise error


RAISING: dict[str, Callable[[], object]] = {
    "cancelled-inner-loop": lambda: asyncio.run(cancelled()),
    "exit": lambda: sys.exit("usage"),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "generator-exit": lambda: throw(GeneratorExit()),
    "own": lambda: throw(Outside("x")),
    "unprintable": lambda: throw(Unprintable()),
}
raising = pytest.mark.parametrize("raises", RAISING.values(), ids=list(RAISING))


def dead_letters(running: RunningBroker, group: str) -> list[bytes]:
    with Consumer(running.address) as consumer:
        try:
            return [message.body for message in consumer.iter(f"%DLQ%{group}", until="latest")]
        except flintmq.client.TopicNotExist:
            return []


class TestListeners:
    @raising
    @pytest.mark.parametrize("mode", ["messages", "batches", "broadcasting", "orderly"])
    def test_the_message_is_tried_again_and_the_consumer_lives(
        self, clients: Clients, shared_broker: RunningBroker, topic: str, raises: Callable[[], object], mode: str
    ) -> None:
        seen: set[bytes] = set()
        tries: list[bytes] = []

        def listener(handed: Any) -> None:
            for message in [handed] if mode != "batches" else handed.messages:
                if message.body == b"bad" and (mode != "orderly" or not tries):
                    tries.append(message.body)
                    raises()
                seen.add(message.body)

        options: dict[str, Any] = {"start": "first", "workers": 1}
        if mode == "batches":
            options["batch"] = 1
        if mode == "broadcasting":
            options["mode"] = mode
        else:
            options["retry_times_max"] = 0
        if mode == "orderly":
            options |= {"orderly": True, "suspend": 0.01, "retry_times_max": 5}
        group = f"g-{topic}"
        with Producer(shared_broker.address) as producer:
            producer.send_bulk(topic, [b"1", b"bad", b"2"], queue=0)
        with clients.PushConsumer(shared_broker.address, group, topic, listener, **options) as consumer:
            until(lambda: {b"1", b"2"} <= seen)
            if mode in ("messages", "batches"):
                until(lambda: dead_letters(shared_broker, group) == [b"bad"])
            if mode == "orderly":
                until(lambda: b"bad" in seen)
            assert tries == [b"bad"]
            assert consumer.health().alive

    @pytest.mark.parametrize("raised", ["sys.exit('usage')", "raise KeyboardInterrupt"])
    def test_in_the_main_thread_it_ends_the_program_in_order(
        self, shared_broker: RunningBroker, topic: str, raised: str
    ) -> None:
        program = f"""
import asyncio, sys
from flintmq.client import aio
async def listener(message):
    if message.body == b"bad":
        {raised}
async def main():
    async with aio.PushConsumer({shared_broker.address!r}, "g-{topic}", "{topic}", listener, start="first",
                                retry_times_max=0) as consumer:
        await consumer.wait()
asyncio.run(main())
"""
        with Producer(shared_broker.address) as producer:
            producer.send_bulk(topic, [b"1", b"bad", b"2"], queue=0)
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert dead_letters(shared_broker, f"g-{topic}") == [b"bad"]
        with flintmq.client.Admin(shared_broker.address) as admin:
            assert admin.group(f"g-{topic}").members == []

    @pytest.mark.parametrize("kind", ["push", "group"])
    async def test_a_cancelled_start_leaves_the_group(
        self, shared_broker: RunningBroker, topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Producer(shared_broker.address) as producer:
            producer.send(Message(topic, b"x"))

        async def listener(message: object) -> None:
            pass

        def members() -> list[object]:
            with flintmq.client.Admin(shared_broker.address) as admin:
                known = [row.group for row in admin.groups()]
                return list(admin.group(f"g-{topic}").members) if f"g-{topic}" in known else []

        consumer: aio.PushConsumer | aio.GroupConsumer
        if kind == "push":
            consumer = aio.PushConsumer(shared_broker.address, f"g-{topic}", topic, listener)
        else:
            consumer = aio.GroupConsumer(shared_broker.address, f"g-{topic}", topic)
        monkeypatch.setattr(consumer._engine.joined, "set_result", lambda _: None)  # it never learns that it has joined
        starting = asyncio.create_task(consumer.start())
        await asyncio.to_thread(until, lambda: len(members()) == 1, "the join")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert await asyncio.to_thread(members) == []

    async def test_a_task_of_a_listener_can_still_be_cancelled(self, shared_broker: RunningBroker, topic: str) -> None:
        begun = asyncio.Event()

        async def listener(message: object) -> None:
            begun.set()
            await asyncio.sleep(3600)

        with Producer(shared_broker.address) as producer:
            producer.send(Message(topic, b"x"))
        consumer = aio.PushConsumer(shared_broker.address, f"g-{topic}", topic, listener, start="first")
        running = asyncio.create_task(consumer.run(timeout=0.2))
        await begun.wait()
        running.cancel()
        with pytest.raises((asyncio.CancelledError, flintmq.client.ListenerTimeout)):
            await running
        assert dead_letters(shared_broker, f"g-{topic}") == []


class TestChecks:
    @pytest.mark.parametrize("kind", ["sync", "aio-function", "aio-coroutine"])
    @pytest.mark.parametrize("name", ["cancelled-inner-loop", "own", "unprintable", "generator-exit"])
    def test_the_broker_asks_again(self, asking: RunningBroker, topic: str, kind: str, name: str) -> None:
        calls: list[None] = []

        def check(message: object) -> Outcome:
            calls.append(None)
            if len(calls) == 1:
                if name == "cancelled-inner-loop":
                    raise asyncio.CancelledError
                RAISING[name]()
            return Outcome.COMMIT

        async def check_later(message: object) -> Outcome:
            return check(message)

        def committed() -> bool:
            with Consumer(asking.address) as consumer:
                try:
                    return [message.body for message in consumer.iter(topic, until="latest")] == [b"x"]
                except flintmq.client.TopicNotExist:
                    return False

        async def main() -> None:
            chosen = check_later if kind == "aio-coroutine" else check
            async with aio.TransactionProducer(asking.address, f"g-{topic}", chosen) as producer:
                await producer.send_half(Message(topic, b"x"))
                await asyncio.to_thread(until, committed)
                assert producer.health().alive
                assert producer.health().check_failures == 1

        if kind != "sync":
            asyncio.run(main())
            return
        with flintmq.client.TransactionProducer(asking.address, f"g-{topic}", check) as producer:
            producer.send_half(Message(topic, b"x"))
            until(committed)
            assert producer.health().alive
            assert producer.health().check_failures == 1


class TestProducers:
    @raising
    def test_a_callback_of_a_message_reaches_no_other_caller(
        self, shared_broker: RunningBroker, topic: str, raises: Callable[[], object]
    ) -> None:
        called = threading.Event()
        with Producer(shared_broker.address) as producer:
            for each in (lambda future: raises(), lambda future: called.set()):
                # Completed by the producer's own thread, because no caller waits.
                producer.send_async(Message(topic, b"x")).add_done_callback(each)
            assert called.wait(60)
            producer.send_async(Message(topic, b"x")).result(60)

    def test_a_password_function_that_fails_is_a_failed_login(self, shared_broker: RunningBroker) -> None:
        with (
            Producer(shared_broker.address, user="u", password=lambda: throw(Outside())) as producer,
            pytest.raises(AuthenticationFailed),
        ):
            producer.send(Message("t", b"x"))


class TestPickle:
    def test_outcomes_of_listeners(self) -> None:
        for error in (TryLater(3, reason="busy"), GiveUp("no account"), TryLater(), GiveUp()):
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error)
            assert (again.args, vars(again)) == (error.args, vars(error))

    def test_every_exception(self) -> None:
        importlib.import_module("flintmq.protocol.storage.reader.errors")  # a class below another
        kinds = sorted(_kinds(FlintError) | {TryLater, GiveUp}, key=lambda kind: kind.__name__)
        assert len(kinds) > 50
        for kind in kinds:
            error = _example(kind)
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is kind
            assert str(again) == str(error)


def _kinds(kind: type[BaseException]) -> set[type[BaseException]]:
    """Return all public exceptions below ``kind`` that an application can meet, of the modules that are loaded."""
    own, inner = ("flintmq.client.", "flintmq.protocol."), ("flintmq.client.cli.", "flintmq.client.operator.")
    names = [(each, each.__module__) for each in kind.__subclasses__()]
    below = {each for each, module in names if module.startswith(own) and not module.startswith(inner)}
    return {each for each in below if not each.__name__.startswith("_")}.union(*map(_kinds, below))


def _example(kind: type[BaseException]) -> BaseException:
    """Return an error, whatever its constructor takes."""
    if "__init__" not in vars(kind) and kind.__init__ is Exception.__init__:
        return kind("x")
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except ValueError:  # that of a builtin type
        return kind("x")
    values: dict[str, Any] = {"errors": {0: FlintError("x")}, "receipts": [], "cause": ValueError("x")}
    given = {
        parameter.name: values.get(parameter.name, 1 if "int" in str(parameter.annotation) else "x")
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
    }
    by_name = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    places = [value for name, value in given.items() if name not in by_name | {"fields", "details", "kwargs"}]
    return kind(*places, **{name: value for name, value in given.items() if name in by_name})
