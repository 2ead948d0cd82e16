"""Consumer groups: a million stored messages, members that join, leave and die, and a thousand workers of a queue."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from flintmq.client import Admin, Batch, PushConsumer, StoredMessage

from ..bench import Bench
from ..broker import Broker
from ..group_member import make_member, member_process
from ..kafka.server import KAFKA, AioKafka, Kafka, aiokafka
from ..load import BODY_BYTES, QUEUES, TOPIC, blocks
from ..machine import Stopwatch, cpu_seconds
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..paced_sender import MESSAGES_A_SECOND, sender
from ..raw import RawClient

# ---- group-consume: a group with one push consumer handles a million stored messages and commits its progress.

MESSAGES = 1_000_000
BATCH = 4_096
TIMEOUT_SECONDS = 120.0


def _consume_samples(bench: Bench) -> Samples:
    """Yield one sample per run, with each listener in its own group."""
    count = bench.count(MESSAGES)
    with aiokafka(bench) as peer, bench.filled(count) as (broker, _), peer.broker(QUEUES) as kafka:
        if kafka is not None:
            kafka.fill((b"".join(block.bodies) for block in blocks(count)), count, BODY_BYTES)
        for number in range(bench.runs):
            sample: Sample = {}
            for name, batch in (("batch", BATCH), ("message", None)):
                group = f"{name}-{number}"
                watch = Stopwatch(broker.pid)
                consume(broker, group, count, batch)
                sample[name] = count / watch.seconds()
                sample[f"{name}_cpu"] = watch.broker_cpu_seconds() * 1e6 / count
                check_committed(broker, group, count)
                if kafka is not None:
                    sample[name + KAFKA] = consume_from_kafka(peer, kafka, group, count, batch)
            yield sample
        peer.end()


class Counted:
    """Counter of the messages of listeners in several threads. ``complete`` is set after ``expected`` messages."""

    def __init__(self, expected: int) -> None:
        self.complete = threading.Event()
        self.messages = self.body_bytes = 0
        self._expected = expected
        self._lock = threading.Lock()

    def add(self, messages: int, body_bytes: int) -> None:
        with self._lock:
            self.messages += messages
            self.body_bytes += body_bytes
            if self.messages >= self._expected:
                self.complete.set()

    def batch(self, batch: Batch) -> None:
        """Handle a batch: read every body."""
        bodies = batch.bodies()
        self.add(len(bodies), sum(map(len, bodies)))

    def message(self, message: StoredMessage) -> None:
        self.add(1, len(message.body))


def consume(broker: Broker, group: str, count: int, batch: int | None) -> None:
    """Join ``group``, deliver every message to the listener, commit and leave."""
    seen = Counted(count)
    listener: Callable[[Any], None] = seen.message if batch is None else seen.batch
    with PushConsumer(broker.address, group, TOPIC, listener, batch=batch, start="first"):
        if not seen.complete.wait(TIMEOUT_SECONDS):
            raise BenchFailed(f"{seen.messages:,} of {count:,} messages came within {TIMEOUT_SECONDS:.0f} s")
    if (seen.messages, seen.body_bytes) != (count, count * BODY_BYTES):
        raise BenchFailed(f"{seen.messages:,} messages of {seen.body_bytes:,} bytes came; stored: {count:,}")


def consume_from_kafka(peer: AioKafka, kafka: Kafka, group: str, count: int, batch: int | None) -> float:
    """Measure the same with a group consumer of aiokafka; return messages per second."""
    done = peer.run(kafka, "consume", group, count, batch is not None)
    if (done["messages"], done["bytes"]) != (count, count * BODY_BYTES):
        raise BenchFailed(f"aiokafka got {done}; stored: {count:,} messages")
    return count / float(done["seconds"])


def check_committed(broker: Broker, group: str, count: int) -> None:
    """Raise ``BenchFailed`` unless the group has committed everything."""
    with Admin(broker.address) as admin:
        queues = [queue for queue in admin.group(group).queues if queue.topic == TOPIC]
    committed = sum(queue.committed for queue in queues)
    if committed != count:
        raise BenchFailed(f"group {group} saw all {count:,} messages and left with {committed:,} committed: {queues}")


GROUP_CONSUME = Case(
    "group-consume",
    "a group of one push consumer, 1 M stored messages, from joining to having left, auto-commit",
    (
        Measure("batch", f"listener of batches of {BATCH:,}: every body", "msg/s", 400_000),
        Measure("batch_cpu", "listener of batches: broker CPU per million", "s"),
        Measure("message", "listener of messages: `body` of each", "msg/s"),
        Measure("message_cpu", "listener of messages: broker CPU per million", "s"),
        Measure(f"batch{KAFKA}", "aiokafka: `getmany`", "msg/s"),
        Measure(f"message{KAFKA}", "aiokafka: `getone`", "msg/s"),
    ),
    _consume_samples,
)

# ---- rebalance: a member joins a group of fifteen, leaves, or is killed, until every queue has a member again.

MEMBERS = 16
REBALANCED_QUEUES = 64
LEAST_MOVES = REBALANCED_QUEUES // MEMBERS
SETTLE_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.002
_ELSEWHERE = "a member in another process"


def _rebalance_samples(bench: Bench) -> Samples:
    """Yield one sample per run, each with a new broker."""
    with aiokafka(bench) as peer:
        for _ in range(bench.runs):
            with bench.broker() as broker:
                with RawClient(broker.address) as client:
                    client.create_topic(TOPIC, REBALANCED_QUEUES)
                with sender(broker.address):
                    sample = rebalances(broker)
            with peer.broker(REBALANCED_QUEUES) as kafka:
                if kafka is not None:
                    of_kafka = peer.run(kafka, "rebalance", MEMBERS)
                    sample |= {f"{name}{KAFKA}": value for name, value in of_kafka.items()}
            yield sample
        peer.end()


def rebalances(broker: Broker) -> Sample:
    """Start fifteen members; then let a sixteenth join and leave, and another one join and be killed."""
    with ExitStack() as stack:
        group = Group()
        for _ in range(MEMBERS - 1):
            group.members.append(stack.enter_context(make_member(broker.address, "bench", TOPIC)))
        group.settle(REBALANCED_QUEUES)
        last = make_member(broker.address, "bench", TOPIC)
        stack.callback(last.close)
        joined = group.measure(lambda: group.members.append(last.start()), REBALANCED_QUEUES)
        left = group.measure(lambda: group.without(last).close(), REBALANCED_QUEUES)
        with member_process(broker.address, "bench", TOPIC) as process:
            group.settle(REBALANCED_QUEUES - LEAST_MOVES)
            killed = group.measure(process.kill, REBALANCED_QUEUES)
    return {
        f"{name}{figure}": value
        for name, (seconds, moves) in (("join", joined), ("leave", left), ("kill", killed))
        for figure, value in (("", seconds), ("_moves", moves))
    }


@dataclass
class Group:
    """The members in this process, and the member last seen with each queue."""

    members: list[PushConsumer] = field(default_factory=list)
    _holders: dict[tuple[str, int], str] = field(default_factory=dict)
    _moves: int = 0

    def without(self, member: PushConsumer) -> PushConsumer:
        self.members.remove(member)
        return member

    def measure(self, change: Callable[[], object], queues: int) -> tuple[float, float]:
        """Return the seconds from before ``change`` until the members share ``queues`` evenly, and the number of queues
        that moved."""
        self._moves = 0
        began = time.perf_counter()
        change()
        self.settle(queues)
        return time.perf_counter() - began, self._moves

    def settle(self, queues: int) -> None:
        """Wait until the members share all ``queues``, with a difference of at most one between any two."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._look(queues):
            if time.monotonic() > deadline:
                raise BenchFailed(f"no even assignment of {queues} queues within {SETTLE_SECONDS_MAX:.0f} s")
            time.sleep(_LOOK_SECONDS)
        held = {queue for member in self.members for queue in member.health().queues}
        self._holders |= dict.fromkeys(self._holders.keys() - held, _ELSEWHERE)

    def _look(self, queues: int) -> bool:
        """Return whether the members hold ``queues`` queues and are giving up none of them."""
        counts = []
        giving_up = 0
        for member in self.members:
            health = member.health()
            held = [queue for queue in health.queues if queue[0] == TOPIC]
            giving_up += health.giving_up
            counts.append(len(held))
            if health.giving_up:
                continue  # the assignment does not name them; the new owner counts them
            for queue in held:
                if self._holders.get(queue) != health.member:
                    self._moves += queue in self._holders
                    self._holders[queue] = health.member
        return not giving_up and sum(counts) == queues and max(counts) - min(counts) <= 1


REBALANCE = Case(
    "rebalance",
    f"{MEMBERS} members of a group, {REBALANCED_QUEUES} queues, {MESSAGES_A_SECOND} msg/s: "
    "until every queue is with its member",
    (
        Measure("join", "a member joins", "s", 1.0),
        Measure("join_moves", "a member joins: queues that moved", "queues", LEAST_MOVES),
        Measure("leave", "a member leaves", "s"),
        Measure("leave_moves", "a member leaves: queues that moved", "queues", LEAST_MOVES),
        Measure("kill", "a member is killed (−9)", "s"),
        Measure("kill_moves", "a member is killed: queues that moved", "queues", LEAST_MOVES),
        Measure(f"join{KAFKA}", "aiokafka, no messages: a member joins", "s"),
        Measure(f"join_moves{KAFKA}", "aiokafka: a member joins: partitions that moved", "queues"),
        Measure(f"leave{KAFKA}", "aiokafka, no messages: a member leaves", "s"),
        Measure(f"leave_moves{KAFKA}", "aiokafka: a member leaves: partitions that moved", "queues"),
    ),
    _rebalance_samples,
)

# ---- work-queue: a thousand workers share four queues, and acknowledge each message by itself.

WORK_MESSAGES = 200_000
PROCESSES = 2
WORKERS = 1_000
EACH = WORKERS // PROCESSES
WORKER_PROGRAMS = {
    "shared": ("work_members", (EACH, 1)),
    "apart": ("work_members", (EACH, EACH)),
    "plain": ("pop_rounds", (EACH, 4)),
    "single": ("pop_rounds", (EACH, 1)),
}
"""Programs of the workers and their last arguments."""
_TITLES = {
    "shared": "tasks that share a connection in each process",
    "apart": "tasks with a connection each, 32 messages prefetched",
    "plain": "plain sockets, 4 messages a pop",
    "single": "plain sockets, one message a pop",
}


def _work_samples(bench: Bench) -> Samples:
    """Yield one sample per run. Each part of it has a group of its own."""
    count = bench.count(WORK_MESSAGES)
    with bench.filled(count) as (broker, _):
        for number in range(bench.runs):
            sample: Sample = {}
            for part, (module, arguments) in WORKER_PROGRAMS.items():
                group = f"{part}-{number}"
                sample |= {f"{key}_{part}": figure for key, figure in _run(broker, group, count, module, arguments)}
                _check_settled(broker, group)
            yield sample


def _run(
    broker: Broker, group: str, count: int, module: str, arguments: tuple[int, ...]
) -> Iterator[tuple[str, float]]:
    """Yield the rate of a part, and the CPU time of the broker and of the workers for a million messages."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_process(broker, group, module, arguments)) for _ in range(PROCESSES)]
        for each in workers:
            _line(each)
        watch, used = Stopwatch(broker.pid), sum(cpu_seconds(each.pid) for each in workers)
        for each in workers:
            _tell(each, "go")
        handled = 0
        while handled < count:
            handled = sum([int(_line(each)) for each in workers])
            for each in workers:
                _tell(each, "on" if handled < count else "confirm")
        for each in workers:
            _line(each)
        yield "handled", count / watch.seconds()
        yield "broker", watch.broker_cpu_seconds() * 1e6 / count
        yield "workers", (sum(cpu_seconds(each.pid) for each in workers) - used) * 1e6 / count
        for each in workers:
            _tell(each, "end")
        for each in workers:
            if each.wait(TIMEOUT_SECONDS):
                raise BenchFailed(f"a process with workers ended with {each.returncode}")


def _process(broker: Broker, group: str, module: str, arguments: tuple[int, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"bench.{module}", broker.address, group, TOPIC, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchFailed("a process with workers has ended")
    return line


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def _check_settled(broker: Broker, group: str) -> None:
    """Raise ``BenchFailed`` unless every message is settled."""
    with Admin(broker.address) as admin:
        left = [queue for queue in admin.group(group).queues if queue.lag or queue.in_flight]
    if left:
        raise BenchFailed(f"group {group} left messages: {left}")


def _measures() -> Iterator[Measure]:
    for part, title in _TITLES.items():
        yield Measure(f"handled_{part}", f"messages handled, {title}", "msg/s", 50_000)
        yield Measure(f"broker_{part}", "… broker CPU per million", "s")
        yield Measure(f"workers_{part}", "… CPU per million of the workers' processes", "s")


WORK_QUEUE = Case(
    "work-queue",
    f"{WORKERS:,} workers in {PROCESSES} processes on {QUEUES} queues, stored messages, each acknowledged by itself",
    tuple(_measures()),
    _work_samples,
)
