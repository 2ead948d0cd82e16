"""Counters of the running broker: plain integers that the event loop writes and any thread may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.commands import COMMANDS, PRODUCE
from ..int_table import IntTable
from ..latency import Latencies


@dataclass(eq=False, slots=True)
class Traffic:
    """Traffic in one direction since the start: frames, their messages, and the bytes of their bodies."""

    frames: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, other: Traffic) -> None:
        """Add the counts of ``other``."""
        self.frames += other.frames
        self.messages += other.messages
        self.bytes += other.bytes


class Direction:
    """Traffic in one direction by topic; only topics with traffic have a row."""

    __slots__ = ("_gone", "by_topic")

    def __init__(self) -> None:
        self.by_topic: dict[str, Traffic] = {}
        self._gone = Traffic()

    def of(self, topic: str) -> Traffic:
        """Return the row of a topic, to count in. The topic must exist, so that invented names create no rows."""
        traffic = self.by_topic.get(topic)
        if traffic is None:
            traffic = self.by_topic[topic] = Traffic()
        return traffic

    def forget(self, topic: str) -> None:
        """Remove the row of a deleted topic; its counts stay in ``total``."""
        traffic = self.by_topic.pop(topic, None)
        if traffic is not None:
            self._gone.add(traffic)

    def total(self) -> Traffic:
        """Return the sum over all topics, including deleted ones."""
        total = Traffic()
        for traffic in (self._gone, *self.by_topic.values()):
            total.add(traffic)
        return total


class NextQueues:
    """The queue of the next frame that names none, by topic: the broker takes the queues in turn.

    ``table``: a row for each topic, in which ``kernels.short_sends`` counts too; its first column is the queue, before
    the remainder is taken.
    """

    def __init__(self, width: int) -> None:
        self.table = IntTable(width)
        self._places: dict[str, int] = {}

    def place(self, topic: str) -> int:
        """Return the place of the topic's row."""
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = self.table.take()
        return place

    def take(self, topic: str, queues: int) -> int:
        """Return the next of the topic's ``queues`` queues."""
        place, values = self.place(topic), self.table.values
        # The remainder is taken for each frame, because the topic may get more queues.
        queue = values[place] % queues
        values[place] = queue + 1
        return queue

    def forget(self, topic: str) -> None:
        """Forget a deleted topic."""
        place = self._places.pop(topic, None)
        if place is not None:
            self.table.give_back(place)

    def by_topic(self) -> dict[str, int]:
        """Return the first column of each row, of topics that a queue was taken of."""
        values = self.table.values
        return {topic: values[place] for topic, place in self._places.items() if values[place]}


@dataclass(eq=False, slots=True)
class Counters:
    """Counters since the start; ``errors`` by result code.

    ``produced`` counts the body bytes of PRODUCE frames, ``pulled`` those of PULL responses. ``latencies``: by command
    code, from the beginning of a request's turn to its response; for a PULL without the time that it was held.
    """

    connections_accepted: int = 0
    connections_refused: int = 0
    tls_failures: int = 0
    """Connections whose TLS handshake failed."""
    produced: Direction = field(default_factory=Direction)
    pulled: Direction = field(default_factory=Direction)
    duplicates: int = 0
    """PRODUCE frames that had been stored before."""
    kept_headers: int = 0
    """Number of headers that connections keep now: see ``handlers.repeated_headers``."""
    one_way_errors: int = 0
    retried_messages: int = 0
    """Messages that consumers sent back and that are delivered again."""
    dead_messages: int = 0
    """Messages that consumers sent back and that became dead letters."""
    sent_back: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By group: retried messages and dead letters; deleted groups have no row."""
    expired_leases: dict[str, int] = field(default_factory=dict)
    """By group: popped messages that their consumer did not settle in time; deleted groups have no row."""
    errors: dict[int, int] = field(default_factory=dict)
    latencies: dict[int, Latencies] = field(default_factory=lambda: {code: Latencies() for code in COMMANDS})
    produce_latencies: Latencies = field(init=False)
    """The PRODUCE entry of ``latencies``, without a lookup."""

    def __post_init__(self) -> None:
        self.produce_latencies = self.latencies[PRODUCE.code]

    def count_sent_back(self, group: str, retried: int, dead: int) -> None:
        """Count messages that a group sent back. The group must exist, so that invented names create no rows."""
        self.retried_messages += retried
        self.dead_messages += dead
        before = self.sent_back.get(group, (0, 0))
        self.sent_back[group] = before[0] + retried, before[1] + dead

    def count_expired(self, group: str, count: int) -> None:
        """Count popped messages that their consumer did not settle in time. The group must exist."""
        self.expired_leases[group] = self.expired_leases.get(group, 0) + count

    def forget_group(self, group: str) -> None:
        """Remove the rows of a deleted group."""
        self.sent_back.pop(group, None)
        self.expired_leases.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Remove the rows of a deleted topic."""
        self.produced.forget(topic)
        self.pulled.forget(topic)
