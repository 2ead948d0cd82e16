"""Which member of a group consumes which queue: even, and with as few moves as that allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace
from itertools import groupby
from operator import itemgetter

Queue = tuple[str, int]
"""A topic and the number of one of its queues."""


def assign(
    queues: Collection[Queue], members: Mapping[str, Collection[str]], before: Mapping[Queue, str]
) -> dict[Queue, str]:
    """A member for each queue. ``members``: by name, the topics that each wants; ``before``: who had which queue.

    A queue stays where it is unless its member is gone, wants its topic no more, or has two queues more than another
    one that could take it. Members that want the same topics get the same number of queues, or one more. Queues that
    nobody wants are left out. The same input gives the same result, whatever its order.
    """
    wanting: dict[str, list[str]] = {}
    for topic in {topic for topic, _ in queues}:
        wanting[topic] = sorted(name for name, topics in members.items() if topic in topics)
    loads = _Loads(members)
    result: dict[Queue, str] = {}
    free: list[Queue] = []
    for queue in sorted(queues):
        member = before.get(queue)
        if member is not None and queue[0] in members.get(member, ()):
            result[queue] = member
            loads.add(member, queue)
        elif wanting[queue[0]]:
            free.append(queue)
    for topic, of_topic in groupby(free, key=itemgetter(0)):
        # Within a topic nobody's load changes but of who gets a queue, so a heap gives the poorest.
        poorest = [(loads.count(name), loads.of_topic(name, topic), name) for name in wanting[topic]]
        heapify(poorest)
        for queue in of_topic:
            count, count_of_topic, member = poorest[0]
            heapreplace(poorest, (count + 1, count_of_topic + 1, member))
            result[queue] = member
            loads.add(member, queue)
    _even_out(result, wanting, loads)
    return result


class _Loads:
    """What each member has so far."""

    def __init__(self, members: Collection[str]) -> None:
        self._queues: dict[str, dict[str, list[int]]] = {name: {} for name in members}
        self._counts: Counter[str] = Counter()

    def count(self, member: str) -> int:
        return self._counts[member]

    def of_topic(self, member: str, topic: str) -> int:
        return len(self._queues[member].get(topic, ()))

    def topics(self, member: str) -> list[str]:
        return sorted(topic for topic, ids in self._queues[member].items() if ids)

    def add(self, member: str, queue: Queue) -> None:
        self._queues[member].setdefault(queue[0], []).append(queue[1])
        self._counts[member] += 1

    def take(self, member: str, topic: str) -> Queue:
        """Take the queue of a topic that the member got last."""
        self._counts[member] -= 1
        return topic, self._queues[member][topic].pop()


def _even_out(result: dict[Queue, str], wanting: Mapping[str, list[str]], loads: _Loads) -> None:
    """Move queues from who has most to who has least, while that brings the two nearer to each other.

    Each move lowers the sum of the squares of all loads, so there is an end.
    """
    givers = sorted({name for names in wanting.values() for name in names})
    settled: set[str] = set()
    while len(settled) < len(givers):
        giver = max((name for name in givers if name not in settled), key=lambda name: (loads.count(name), name))
        move = _best_move(giver, wanting, loads)
        if move is None:
            settled.add(giver)
            continue
        topic, taker = move
        queue = loads.take(giver, topic)
        loads.add(taker, queue)
        result[queue] = taker
        settled.clear()  # who could give to nobody may be able to give to one of these two now


def _best_move(giver: str, wanting: Mapping[str, list[str]], loads: _Loads) -> tuple[str, str] | None:
    """The topic of which ``giver`` should give a queue, and who gets it; None where nobody has two fewer."""
    best: tuple[tuple[int, int, str, str], tuple[str, str]] | None = None
    for topic in loads.topics(giver):
        for taker in wanting[topic]:
            gap = loads.count(giver) - loads.count(taker)
            if gap < 2:
                continue
            spread = loads.of_topic(giver, topic) - loads.of_topic(taker, topic)
            rank = (-gap, -spread, taker, topic)
            if best is None or rank < best[0]:
                best = (rank, (topic, taker))
    return best[1] if best is not None else None
