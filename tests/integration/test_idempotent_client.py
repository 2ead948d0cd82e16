"""A producer whose responses are lost stores each message once, and its receipts say where."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Message, Receipt
from tests.tcp_proxy import Link, TcpProxy, encoded, frames_from

if TYPE_CHECKING:
    from flintmq.client import Producer
    from tests.client_drivers import Clients
    from tests.conftest import BrokerFactory, RunningBroker

ANSWERS_A_CONNECTION = 4
"""HELLO's among them."""


class LosingProxy(TcpProxy):
    """A proxy in front of a broker.

    Each connection carries all requests to the broker, but only its first responses back: the next one is lost, and the
    connection with it. With ``lossless`` set, the proxy loses nothing.
    """

    def __init__(self, running: RunningBroker) -> None:
        self.lossless = False
        self.lost_answers = 0
        super().__init__(running.host, running.port)

    def _carry_requests(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(65_536):
                link.broker.sendall(data)
            link.broker.shutdown(socket.SHUT_WR)

    def _carry_answers(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            for number, frame in enumerate(frames_from(link.broker)):
                if number >= ANSWERS_A_CONNECTION and not self.lossless:
                    self.lost_answers += 1
                    break
                link.send(encoded(frame))
        link.end()


@pytest.fixture
def proxy(shared_broker: RunningBroker) -> Iterator[LosingProxy]:
    proxy = LosingProxy(shared_broker)
    yield proxy
    proxy.close()


def check_stored(
    clients: Clients, address: str, topic: str, sent: Sequence[bytes], receipts: Sequence[Receipt]
) -> None:
    """Check that each message is stored once, where its receipt says."""
    with clients.Consumer(address) as consumer:
        messages = list(consumer.iter(topic, until="latest"))
    assert Counter(message.body for message in messages) == Counter(sent)
    stored = {
        message.body: (message.message_id, message.queue, message.queue_offset, message.physical_offset)
        for message in messages
    }
    for body, receipt in zip(sent, receipts, strict=True):
        assert stored[body] == (receipt.message_id, receipt.queue, receipt.queue_offset, receipt.physical_offset)


def one_by_one(producer: Producer, topic: str) -> tuple[list[bytes], list[Receipt]]:
    bodies = [b"%d" % number for number in range(30)]
    return bodies, [producer.send(Message(topic, body)) for body in bodies]


def from_many_threads(producer: Producer, topic: str) -> tuple[list[bytes], list[Receipt]]:
    sent: dict[bytes, Receipt] = {}

    def work(worker: int) -> None:
        for number in range(20):
            body = b"%d-%d" % (worker, number)
            sent[body] = producer.send(Message(topic, body), queue=worker % 5 if worker % 5 < 4 else None)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(sent), list(sent.values())


def many(producer: Producer, topic: str) -> tuple[list[bytes], list[Receipt]]:
    bodies = [b"%d" % number for number in range(30_000)]
    messages = [Message(topic, body, keys=["k"], sharding_key=f"s{body[-1] % 3}") for body in bodies]
    return bodies, list(producer.send_many(messages))


def bulk(producer: Producer, topic: str) -> tuple[list[bytes], list[Receipt]]:
    bodies = [b"%d" % number + b"." * 100 for number in range(40_000)]
    return bodies, list(producer.send_bulk(topic, bodies, keys=["k"] * len(bodies)))


def to_one_queue(producer: Producer, topic: str) -> tuple[list[bytes], list[Receipt]]:
    bodies = [b"%d" % number + b"." * 100 for number in range(20_000)]
    return bodies, list(producer.send_bulk(topic, bodies, queue=2))


WAYS = [one_by_one, from_many_threads, many, bulk, to_one_queue]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_lost_answers_make_no_duplicates(
    clients: Clients,
    shared_broker: RunningBroker,
    proxy: LosingProxy,
    topic: str,
    way: Callable[[Producer, str], tuple[list[bytes], list[Receipt]]],
) -> None:
    with clients.Producer(proxy.address, delivery_timeout=60) as producer:
        sent, receipts = way(producer, topic)
        proxy.lossless = True
    assert proxy.lost_answers > 0
    check_stored(clients, shared_broker.address, topic, sent, receipts)


def test_kills_make_no_duplicates_and_no_gaps(clients: Clients, broker: BrokerFactory) -> None:
    """In pinned queues every message is stored once and in order; the broker is killed while they are sent."""
    running = broker()
    acknowledged: dict[bytes, Receipt] = {}
    stop = threading.Event()
    progress = threading.Semaphore(0)

    def send(worker: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            bodies = [b"%d-%d-%d" % (worker, number, place) for place in range(1 + 2 * (worker % 2))]
            receipts = producer.send_many([Message("t", body) for body in bodies], queue=worker)
            acknowledged.update(zip(bodies, receipts, strict=True))
            progress.release()

    with clients.Producer(running.address, delivery_timeout=60) as producer:
        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            for _ in range(200):
                progress.acquire()
            running.kill()
            running = broker("--listen", running.address, store=running.store)
        for _ in range(200):
            progress.acquire()
        stop.set()
        for thread in threads:
            thread.join()
    check_stored(clients, running.address, "t", list(acknowledged), list(acknowledged.values()))
