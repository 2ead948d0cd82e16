"""What the broker counts while it serves: plain integers, written by the event loop, read by whoever reports them."""

from __future__ import annotations

from ....protocol.commands import COMMANDS, PRODUCE
from ...latency import Latencies


class Traffic:
    """What went in, or out, since the start: frames, the messages in them, and bytes (of bodies: see ``Counters``)."""

    __slots__ = ("bytes", "frames", "messages")

    def __init__(self) -> None:
        self.frames = 0
        self.messages = 0
        self.bytes = 0

    def add(self, other: Traffic) -> None:
        """Count what ``other`` counted as well."""
        self.frames += other.frames
        self.messages += other.messages
        self.bytes += other.bytes


class Direction:
    """The traffic of one direction by topic; there are rows only for topics that had any."""

    __slots__ = ("_gone", "by_topic")

    def __init__(self) -> None:
        self.by_topic: dict[str, Traffic] = {}
        self._gone = Traffic()

    def of(self, topic: str) -> Traffic:
        """The row of a topic, to be counted in. The topic exists: names that clients make up get no row."""
        traffic = self.by_topic.get(topic)
        if traffic is None:
            traffic = self.by_topic[topic] = Traffic()
        return traffic

    def forget(self, topic: str) -> None:
        """A topic is deleted: its row goes, what it counted stays in ``total``."""
        traffic = self.by_topic.pop(topic, None)
        if traffic is not None:
            self._gone.add(traffic)

    def total(self) -> Traffic:
        """Of all topics, those that were deleted included."""
        total = Traffic()
        for traffic in (self._gone, *self.by_topic.values()):
            total.add(traffic)
        return total


class Counters:
    """What happened since the start; ``errors`` by result code.

    ``produced`` counts the bytes of the bodies of PRODUCE frames, ``pulled`` those of PULL answers. ``latencies``: by
    command code, from taking a request up to its answer; of a PULL without the time that it was held.
    """

    __slots__ = (
        "connections_accepted", "connections_refused", "dead_messages", "duplicates", "errors", "latencies",
        "one_way_errors", "produce_latencies", "produced", "pulled", "retried_messages", "sent_back", "tls_failures",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_refused = 0
        self.tls_failures = 0
        """Connections that came to no TLS."""
        self.produced = Direction()
        self.pulled = Direction()
        self.duplicates = 0
        """PRODUCE frames that were stored before."""
        self.one_way_errors = 0
        self.retried_messages = 0
        """Messages that consumers sent back, to be tried again."""
        self.dead_messages = 0
        """Those that became dead letters."""
        self.sent_back: dict[str, tuple[int, int]] = {}
        """Both by group; of groups that were deleted there is no row."""
        self.errors: dict[int, int] = {}
        self.latencies = {code: Latencies() for code in COMMANDS}
        self.produce_latencies = self.latencies[PRODUCE.code]
        """The same as the one in ``latencies``."""

    def count_sent_back(self, group: str, retried: int, dead: int) -> None:
        """A group sent messages back: some are tried again, some are dead. The group exists: it has a retry topic."""
        self.retried_messages += retried
        self.dead_messages += dead
        before = self.sent_back.get(group, (0, 0))
        self.sent_back[group] = before[0] + retried, before[1] + dead

    def forget_group(self, group: str) -> None:
        """A group is deleted."""
        self.sent_back.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted."""
        self.produced.forget(topic)
        self.pulled.forget(topic)
