"""A broker that is killed repeatedly commits each transaction once, whatever it was doing, and loses none.

``FLINTMQ_KILL_ROUNDS`` sets the number of kills (default below), ``FLINTMQ_SEED`` makes another run.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from dataclasses import dataclass

from flintmq.protocol.errors import BrokerError, TransactionEnded
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection
from tests.transaction_tools import end, listed, messages, send_half, transaction_id

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "2"))
PRODUCERS = 4
TOPIC = "ledger"
SETTINGS = {
    # Meanwhile checks write the open transactions again and again; no producer is connected to answer them.
    "transactions.timeout_ms": 15,
    "transactions.check_interval_ms": 15,
    "transactions.check_times_max": 10_000,
}


@dataclass
class Sent:
    """The outcome that a producer wants for a transaction, and whether its half message was acknowledged."""

    commit: bool
    stored: bool = False


class Producer:
    """Begins transactions, and ends most of them at once, until the broker is killed."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.sent: dict[int, Sent] = {}
        self._next = (number + 1) << 24
        self._rng = rng

    def work(self, connection: RawConnection) -> None:
        """Begin and end transactions until the connection breaks."""
        try:
            while True:
                number, self._next = self._next, self._next + 1
                sent = self.sent[number] = Sent(commit=self._rng.random() < 0.7)
                half = send_half(connection, TOPIC, b"%d" % number, number)
                sent.stored = True
                if self._rng.random() < 0.9:
                    end(connection, half, commit=sent.commit).raise_for_error()
        except (OSError, EOFError, BrokerError):
            return  # killed, or about to be

    def finish(self, connection: RawConnection) -> None:
        """End all transactions with their intended outcomes, even those that were ended before."""
        for number, sent in self.sent.items():
            answer = end(connection, transaction_id(number), commit=sent.commit)
            if answer.code == TransactionEnded.code:
                assert answer.fields["outcome"] == ("commit" if sent.commit else "rollback")
            elif sent.stored:
                answer.raise_for_error()


def test_each_is_committed_once(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    rng = random.Random(int(os.environ.get("FLINTMQ_SEED", "6")))
    producers = [Producer(number, random.Random(rng.random())) for number in range(PRODUCERS)]
    running = broker(settings=SETTINGS)
    for _ in range(ROUNDS):
        threads = [threading.Thread(target=each.work, args=(connect(running),)) for each in producers]
        watched = connect(running)
        wanted = len(producers[0].sent) + rng.randrange(20, 60)
        for thread in threads:
            thread.start()
        while len(producers[0].sent) < wanted:
            listed(watched, max_count=1)
        running.kill()
        for thread in threads:
            thread.join()
        running = broker(store=running.store, settings=SETTINGS)
    connection = connect(running)
    for producer in producers:
        producer.finish(connection)
    found = Counter(int(record.body) for record in messages(connection, TOPIC))
    sent = {number: each for producer in producers for number, each in producer.sent.items()}
    assert all(count == 1 and sent[number].commit for number, count in found.items())
    assert {number for number, each in sent.items() if each.stored and each.commit} <= found.keys()
    assert len(sent) > 50 * ROUNDS
    # A message without an acknowledgement may be stored all the same; it was ended with the others.
    assert [row for row in listed(connection, max_count=1000) if int(row["id"][20:], 16) in sent] == []
