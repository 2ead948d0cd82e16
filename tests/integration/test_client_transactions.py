"""The transactional producers against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import flintmq.client
from flintmq.client import (
    Admin,
    ClientClosed,
    ConnectionFailed,
    Consumer,
    FlintError,
    InvalidArgument,
    InvalidArgumentType,
    Message,
    Outcome,
    RequestTimeout,
    StoredMessage,
    TopicNotExist,
    TransactionEnded,
    TransactionGroupWrong,
    aio,
)
from flintmq.client.core.produce.delivery import Outbox
from tests.conftest import BrokerFactory, Brokers, RunningBroker

NEVER_MS = 3_600_000
PARKING = {"transactions.timeout_ms": 150, "transactions.check_interval_ms": 150, "transactions.check_times_max": 3}
ASKING = {"transactions.timeout_ms": 20, "transactions.check_interval_ms": 20, "transactions.check_times_max": 10_000}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that does not check transactions."""
    brokers = Brokers(tmp_path_factory.mktemp("quiet"))
    yield brokers.start(settings={"transactions.timeout_ms": NEVER_MS})
    brokers.stop_all()


@pytest.fixture(scope="module")
def parking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that parks a transaction soon."""
    brokers = Brokers(tmp_path_factory.mktemp("parking"))
    yield brokers.start(settings=PARKING)
    brokers.stop_all()


def is_parked(running: RunningBroker, message_id: str) -> bool:
    with Admin(running.address) as admin:
        return any(row.id == message_id for row in admin.transactions(parked=True).rows)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that checks transactions soon and repeatedly."""
    brokers = Brokers(tmp_path_factory.mktemp("asking"))
    yield brokers.start(settings=ASKING)
    brokers.stop_all()


def bodies(running: RunningBroker, topic: str) -> list[bytes]:
    """Return the messages that consumers get."""
    with Consumer(running.address) as consumer:
        try:
            return sorted(message.body for message in consumer.iter(topic, from_="earliest", until="latest"))
        except TopicNotExist:
            return []


def wait_for_bodies(running: RunningBroker, topic: str, wanted: list[bytes]) -> None:
    while bodies(running, topic) != wanted:
        pass


def no_check(message: StoredMessage) -> Outcome:
    raise AssertionError("nobody was to ask")


class Checked:
    """A ``check`` that records its calls, and answers each transaction with its outcomes in turn."""

    def __init__(self, *outcomes: Any) -> None:
        self.asked: list[StoredMessage] = []
        self.outcomes = list(outcomes)
        self.enough = threading.Event()

    def __call__(self, message: StoredMessage) -> Outcome:
        self.asked.append(message)
        outcome: Any = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if len(self.outcomes) == 1:
            self.enough.set()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]  # may be no Outcome: then the client must refuse it


class TestSync:
    def test_a_block_that_ends_well_commits(self, quiet: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer:
            with producer.transaction(Message(topic, b"paid", keys="o-1", properties={"a": "b"})) as transaction:
                assert bodies(quiet, topic) == []
                assert transaction.outcome is None
                assert producer.health().open == 1
            assert transaction.outcome is Outcome.COMMIT
            assert producer.health().open == 0
        with Consumer(quiet.address) as consumer:
            (message,) = consumer.iter(topic, from_="earliest", until="latest")
        assert (message.body, message.keys, message.user_properties) == (b"paid", ("o-1",), {"a": "b"})
        assert message.message_id == transaction.message_id

    def test_a_block_that_raises_rolls_back(self, quiet: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer:
            with pytest.raises(KeyboardInterrupt), producer.transaction(Message(topic, b"paid")) as transaction:
                raise KeyboardInterrupt
            assert transaction.outcome is Outcome.ROLLBACK
            with pytest.raises(TransactionEnded):
                transaction.commit()
        assert bodies(quiet, topic) == []

    def test_a_transaction_ended_within_the_block_stays_ended(self, quiet: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer:
            with producer.transaction(Message(topic, b"no")) as transaction:
                transaction.rollback()
            with contextlib.suppress(ValueError), producer.transaction(Message(topic, b"yes")) as transaction:
                transaction.commit()
                raise ValueError
        assert bodies(quiet, topic) == [b"yes"]

    def test_ended_again_alike_is_fine_and_otherwise_is_not(self, quiet: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer:
            transaction = producer.send_half(Message(topic, b"paid"))
            with Admin(quiet.address) as admin:
                for _ in range(2):
                    admin.end_transaction(transaction.message_id, "g", commit=True)
                transaction.commit()  # the transaction is committed already
                transaction.commit()
                with pytest.raises(TransactionEnded, match="committed"):
                    admin.end_transaction(transaction.message_id, "g", commit=False)
                with pytest.raises(TransactionGroupWrong):
                    admin.end_transaction(transaction.message_id, "h", commit=True)
        assert bodies(quiet, topic) == [b"paid"]

    def test_a_refused_transaction_may_be_decided_again(self, quiet: RunningBroker, topic: str) -> None:
        with (
            flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer,
            Admin(quiet.address) as admin,
        ):
            transaction = producer.send_half(Message(topic, b"paid"))
            admin.delete_topic(topic)
            with pytest.raises(TopicNotExist):
                transaction.commit()
            transaction.rollback()
            assert transaction.outcome is Outcome.ROLLBACK

    def test_many_threads_end_many_at_once(self, quiet: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(quiet.address, "g", no_check) as producer:

            def work(number: int) -> None:
                for place in range(10):
                    with contextlib.suppress(ValueError), producer.transaction(Message(topic, b"%d" % number)):
                        if place % 2:
                            raise ValueError

            threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert producer.health().open == 0
        assert bodies(quiet, topic) == sorted(b"%d" % number for number in range(10) for _ in range(5))

    def test_a_commit_that_does_not_reach_the_broker_answers_its_check(self, asking: RunningBroker, topic: str) -> None:
        checked = Checked(Outcome.ROLLBACK)
        with flintmq.client.TransactionProducer(asking.address, "told", checked) as producer:
            transaction = producer.send_half(Message(topic, b"paid"))
            # The caller's time runs out before the client can tell the broker.
            producer._decisions.decide(transaction.message_id, Outcome.COMMIT)
            wait_for_bodies(asking, topic, [b"paid"])
            transaction.commit()
        assert checked.asked == []

    def test_a_commit_that_is_not_confirmed_in_time_keeps_the_reason_as_its_cause(
        self, broker: BrokerFactory, topic: str
    ) -> None:
        running = broker()
        with flintmq.client.TransactionProducer(running.address, "g", no_check) as producer:
            producer.send_half(Message(topic, b"x")).rollback()  # opens the connection
            transaction = producer.send_half(Message(topic, b"paid"))
            late: pytest.ExceptionInfo[FlintError]
            with (
                running.paused(),
                pytest.raises((RequestTimeout, ConnectionFailed), match="did not confirm in time") as late,
            ):
                transaction.commit(timeout=0.2)
            assert isinstance(late.value.__cause__, type(late.value))
            transaction.commit()
        assert bodies(running, topic) == [b"paid"]

    def test_a_half_message_that_is_still_being_sent_is_not_judged_from_outside(
        self, asking: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked = Checked(Outcome.ROLLBACK)
        answered = Outbox.answered

        def late(delivery: Outbox, answer: Any, now: float) -> None:
            while not producer.health().checked:  # the broker asks before it handles the client's outcome
                pass
            answered(delivery, answer, now)

        with flintmq.client.TransactionProducer(asking.address, topic, checked) as producer:
            monkeypatch.setattr(Outbox, "answered", late)
            producer.send_half(Message(topic, b"paid")).commit()
        assert checked.asked == []
        assert bodies(asking, topic) == [b"paid"]

    def test_a_transaction_in_progress_is_not_checked(self, asking: RunningBroker, topic: str) -> None:
        checked = Checked(Outcome.ROLLBACK)
        with flintmq.client.TransactionProducer(asking.address, "long", checked) as producer:
            with producer.transaction(Message(topic, b"paid")):
                while producer.health().checked < 3:
                    pass
            assert bodies(asking, topic) == [b"paid"]
        assert checked.asked == []

    def test_a_block_may_outlast_all_checks(self, parking: RunningBroker, topic: str) -> None:
        producer = flintmq.client.TransactionProducer(parking.address, topic, no_check)
        with producer, producer.transaction(Message(topic, b"paid")) as transaction:
            while producer.health().checked < 6:
                assert not is_parked(parking, transaction.message_id)
        assert bodies(parking, topic) == [b"paid"]

    def test_a_transaction_that_nobody_decides_is_parked(self, parking: RunningBroker, topic: str) -> None:
        with flintmq.client.TransactionProducer(parking.address, topic, Checked(Outcome.UNKNOWN)) as producer:
            message_id = producer.send_half(Message(topic, b"forgotten")).message_id
            gc.collect()
            while not is_parked(parking, message_id):
                pass

    @pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ROLLBACK])
    def test_the_check_decides_a_forgotten_transaction(
        self, asking: RunningBroker, topic: str, outcome: Outcome
    ) -> None:
        checked = Checked(Outcome.UNKNOWN, outcome)
        with flintmq.client.TransactionProducer(asking.address, topic, checked) as producer:
            message_id = producer.send_half(Message(topic, b"paid", keys="o-1")).message_id
            gc.collect()
            assert checked.enough.wait(60)
            with Admin(asking.address) as admin:
                while any(row.id == message_id for row in admin.transactions().rows):
                    pass
        seen = {(one.topic, one.body, one.keys, one.message_id) for one in checked.asked}
        assert seen == {(topic, b"paid", ("o-1",), message_id)}
        wait_for_bodies(asking, topic, [b"paid"] if outcome is Outcome.COMMIT else [])

    def test_another_process_of_the_group_is_asked(self, asking: RunningBroker, topic: str) -> None:
        first, second = Checked(Outcome.UNKNOWN), Checked(Outcome.COMMIT)
        with flintmq.client.TransactionProducer(asking.address, topic, second):
            with flintmq.client.TransactionProducer(asking.address, topic, first) as producer:
                message_id = producer.send_half(Message(topic, b"paid")).message_id
            wait_for_bodies(asking, topic, [b"paid"])
        assert {one.message_id for one in second.asked} == {message_id}

    def test_an_error_of_the_check_is_logged_and_the_check_repeated(
        self, asking: RunningBroker, topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        checked = Checked(ZeroDivisionError("no database"), "committed", None, Outcome.COMMIT)
        with (
            caplog.at_level(logging.ERROR),
            flintmq.client.TransactionProducer(asking.address, topic, checked) as producer,
        ):
            producer.send_half(Message(topic, b"paid"))
            gc.collect()
            wait_for_bodies(asking, topic, [b"paid"])
            health = producer.health()
            assert health.alive
            assert health.check_failures == 3
            assert isinstance(health.last_check_error, InvalidArgumentType)
        assert "no database" in caplog.text
        assert "check must return an Outcome, not str" in caplog.text
        assert "check raised ZeroDivisionError: no database" in asking.log

    def test_a_broker_that_comes_back_knows_the_producer_again(self, broker: BrokerFactory, topic: str) -> None:
        running = broker(settings=ASKING)
        checked = Checked(Outcome.UNKNOWN)
        with flintmq.client.TransactionProducer(running.address, "g", checked) as producer:
            producer.send_half(Message(topic, b"paid"))
            gc.collect()
            while not checked.asked:
                pass
            running.kill()
            checked.outcomes = [Outcome.COMMIT]
            again = broker(f"--listen=127.0.0.1:{running.port}", store=running.store, settings=ASKING)
            wait_for_bodies(again, topic, [b"paid"])
            assert producer.health().registered

    def test_after_close_it_is_of_no_use(self, quiet: RunningBroker, topic: str) -> None:
        producer = flintmq.client.TransactionProducer(quiet.address, "g", no_check)
        transaction = producer.send_half(Message(topic, b"paid"))
        producer.close()
        producer.close()
        with pytest.raises(ClientClosed):
            producer.send_half(Message(topic, b"paid"))
        with pytest.raises(ClientClosed):
            transaction.commit()
        assert not producer.health().alive
        with Admin(quiet.address) as admin:
            admin.end_transaction(transaction.message_id, "g", commit=False)

    def test_an_unused_producer_closes(self) -> None:
        flintmq.client.TransactionProducer("127.0.0.1:1", "g", no_check).close()


class TestAio:
    """The methods that the generated producer for threads does not have."""

    async def test_a_block_that_is_cancelled_rolls_back(self, quiet: RunningBroker, topic: str) -> None:
        async with aio.TransactionProducer(quiet.address, "g", no_check) as producer:
            begun: asyncio.Future[aio.Transaction] = asyncio.get_running_loop().create_future()

            async def never_ends() -> None:
                async with producer.transaction(Message(topic, b"paid")) as transaction:
                    begun.set_result(transaction)
                    await asyncio.Event().wait()

            task = asyncio.create_task(never_ends())
            transaction = await begun
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transaction.outcome is Outcome.ROLLBACK

    async def test_many_at_once(self, quiet: RunningBroker, topic: str) -> None:
        async with aio.TransactionProducer(quiet.address, "g", no_check) as producer:

            async def one(number: int) -> None:
                async with producer.transaction(Message(topic, b"%03d" % number)):
                    if number % 3 == 0:
                        raise ValueError

            results = await asyncio.gather(*map(one, range(300)), return_exceptions=True)
        assert sum(result is None for result in results) == 200
        assert await asyncio.to_thread(bodies, quiet, topic) == [b"%03d" % each for each in range(300) if each % 3]

    @pytest.mark.parametrize("kind", ["function", "coroutine"])
    async def test_check_runs_in_the_loop(self, asking: RunningBroker, topic: str, kind: str) -> None:
        loop = asyncio.get_running_loop()
        outcomes: list[Any] = [ZeroDivisionError("no database"), "committed", Outcome.UNKNOWN, Outcome.COMMIT]

        def check(message: StoredMessage) -> Outcome:
            assert asyncio.get_running_loop() is loop
            outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome  # type: ignore[no-any-return]  # may be no Outcome: then the client must refuse it

        async def check_later(message: StoredMessage) -> Outcome:
            await asyncio.sleep(0)
            return check(message)

        async with aio.TransactionProducer(
            asking.address, topic, check_later if kind == "coroutine" else check
        ) as producer:
            await producer.send_half(Message(topic, b"paid"))
            gc.collect()
            await asyncio.to_thread(wait_for_bodies, asking, topic, [b"paid"])
            assert producer.health().check_failures == 2
            assert producer.health().alive

    async def test_a_loop_that_is_blocked_does_not_look_dead(self, quiet: RunningBroker) -> None:
        async with aio.TransactionProducer(quiet.address, "g", no_check, session_timeout=1.0) as producer:
            registration = producer._registration
            registration.registered.wait(60)  # the loop is blocked from here on
            heard = registration._heard_at
            while registration._heard_at == heard:
                pass
            assert producer.health().registered


@pytest.mark.parametrize("kind", [flintmq.client.TransactionProducer, aio.TransactionProducer])
class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "options", "error", "match"),
        [
            (("g",), {}, InvalidArgumentType, "check must be a function"),
            (("g", "commit"), {}, InvalidArgumentType, "check must be a function"),
            (("", no_check), {}, InvalidArgument, "group name is empty"),
            ((5, no_check), {}, InvalidArgumentType, "group must be a str"),
            (("a b", no_check), {}, InvalidArgument, "not allowed"),
            (("g", no_check), {"session_timeout": 0.5}, InvalidArgument, "1 to 300"),
            (("g", no_check), {"session_timeout": "5"}, InvalidArgumentType, "number of seconds"),
            (("g", no_check), {"delivery_timeout": -1}, InvalidArgument, "delivery_timeout"),
        ],
    )
    def test_invalid_arguments_are_refused_at_once(
        self, kind: type[Any], arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], match: str
    ) -> None:
        with pytest.raises(error, match=match):
            kind("127.0.0.1:1", *arguments, **options)
