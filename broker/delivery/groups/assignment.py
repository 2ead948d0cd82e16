"""Assignment of a group's queues to its members: even, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace
from itertools import groupby
from operator import itemgetter

from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX

Queue = tuple[str, int]
"""A topic and the number of one of its queues."""


def assign(
    queues: Collection[Queue], members: Mapping[str, Collection[str]], before: Mapping[Queue, str]
) -> dict[Queue, str]:
    """Return a member for each queue. ``members``: each member's topics; ``before``: the previous assignment.

    Data queues are assigned first. Members that want the same topics get equally many of them, or one more, and equally
    many of each topic, or one more. The queues of retry topics, which are nearly empty, come afterwards and go to the
    members with the fewest queues.

    A queue stays with its member unless the member has left, no longer wants the topic, or has more than its share.
    Queues that no member wants are left out. The result does not depend on the order of the input.
    """
    result: dict[Queue, str] = {}
    wanting = _wanting(members, {topic for topic, _ in queues})
    loads = _Loads(members)
    for of_retries in (False, True):
        part = sorted(queue for queue in queues if queue[0].startswith(RETRY_TOPIC_PREFIX) is of_retries)
        topics = {topic for topic, _ in part}
        _place(part, members, before, wanting, loads, result)
        _even_out(topics, wanting, loads, result)
        if not of_retries:
            _spread_topics(sorted(topics), members, wanting, loads, result)
            # A swap may give a member a queue that a poorer one wants. Each such move lowers the sum of the squares of
            # all loads, which swaps leave unchanged, so the loop terminates.
            while _even_out(topics, wanting, loads, result):
                _spread_topics(sorted(topics), members, wanting, loads, result)
    return result


def _wanting(members: Mapping[str, Collection[str]], topics: set[str]) -> dict[str, list[str]]:
    """Return the sorted names of the members that want each topic; members with equal topics are handled together."""
    alike: dict[frozenset[str], list[str]] = {}
    for name in sorted(members):
        alike.setdefault(frozenset(members[name]), []).append(name)
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    for wishes, names in alike.items():
        for topic in wishes & topics:
            # Several topics may share one list of names, which is never changed.
            found[topic] = sorted(found[topic] + names) if found[topic] else names
    return found


class _Loads:
    """The queues assigned to each member so far."""

    def __init__(self, members: Collection[str]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(sorted(members), 0)
        """Number of queues of each member."""
        self.of_topic: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Number of queues of each member, by topic."""
        self._queues: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)

    def topics(self, member: str) -> list[str]:
        """Return the topics that the member has queues of."""
        return sorted(topic for topic, ids in self._queues[member].items() if ids)

    def add(self, member: str, queue: Queue) -> None:
        """Give a queue to a member."""
        topic, queue_id = queue
        self._queues[member].setdefault(topic, []).append(queue_id)
        self.counts[member] += 1
        self.of_topic[topic][member] += 1

    def move(self, topic: str, giver: str, taker: str, result: dict[Queue, str]) -> None:
        """Move one queue of the topic, the one that ``giver`` got last."""
        queue = (topic, self._queues[giver][topic].pop())
        self.counts[giver] -= 1
        self.of_topic[topic][giver] -= 1
        self.add(taker, queue)
        result[queue] = taker


def _place(
    queues: list[Queue],
    members: Mapping[str, Collection[str]],
    before: Mapping[Queue, str],
    wanting: Mapping[str, list[str]],
    loads: _Loads,
    result: dict[Queue, str],
) -> None:
    """Leave each queue with its member if that still wants it; give the others to the members with the fewest."""
    free: list[Queue] = []
    for queue in queues:
        member = before.get(queue)
        if member is not None and queue[0] in members.get(member, ()):
            result[queue] = member
            loads.add(member, queue)
        elif wanting[queue[0]]:
            free.append(queue)
    for topic, of_topic in groupby(free, key=itemgetter(0)):
        # Within a topic only the load of the member that gets a queue changes, so a heap yields the least loaded.
        poorest = [(loads.counts[name], loads.of_topic[topic][name], name) for name in wanting[topic]]
        heapify(poorest)
        for queue in of_topic:
            count, count_of_topic, member = poorest[0]
            heapreplace(poorest, (count + 1, count_of_topic + 1, member))
            result[queue] = member
            loads.add(member, queue)


def _even_out(topics: set[str], wanting: Mapping[str, list[str]], loads: _Loads, result: dict[Queue, str]) -> bool:
    """Move queues of ``topics`` from the most to the least loaded member, as long as that reduces their difference;
    return whether a queue moved.

    Each move lowers the sum of the squares of all loads, so the loop terminates. If the loads are even, as they nearly
    always are, it checks each member once.
    """
    counts, moved = loads.counts, False
    while counts:
        least = min(counts.values())
        # With a difference of one, a move would only swap rich and poor.
        rich = [name for name, count in counts.items() if count - least >= 2]
        # The names settle ties, so the result does not depend on the order of the input.
        for giver in sorted(rich, key=lambda name: (counts[name], name), reverse=True):
            if move := _best_move(giver, topics, wanting, loads):
                loads.move(move[0], giver, move[1], result)
                moved = True
                break
        else:
            # No rich member has a queue that a much poorer one wants.
            return moved
    return moved


def _best_move(giver: str, topics: set[str], wanting: Mapping[str, list[str]], loads: _Loads) -> tuple[str, str] | None:
    """Return the topic of the queue to move from ``giver``, and its new member; None if none has two fewer."""
    best: tuple[tuple[int, int, str, str], tuple[str, str]] | None = None
    count = loads.counts[giver]
    for topic in loads.topics(giver):
        if topic not in topics:
            continue
        of_topic = loads.of_topic[topic]
        for taker in wanting[topic]:
            gap = count - loads.counts[taker]
            # Only the largest gap counts, so the rest of the rank need not be computed for a smaller one.
            if gap < 2 or (best is not None and -gap > best[0][0]):
                continue
            # Among equal gaps, the move that evens out the topic most.
            rank = (-gap, of_topic[taker] - of_topic[giver], taker, topic)
            if best is None or rank < best[0]:
                best = (rank, (topic, taker))
    return best[1] if best is not None else None


def _spread_topics(
    topics: list[str],
    members: Mapping[str, Collection[str]],
    wanting: Mapping[str, list[str]],
    loads: _Loads,
    result: dict[Queue, str],
) -> None:
    """Let members swap queues until none has two more of a topic than another that wants it.

    A swap leaves the number of queues of both members unchanged. Each swap lowers the sum of the squares of the loads
    in all topics, so the loop terminates.
    """
    swapped = True
    while swapped:
        swapped = False
        for topic in topics:
            of_topic = loads.of_topic[topic]
            if max(of_topic.values(), default=0) < 2:
                continue
            rich = max(wanting[topic], key=lambda name: (of_topic[name], name))
            poor = min(wanting[topic], key=lambda name: (of_topic[name], name))
            if of_topic[rich] - of_topic[poor] < 2:
                continue
            # In exchange, the poor member gives a queue of a topic of which it has more than the rich one, so that
            # topic becomes no less even.
            for other in loads.topics(poor):
                of_other = loads.of_topic[other]
                if of_other[poor] > of_other[rich] and other in members[rich]:
                    loads.move(topic, rich, poor, result)
                    loads.move(other, poor, rich, result)
                    swapped = True
                    break
