"""A broker that is killed repeatedly delivers every delayed message that it acknowledged; after an orderly stop it
delivers each once.

``FLINTMQ_KILL_ROUNDS`` sets the number of kills (default below), ``FLINTMQ_SEED`` makes another run.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Consumer, Message, Producer
from flintmq.protocol.errors import FlintError
from tests.conftest import RunningBroker

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "2"))
TOPIC = "later"
QUEUES = 2
SETTINGS = {"background.services:CHECKPOINT_S": 0.1, "topics.default_queues": QUEUES}


def send_until_it_ends(address: str, name: str, chance: random.Random, sent: set[bytes], count: int) -> None:
    """Send delayed messages of every kind, at most ``count``, and record the acknowledged ones."""
    with Producer(address, delivery_timeout=1.0) as producer:
        for number in range(count):
            body = f"{name}-{number}".encode()
            delay: dict[str, Any] = chance.choice(
                [{"delay_level": 1}, {"delay": timedelta(seconds=1)}, {"delay": timedelta(seconds=2)}]
            )
            try:
                producer.send(Message(TOPIC, body, **delay))
            except FlintError:
                return
            sent.add(body)


def received(address: str, wanted: set[bytes]) -> Counter[bytes]:
    """Return every message of the topic, once it has all that are wanted."""
    bodies: Counter[bytes] = Counter()
    offsets = dict.fromkeys(range(QUEUES), 0)
    with Consumer(address) as consumer:
        while not wanted <= bodies.keys():
            for queue, offset in offsets.items():
                batch = consumer.pull(TOPIC, queue, offset, max_count=1000, wait_ms=200)
                bodies.update(batch.bodies())
                offsets[queue] = batch.next_offset
        for queue, offset in offsets.items():
            bodies.update(consumer.pull(TOPIC, queue, offset, max_count=1000).bodies())
    return bodies


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_nothing_that_was_acknowledged_is_left_out_and_an_orderly_stop_repeats_nothing(
    broker: Callable[..., RunningBroker], tmp_path: Path, end: str
) -> None:
    seed = int(os.environ.get("FLINTMQ_SEED", "1"))
    chance = random.Random(f"{seed} {end}")
    store = tmp_path / "store"
    sent: set[bytes] = set()
    running = broker(store=store, settings=SETTINGS)
    with Producer(running.address) as producer:
        producer.send(Message(TOPIC, b"first"))
    for number in range(ROUNDS):
        ended = threading.Event()
        sender = threading.Thread(
            target=send_until_it_ends, args=(running.address, f"{number}", chance, sent, 10_000), daemon=True
        )
        sender.start()
        ended.wait(chance.uniform(0.3, 1.8))  # the time until the kill is random
        if end == "kill":
            running.kill()
        else:
            assert running.stop() == 0
        sender.join()
        running = broker(store=store, settings=SETTINGS)
    bodies = received(running.address, sent)
    assert sent <= bodies.keys(), f"FLINTMQ_SEED={seed}"
    if end == "stop":
        assert {body: count for body, count in bodies.items() if count > 1} == {}, f"FLINTMQ_SEED={seed}"
