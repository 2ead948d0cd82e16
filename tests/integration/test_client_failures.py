"""The client's behaviour if the broker is absent, stops, returns, is silent, or is something else."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from flintmq.client import (
    Admin,
    ClientClosed,
    ConnectionFailed,
    Consumer,
    DeliveryFailed,
    FlintError,
    ForkedClient,
    Message,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotExist,
)
from flintmq.client.core.consume.requests import max_offset
from flintmq.client.core.produce.packer import queue_of
from flintmq.protocol.commands import HelloAnswer
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import RESPONSE, encode_frame
from tests.group_tools import SOON_S, WAIT_SECONDS

if TYPE_CHECKING:
    from tests.client_drivers import Clients
    from tests.conftest import BrokerFactory, RunningBroker


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def listener_that(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen, run ``serve`` with each connection, and yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def restart(broker: BrokerFactory, running: RunningBroker) -> RunningBroker:
    """Start a broker on the same store and address."""
    return broker("--listen", running.address, store=running.store)


class TestUnreachable:
    def test_the_error_names_the_address_after_the_time_is_over(self, clients: Clients, free_port: int) -> None:
        began = time.monotonic()
        with clients.Producer(f"127.0.0.1:{free_port}", delivery_timeout=0.5) as producer:
            with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{free_port}.*refused"):
                producer.send(Message("t", b""))
            with pytest.raises(DeliveryFailed) as raised:
                producer.send_many([Message("t", b"")] * 5)
        assert 0.9 < time.monotonic() - began < SOON_S
        assert raised.value.failed == [0, 1, 2, 3, 4]
        assert isinstance(raised.value.errors[0], ConnectionFailed)
        assert raised.value.retriable

    @pytest.mark.parametrize("client", [Consumer, Admin])
    def test_other_clients_too(self, client: type[Consumer | Admin], free_port: int) -> None:
        began = time.monotonic()
        with (
            client(f"127.0.0.1:{free_port}", timeout=0.5) as one,
            pytest.raises(ConnectionFailed, match=str(free_port)),
        ):
            one.topic_stats("t")
        assert time.monotonic() - began < SOON_S

    def test_async_messages_fail_in_their_futures(self, clients: Clients, free_port: int) -> None:
        producer = clients.Producer(f"127.0.0.1:{free_port}", delivery_timeout=0.4)
        future = producer.send_async(Message("t", b""))
        assert isinstance(future.exception(timeout=60), ConnectionFailed)
        producer.close()

    def test_failures_of_unobserved_messages_are_raised_at_the_end(self, clients: Clients, free_port: int) -> None:
        producer = clients.Producer(f"127.0.0.1:{free_port}", delivery_timeout=0.4)
        producer.send_async(Message("t", b""))
        with pytest.raises(DeliveryFailed, match="1 of 1 messages"):
            producer.close()
        producer.close()

    def test_the_first_address_that_answers_is_taken(
        self, clients: Clients, shared_broker: RunningBroker, free_port: int, topic: str
    ) -> None:
        addresses = f"127.0.0.1:{free_port},{shared_broker.address}"
        with clients.Producer(addresses) as producer, clients.Consumer(addresses) as consumer:
            producer.send(Message(topic, b"x"))
            assert len(list(consumer.iter(topic, until="latest"))) == 1

    def test_all_addresses_are_named(self, clients: Clients, free_port: int) -> None:
        addresses = f"127.0.0.1:{free_port},localhost:{free_port}"
        named = f"127.0.0.1:{free_port}.*localhost:{free_port}"
        with clients.Admin(addresses, timeout=0.3) as admin, pytest.raises(ConnectionFailed, match=named):
            admin.topics()

    def test_a_listener_that_is_no_broker_is_refused(self, clients: Clients) -> None:
        def answer_http(connection: socket.socket) -> None:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with (
            listener_that(answer_http) as address,
            clients.Admin(address, timeout=0.3) as admin,
            pytest.raises(ConnectionFailed, match="is not a FlintMQ broker"),
        ):
            admin.topics()

    def test_a_silent_listener_times_out(self, clients: Clients) -> None:
        def listen_only(connection: socket.socket) -> None:
            while connection.recv(1000):
                pass

        with listener_that(listen_only) as address:
            began = time.monotonic()
            with (
                clients.Admin(address, timeout=0.5) as admin,
                pytest.raises(ConnectionFailed, match="did not answer HELLO"),
            ):
                admin.topics()
            assert time.monotonic() - began < SOON_S

    def test_a_listener_that_closes_at_once_is_an_error(self, clients: Clients) -> None:
        with (
            listener_that(lambda connection: None) as address,
            clients.Producer(address, delivery_timeout=0.4) as producer,
            pytest.raises(ConnectionFailed),
        ):
            producer.send(Message("t", b""))

    def test_a_reader_does_not_return_a_connection_that_brought_nonsense(self) -> None:
        pytest.importorskip("pyarrow")
        from flintmq.client.sync.arrow import Asker

        def answer_nonsense(connection: socket.socket) -> None:
            answer = HelloAnswer(1, "confused", "0", "async", 1 << 24, 1 << 20, 1 << 19)
            connection.recv(1000)
            connection.sendall(encode_frame(RESPONSE, 0, 1, encode_fields(answer)))
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while connection.recv(1000):
                pass

        with listener_that(answer_nonsense) as address, Consumer(address) as consumer:
            asker: Asker[int] = Asker(consumer._caller, WAIT_SECONDS)
            asker.ask(max_offset("t", 0))
            with pytest.raises(RemoteProtocolError):
                asker.answer()
            asker.close()
            assert not consumer._caller.pool._idle

    def test_a_broker_that_falls_silent_is_given_up_for_the_next(
        self, clients: Clients, shared_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer_hello_only(connection: socket.socket) -> None:
            answer = HelloAnswer(1, "silent", "0", "async", 1 << 24, 1 << 20, 1 << 19)
            connection.recv(1000)
            connection.sendall(encode_frame(RESPONSE, 0, 1, encode_fields(answer)))
            while connection.recv(1000):
                pass

        monkeypatch.setattr("flintmq.client.core.rpc.timeouts.SILENCE_SECONDS_MAX", 0.3)
        with listener_that(answer_hello_only) as address:
            with clients.Producer(f"{address},{shared_broker.address}") as producer:
                assert producer.send(Message(topic, b"x")).topic == topic
            with clients.Consumer(f"{address},{shared_broker.address}") as consumer:
                assert len(consumer.topic_stats(topic)) == 4


class TestRestart:
    def test_sending_continues_after_a_restart(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with (
            clients.Producer(running.address, delivery_timeout=60) as producer,
            clients.Consumer(running.address, timeout=60) as consumer,
        ):
            producer.send(Message("t", b"before"))
            assert len(consumer.topic_stats("t")) == 4
            running.stop()
            restart(broker, running)
            producer.send(Message("t", b"after"))
            assert {message.body for message in consumer.iter("t", until="latest")} == {b"before", b"after"}

    def test_a_pinned_message_goes_to_its_queue_after_a_restart(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with clients.Producer(running.address, delivery_timeout=60) as producer:
            producer.send(Message("t", b"before"), queue=2)
            running.stop()
            restart(broker, running)
            receipts = [producer.send(Message("t", b"after"), queue=2) for _ in range(2)]
        assert [(receipt.queue, receipt.queue_offset) for receipt in receipts] == [(2, 1), (2, 2)]

    def test_acknowledged_messages_survive_every_failure(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        acknowledged: list[bytes] = []
        stop = threading.Event()

        def send(worker: int) -> None:
            number = 0
            while not stop.is_set():
                body = b"%d-%d" % (worker, number)
                number += 1
                if worker % 2:
                    producer.send(Message("t", body), queue=worker)
                else:
                    producer.send_many([Message("t", body)] * 3, queue=worker)
                acknowledged.append(body)

        with clients.Producer(running.address, delivery_timeout=60) as producer:
            threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(2):
                count = len(acknowledged)
                while len(acknowledged) < count + 200:
                    time.sleep(0.01)
                running.kill()
                running = restart(broker, running)
            count = len(acknowledged)
            while len(acknowledged) < count + 200:
                time.sleep(0.01)
            stop.set()
            for thread in threads:
                thread.join()
        with clients.Consumer(running.address) as consumer:
            stored = Counter(message.body for message in consumer.iter("t", until="latest"))
            assert set(acknowledged) <= set(stored)
            for queue in range(4):
                numbers = [int(m.body.split(b"-")[1]) for m in consumer.iter("t", until="latest") if m.queue == queue]
                first_time = list(dict.fromkeys(numbers))
                assert first_time == sorted(first_time)

    def test_a_follower_continues_after_a_restart(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with (
            clients.Producer(running.address, delivery_timeout=60) as producer,
            clients.Consumer(running.address, timeout=60) as consumer,
        ):
            producer.send_many([Message("t", b"%d" % number) for number in range(100)])
            messages = consumer.iter("t")
            seen = [message.body for message in islice(messages, 100)]
            running.kill()
            running = restart(broker, running)
            producer.send_many([Message("t", b"%d" % number) for number in range(100, 200)])
            seen += [message.body for message in islice(messages, 100)]
            assert sorted(map(int, seen)) == list(range(200))

    def test_close_does_not_mind_that_the_broker_went(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with (
            clients.Producer(running.address) as producer,
            clients.Consumer(running.address) as consumer,
            clients.Admin(running.address) as admin,
        ):
            producer.send(Message("t", b""))
            producer.send_async(Message("t", b"")).result()
            consumer.pull("t", 0, 0)
            admin.topics()
            running.kill()

    def test_an_idle_connection_that_the_broker_closed_costs_nothing(
        self, clients: Clients, broker: BrokerFactory
    ) -> None:
        running = broker(settings={"limits.idle_timeout_ms": 300})
        with clients.Producer(running.address) as producer, clients.Consumer(running.address) as consumer:
            for _ in range(2):
                producer.send(Message("t", b""))
                assert consumer.topic_stats("t")
                time.sleep(1.5)
            assert sum(stats.count for stats in consumer.topic_stats("t")) == 2


class TestSilence:
    def test_a_call_ends_in_time(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with clients.Producer(running.address) as producer, clients.Consumer(running.address) as consumer:
            producer.send(Message("t", b"first"), queue=0)
            consumer.pull("t", 0, 0)
            with running.paused():
                for call in (
                    lambda: producer.send(Message("t", b"lost?"), queue=0, timeout=0.3),
                    lambda: consumer.pull("t", 0, 0, timeout=0.3),
                    lambda: consumer.topic_stats("t", timeout=0.3),
                ):
                    began = time.monotonic()
                    with pytest.raises((RequestTimeout, ConnectionFailed)):
                        call()
                    assert 0.25 < time.monotonic() - began < SOON_S
                with pytest.raises(DeliveryFailed) as raised:
                    producer.send_many([Message("t", b"lost?")] * 100, timeout=0.3)
                assert len(raised.value.failed) == 100
            assert producer.send(Message("t", b"second"), queue=0).queue == 0
            bodies = consumer.pull("t", 0, 0).bodies()
            assert bodies[0] == b"first"
            assert bodies[-1] == b"second"

    def test_many_threads_end_in_time(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        errors: list[FlintError] = []

        def send() -> None:
            try:
                producer.send(Message("t", b"x"), timeout=0.5)
            except FlintError as error:
                errors.append(error)

        with clients.Producer(running.address) as producer:
            producer.send(Message("t", b"first"))
            with running.paused():
                began = time.monotonic()
                threads = [threading.Thread(target=send) for _ in range(16)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert time.monotonic() - began < SOON_S
            assert len(errors) == 16
            assert producer.send(Message("t", b"after")).topic == "t"

    def test_an_interrupted_caller_leaves_a_producer_that_works(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with clients.Producer(running.address) as producer:
            producer.send(Message("t", b"first"))
            before = signal.signal(signal.SIGALRM, interrupt)
            try:
                with running.paused():
                    for call in (
                        lambda: producer.send(Message("t", b"x")),
                        lambda: producer.send_bulk("t", [b"y" * 1000] * 50_000),
                    ):
                        signal.setitimer(signal.ITIMER_REAL, 0.3)
                        with pytest.raises(KeyboardInterrupt):
                            call()
            finally:
                signal.signal(signal.SIGALRM, before)
            assert producer.send(Message("t", b"after")).topic == "t"
            assert producer._delivery.idle
            assert producer._delivery.pending_bytes == 0

    def test_a_broker_that_does_not_read_blocks_no_call_for_ever(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        with clients.Producer(running.address) as producer:
            producer.send(Message("t", b"first"))
            with running.paused(), pytest.raises(DeliveryFailed):
                producer.send_bulk("t", [b"x" * 1000] * 50_000, timeout=1)
            receipts = producer.send_bulk("t", [b"x" * 1000] * 5000)
            assert len(receipts) == 5000


class TestUse:
    def test_a_closed_producer_says_so(self, clients: Clients, shared_broker: RunningBroker) -> None:
        producer = clients.Producer(shared_broker.address)
        producer.close()
        producer.close()
        for call in (
            lambda: producer.send(Message("t", b"")),
            lambda: producer.send_many([Message("t", b"")]),
            lambda: producer.send_bulk("t", [b""]),
            lambda: producer.send_async(Message("t", b"")),
            lambda: producer.flush(),
            lambda: producer.__enter__(),
        ):
            with pytest.raises(ClientClosed):
                call()

    def test_close_ends_waiting_senders_with_an_outcome(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker()
        outcomes: list[object] = []

        def send() -> None:
            try:
                outcomes.append(producer.send(Message("t", b"x"), timeout=1))
            except FlintError as error:
                outcomes.append(error)

        producer = clients.Producer(running.address)
        producer.send(Message("t", b"first"))
        with running.paused():
            threads = [threading.Thread(target=send) for _ in range(4)]
            for thread in threads:
                thread.start()
            while producer._delivery.idle:
                time.sleep(0.01)
            producer.close()
            for thread in threads:
                thread.join(WAIT_SECONDS)
        assert len(outcomes) == 4

    @pytest.mark.parametrize("clients", ["sync"], indirect=True)  # asyncio: tests/integration/test_client_aio.py
    def test_after_a_fork_the_child_gets_an_error_and_the_parent_continues(
        self, clients: Clients, shared_broker: RunningBroker, topic: str
    ) -> None:
        with clients.Producer(shared_broker.address) as producer, clients.Consumer(shared_broker.address) as consumer:
            producer.send(Message(topic, b"before"))
            producer.send_async(Message(topic, b"async")).result()
            consumer.topic_stats(topic)
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:
                said = []
                for call in (lambda: producer.send(Message(topic, b"child")), lambda: consumer.topic_stats(topic)):
                    try:
                        call()
                    except ForkedClient as error:
                        said.append(str(error))
                producer.close()
                consumer.close()
                os.write(write_end, "\n".join(said).encode())
                os._exit(0)
            os.close(write_end)
            with os.fdopen(read_end) as pipe:
                said = pipe.read().splitlines()
            assert os.waitpid(child, 0)[1] == 0
            assert len(said) == 2
            assert all("after the fork" in line for line in said)
            producer.send(Message(topic, b"after"))
            assert sum(stats.count for stats in consumer.topic_stats(topic)) == 3

    def test_a_topic_that_may_not_be_made(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker(settings={"topics.auto_create": False})
        with clients.Producer(running.address) as producer, clients.Admin(running.address) as admin:
            with pytest.raises(TopicNotExist):
                producer.send(Message("t", b""))
            with pytest.raises(TopicNotExist):
                producer.send(Message("t", b"", sharding_key="a"))
            with pytest.raises(DeliveryFailed, match="TopicNotExist"):
                producer.send_many([Message("t", b"")] * 3)
            admin.create_topic("t", queues=2)
            assert producer.send(Message("t", b"", sharding_key="a")).queue < 2

    def test_a_sharding_key_decides_before_the_topic_is_there(self, clients: Clients, broker: BrokerFactory) -> None:
        running = broker(settings={"topics.default_queues": 7})
        with clients.Producer(running.address) as producer:
            receipts = producer.send_many([Message("t", b"", sharding_key=str(number)) for number in range(100)])
            assert [receipt.queue for receipt in receipts] == [queue_of(str(number), 7) for number in range(100)]
            assert producer.send_bulk("u", [b""], sharding_key="x")[0].queue == queue_of("x", 7)
