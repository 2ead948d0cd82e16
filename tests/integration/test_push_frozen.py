"""Clients whose process is frozen for longer than their session lasts, and then continues."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer, PushConsumer
from flintmq.testing.started_broker import broker_environment
from tests.conftest import BrokerFactory
from tests.group_tools import Seen, until

QUEUES = 4

MEMBER = """
    import json, sys, threading
    from flintmq.client import PushConsumer, TryLater

    address, kind = sys.argv[1:]
    let_go = threading.Event()
    handled = []

    def listener(message):
        handled.append(message.body.decode())
        if message.body == b"held":
            let_go.wait()
            if kind == "failing":
                raise TryLater(1)

    consumer = PushConsumer(address, "g", "orders", listener, start="first", session_timeout=1.0, commit_interval=0.05,
                            orderly=kind == "orderly").start()
    for line in sys.stdin:
        if line == "let go\\n":
            let_go.set()
        health = consumer.health()
        print(json.dumps({
            "handled": handled, "queues": sorted(queue for topic, queue in health.queues if topic == "orders"),
            "taken": health.taken, "alive": health.alive, "commit_trouble": str(health.commit_trouble),
        }), flush=True)
    consumer.close(20)
"""

PRODUCER = """
    import json, sys
    from flintmq.client import Message, Outcome, TransactionProducer

    producer = TransactionProducer(sys.argv[1], "g", lambda message: Outcome.COMMIT, session_timeout=1.0)
    kept = producer.send_half(Message("orders", b"kept"))
    producer.send_half(Message("orders", b"dropped"))
    for line in sys.stdin:
        if line == "commit\\n":
            kept.commit()
        print(json.dumps({"registered": producer.health().registered}), flush=True)
    producer.close()
"""


class Program:
    """A client in a process of its own that answers each line with its state, as JSON."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=broker_environment(),
        )

    def tell(self, line: str = "") -> dict[str, Any]:
        """Send a line; return the state after it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        state: dict[str, Any] = json.loads(self.process.stdout.readline())
        return state

    def freeze(self) -> None:
        """Stop the process, as on a machine that is suspended."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)

    def finish(self) -> int:
        """Make the program close its client; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Programs that are killed at the end of the test."""
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.wait()
        for stream in (program.process.stdin, program.process.stdout):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "failing"])
def test_a_frozen_member_drops_reassigned_queues_and_commits_the_rest(
    broker: BrokerFactory, programs: list[Program], kind: str
) -> None:
    running = broker()
    seen = Seen()
    with Producer(running.address) as producer, Admin(running.address) as admin, Consumer(running.address) as reader:
        admin.create_topic("orders", queues=QUEUES)
        frozen = Program(MEMBER, running.address, kind)
        programs.append(frozen)
        until(lambda: len(frozen.tell()["queues"]) == QUEUES, "having all queues")
        other = PushConsumer(
            running.address, "g", "orders", seen, start="first", commit_interval=0.05, orderly=kind == "orderly"
        )
        with other:
            until(lambda: len(frozen.tell()["queues"]) == QUEUES // 2, "sharing the queues")
            had = frozen.tell()["queues"]
            for queue in had:  # two messages of each queue, of which the first keeps the listener busy
                producer.send(Message("orders", b"held"), queue=queue)
                producer.send(Message("orders", b"more"), queue=queue)
            until(lambda: frozen.tell()["handled"].count("held") == len(had), "having begun")
            frozen.freeze()
            until(lambda: seen.bodies.count(b"held") == len(had), "the other one taking over")
            frozen.thaw()
            until(lambda: frozen.tell()["queues"] not in ([], had), "getting other queues")
            frozen.tell("let go")
            until(lambda: frozen.tell()["taken"] >= len(had), "learning what was taken")
            for queue in range(QUEUES):
                producer.send(Message("orders", b"after"), queue=queue)
            ends = {queue.queue: queue.max_offset for queue in admin.topic_stats("orders")}
            until(lambda: reader.committed("g", "orders") == ends, "the commit of all queues")
            state = frozen.tell()
            assert state["alive"]
            assert state["commit_trouble"] == "None"
            assert frozen.finish() == 0
        assert seen.bodies.count(b"after") + state["handled"].count("after") == QUEUES


def nobody_asked(metrics: str) -> int:
    """Return how often the broker found no live producer to ask."""
    with urllib.request.urlopen(metrics.split()[0]) as page:
        found = re.search(r'^flintmq_transaction_checks_total{result="nobody"} (\d+)', page.read().decode(), re.M)
    assert found is not None
    return int(found[1])


def test_a_transactional_producer_that_was_frozen_can_commit_and_is_asked_again(
    broker: BrokerFactory, programs: list[Program]
) -> None:
    running = broker(
        settings={
            "transactions.timeout_ms": 20,
            "transactions.check_interval_ms": 20,
            "transactions.check_times_max": 10_000,
        }
    )
    (metrics,) = [line.removeprefix("metrics: ") for line in running.output if line.startswith("metrics: ")]
    with Admin(running.address) as admin, Consumer(running.address) as reader:
        admin.create_topic("orders", queues=1)
        frozen = Program(PRODUCER, running.address)
        programs.append(frozen)
        until(lambda: frozen.tell()["registered"], "being known")
        frozen.freeze()
        before = nobody_asked(metrics)
        until(lambda: nobody_asked(metrics) > before, "its session running out")
        frozen.thaw()
        frozen.tell("commit")
        bodies: set[bytes] = set()

        def all_there() -> bool:
            bodies.update(message.body for message in reader.iter("orders", from_="earliest", until="latest"))
            return bodies == {b"kept", b"dropped"}

        until(all_there, "both messages")
        assert frozen.finish() == 0
