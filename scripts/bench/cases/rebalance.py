"""A member joins a group of fifteen, leaves, or is killed: time until every queue has a member again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from flintmq.client import PushConsumer

from ..bench import Bench
from ..broker import Broker
from ..group_member import make_member, member_process
from ..kafka.aio import KAFKA, aiokafka
from ..load import TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..paced_sender import MESSAGES_A_SECOND, sender
from ..raw import RawClient

MEMBERS = 16
QUEUES = 64
LEAST_MOVES = QUEUES // MEMBERS
SETTLE_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.002
_ELSEWHERE = "a member in another process"


def samples(bench: Bench) -> Samples:
    """Yield one sample per run, each with a new broker."""
    with aiokafka(bench) as peer:
        for _ in range(bench.runs):
            with bench.broker() as broker:
                with RawClient(broker.address) as client:
                    client.create_topic(TOPIC, QUEUES)
                with sender(broker.address):
                    sample = rebalances(broker)
            with peer.broker(QUEUES) as kafka:
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
        group.settle(QUEUES)
        last = make_member(broker.address, "bench", TOPIC)
        stack.callback(last.close)
        joined = group.measure(lambda: group.members.append(last.start()), QUEUES)
        left = group.measure(lambda: group.without(last).close(), QUEUES)
        with member_process(broker.address, "bench", TOPIC) as process:
            group.settle(QUEUES - LEAST_MOVES)
            killed = group.measure(process.kill, QUEUES)
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
        """Remove and return ``member``."""
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


CASE = Case(
    "rebalance",
    f"{MEMBERS} members of a group, {QUEUES} queues, {MESSAGES_A_SECOND} msg/s: until every queue is with its member",
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
    samples,
)
