"""A broker that is killed repeatedly loses nothing that it acknowledged under sync flush.

``FLINTMQ_KILL_ROUNDS`` sets the number of kills (default below; a hundred for the long run), ``FLINTMQ_SEED`` makes
another run.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.protocol.commands import PHYSICAL_OFFSET_STRUCT, PRODUCE, QUERY_BY_KEY
from flintmq.protocol.errors import BrokerError
from flintmq.protocol.storage.record import decode_record

Factory = Callable[..., Any]

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "3"))
PRODUCERS = 4
TOPIC = "ledger"


@dataclass
class Ledger:
    """The acknowledged messages: body by queue and queue offset, and the place of each."""

    bodies: dict[tuple[int, int], bytes] = field(default_factory=dict)
    physical_offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _produce_until_killed(connection: Any, name: str, rng: random.Random, ledger: Ledger) -> None:
    """Send batches of 1 to 50 messages, each with its body as its key, and record the acknowledged ones."""
    number = 0
    try:
        while True:
            bodies = [f"{name}-{number + k}".encode() for k in range(rng.choice((1, 1, 1, 50)))]
            number += len(bodies)
            packed = b"".join(
                msgpack.packb([body + bytes(rng.randrange(2000)), {"KEYS": body.decode()}]) for body in bodies
            )
            answer = connection.call(PRODUCE, {"topic": TOPIC, "count": len(bodies)}, packed)
            answer.raise_for_error()
            queue, first = answer.fields["queue"], answer.fields["queue_offset"]
            offsets = PHYSICAL_OFFSET_STRUCT.iter_unpack(answer.body)
            with ledger.lock:
                for k, (body, (physical_offset,)) in enumerate(zip(bodies, offsets, strict=True)):
                    ledger.bodies[queue, first + k] = body
                    ledger.physical_offsets[queue, first + k] = physical_offset
    except (OSError, EOFError, BrokerError):
        return  # killed, or about to be


def _check_queues(connection: Any, ledger: Ledger) -> None:
    """Check that queue offsets are consecutive, and that each acknowledged offset holds the acknowledged body."""
    for queue in range(4):
        offset, found = 0, {}
        while True:
            answer = connection.pull(TOPIC, queue, offset, max_count=10_000)
            answer.raise_for_error()
            count, at = answer.fields["count"], 4 * answer.fields["count"]
            if not count:
                break
            for k in range(count):
                record = decode_record(answer.body, at)
                assert record.queue_offset == offset + k
                found[offset + k] = record
                at += int.from_bytes(answer.body[4 * k : 4 * k + 4], "big")
            offset = answer.fields["next_offset"]
        for (of_queue, queue_offset), body in ledger.bodies.items():
            if of_queue == queue:
                record = found[queue_offset]
                assert record.body.rstrip(b"\0") == body
                assert record.physical_offset == ledger.physical_offsets[queue, queue_offset]


def _check_keys(connection: Any, ledger: Ledger, rng: random.Random) -> None:
    for place in rng.sample(sorted(ledger.bodies), min(200, len(ledger.bodies))):
        answer = connection.call(QUERY_BY_KEY, {"topic": TOPIC, "key": ledger.bodies[place].decode()}).raise_for_error()
        assert answer.fields["count"] == 1, f"{ledger.bodies[place]!r} at {place}"


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_kill_9_at_random_moments_loses_nothing_that_was_acknowledged(
    broker: Factory, connect: Factory, tmp_path: Path
) -> None:
    seed = int(os.environ.get("FLINTMQ_SEED", "1"))
    print(f"seed {seed}, {ROUNDS} rounds")  # noqa: T201 - what repeats a failure
    rng = random.Random(seed)
    store = tmp_path / "store"
    ledger = Ledger()
    for number in range(ROUNDS):
        running = broker(store=store)
        checker = connect(running)
        if number:
            _check_queues(checker, ledger)
            _check_keys(checker, ledger, rng)
        threads = []
        for producer in range(PRODUCERS):
            arguments = (connect(running), f"r{number}p{producer}", random.Random(rng.random()), ledger)
            threads.append(threading.Thread(target=_produce_until_killed, args=arguments))
        killer = threading.Timer(rng.uniform(0.0, 1.0), running.kill)
        for thread in (*threads, killer):
            thread.start()
        for thread in (*threads, killer):
            thread.join()
    running = broker(store=store)
    checker = connect(running)
    _check_queues(checker, ledger)
    _check_keys(checker, ledger, rng)
    assert len(ledger.bodies) > 0
    print(f"{len(ledger.bodies)} acknowledged messages, none lost")  # noqa: T201 - the result of a long run
