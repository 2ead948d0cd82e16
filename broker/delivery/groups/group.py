"""One consumer group: its members, the queues that each of them holds, and the queues that are meant for each.

A queue passes from one member to another in two steps, so that only one of them has a message at a time. The queue is
*meant* for the new member at once. The old member *holds* it until it says in a heartbeat that it has finished and
committed the queue's messages, or leaves, or expires. Only then is the new member *granted* the queue.

Every change of the assignment raises the group's epoch. A grant carries the epoch in which it was made, and the broker
refuses what a member does in an older one: a member that was away cannot overwrite its successor's offsets.

The cost of a heartbeat does not depend on the number of members and queues: the group tracks the free queues and the
members with unseen changes. Only ``rebalance`` goes through all of them.

This module uses no loop, no store and no clock: the coordinator passes in what it needs.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from ....protocol.errors import EpochFenced, LimitReached, MemberNameTaken, MemberUnknown, SubscriptionIllegal
from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from ..client_handle import ClientHandle


# ---- Assignment of a group's queues to its members: even, and with as few moves as possible.

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
        return sorted(topic for topic, ids in self._queues[member].items() if ids)

    def add(self, member: str, queue: Queue) -> None:
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


# ---- Memory of the subscriptions of all live members of groups, which the broker keeps as long as they live.

ENTRY_BYTES = 400
"""Memory of one subscription without its texts: the object, and its places in the tables."""


def memory_of(subscriptions: Iterable[tuple[str, ...]]) -> int:
    """Return the memory of subscriptions. Each is given by its texts."""
    return sum(ENTRY_BYTES + sum(map(sys.getsizeof, texts)) for texts in subscriptions)


class SubscriptionMemory:
    """The budget of all subscriptions. ``bytes``: what they take; ``bytes_max``: what they may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def check(self, member: str, more: int) -> None:
        """Raise ``LimitReached`` if a member, named for the error, cannot have ``more`` bytes."""
        if more > 0 and self.bytes + more > self.bytes_max:
            raise LimitReached(
                f"the subscriptions of {member} cannot be kept: those of all members take {self.bytes} bytes, and "
                f"limits.subscription_bytes_max is {self.bytes_max}; subscribe to less, stop other members, or raise "
                "the limit",
                subscription_bytes_max=self.bytes_max,
            )


# ---- The group and its members.

CLUSTERING = "clustering"
BROADCASTING = "broadcasting"
EMPTY, REBALANCING, STABLE = "empty", "rebalancing", "stable"
STATES = (EMPTY, REBALANCING, STABLE)


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A group's subscription to a topic: all messages, or those that a filter selects."""

    topic: str
    tags: str = ""
    filter: str = ""


@dataclass(slots=True, eq=False)
class Member:
    """One member. ``granted``: the queues that it holds, each with the epoch of its grant. Times are in seconds."""

    name: str
    remote: ClientHandle
    joined_epoch: int
    session_seconds: float
    subscriptions: dict[str, MemberSubscription]
    orderly: bool
    joined_at: float
    deadline: float
    heard_at: float
    granted: dict[Queue, int] = field(default_factory=dict)
    begins: dict[Queue, int] = field(default_factory=dict)
    """In a broadcasting group: start offsets given to the member for queues in which it had committed nothing."""
    told_epoch: int = 0
    """Epoch of the last response to it, or of the last notification of a newer epoch."""
    cancel_lost: Callable[[], None] = field(default=lambda: None)
    """Cancels the callback for the loss of its connection."""
    topics: frozenset[str] = field(init=False)
    """Topics that it subscribes to, for ``assign``."""
    kept_bytes: int = field(init=False)
    """Memory of its subscriptions."""

    def __post_init__(self) -> None:
        self.kept_bytes = memory_of((each.topic, each.tags, each.filter) for each in self.subscriptions.values())
        self.topics = frozenset(self.subscriptions)


class ConsumerGroup:
    """One consumer group. ``epoch``: its first epoch, larger than any of an earlier group of this name."""

    def __init__(self, name: str, mode: str, epoch: int) -> None:
        self.name = name
        self.mode = mode
        self.epoch = epoch
        self.members: dict[str, Member] = {}
        self.meant: dict[Queue, str] = {}
        self.held: dict[Queue, str] = {}
        self._queues: frozenset[Queue] = frozenset()
        self._wanted: dict[str, tuple[MemberSubscription, int]] = {}
        """By topic: the subscription that all its members share, and their number."""
        self._free: dict[Queue, None] = {}
        """Queues that are meant for a member and that no member holds."""
        self._changed: dict[str, None] = {}
        """Members whose queues changed since they were last told."""

    @property
    def clustering(self) -> bool:
        """Return whether the members share the messages; otherwise each gets all of them."""
        return self.mode == CLUSTERING

    @property
    def settled(self) -> bool:
        """Return whether every queue is held by the member that it is meant for."""
        return self.meant == self.held

    @property
    def state(self) -> str:
        """One of ``STATES``: no members; queues that still have to change hands; or neither."""
        if not self.members:
            return EMPTY
        return STABLE if self.settled or not self.clustering else REBALANCING

    def topics(self) -> set[str]:
        return set(self._wanted)

    # ---- joining and leaving

    def find(self, name: str, epoch: int) -> Member:
        """Return the member of this name if it joined at or before ``epoch``. Raises ``MemberUnknown`` or
        ``EpochFenced``."""
        member = self.members.get(name)
        if member is None:
            raise MemberUnknown(
                f"group {self.name} has no member {name!r}: its session expired, it left, or the broker was restarted; "
                "join again with epoch 0"
            )
        if epoch < member.joined_epoch:
            raise EpochFenced(
                f"member {name!r} of group {self.name} joined again at epoch {member.joined_epoch}, and this request "
                f"of epoch {epoch} comes from an earlier client of the same name; stop that client, or give it another "
                "name",
                epoch=member.joined_epoch,
            )
        return member

    def check_join(
        self, name: str, remote: ClientHandle, mode: str, subscriptions: Mapping[str, MemberSubscription]
    ) -> None:
        """Raise if a member cannot join: its name is taken, or its mode or a subscription differs from the group's."""
        before = self.members.get(name)
        if before is not None and before.remote is not remote and not before.remote.lost:
            raise MemberNameTaken(
                f"group {self.name} has a live member {name!r}, connected from {before.remote.address[0]}:"
                f"{before.remote.address[1]}; give each member a unique name, or none"
            )
        # A member that joins again replaces itself: alone, it may choose another mode.
        others = len(self.members) - (before is not None)
        if others and mode != self.mode:
            raise SubscriptionIllegal(
                f"group {self.name} is {self.mode}, but {name!r} asks for {mode}: all members of a group must use the "
                "same mode; use another group, or stop the other members first"
            )
        for topic, subscription in subscriptions.items():
            theirs, _ = self._wanted.get(topic, (subscription, 0))
            if theirs == subscription:
                continue
            # The subscription that all share may be this member's alone, and then it may change it.
            for other in self.members.values():
                if other.name != name and topic in other.subscriptions:
                    raise SubscriptionIllegal(
                        f"member {other.name!r} of group {self.name} subscribes to {_shown(theirs)} of topic {topic}, "
                        f"but {name!r} to {_shown(subscription)}: all members of a group must use the same filter, or "
                        "messages would be lost; use another group, or stop the other members first"
                    )

    def join(self, member: Member, held: Collection[Queue]) -> None:
        """Add a member, or replace one that joins again. It keeps those queues of ``held`` that no other one holds."""
        self._remove(member.name)
        self.epoch += 1
        member.joined_epoch = self.epoch
        self.members[member.name] = member
        self._changed[member.name] = None
        for topic, subscription in member.subscriptions.items():
            self._wanted[topic] = (subscription, self._wanted.get(topic, (subscription, 0))[1] + 1)
        if self.clustering:
            # The member still has messages of these queues. If they went to another member, both would handle them.
            for queue in held:
                if queue not in self.held and queue[0] in member.subscriptions:
                    self.held[queue] = member.name
                    self.meant[queue] = member.name
                    self._free.pop(queue, None)
                    member.granted[queue] = self.epoch

    def leave(self, name: str) -> bool:
        """Remove a member and release its queues. Return whether there was such a member."""
        if not self._remove(name):
            return False
        self.epoch += 1
        return True

    def _remove(self, name: str) -> bool:
        member = self.members.pop(name, None)
        if member is None:
            return False
        self._changed.pop(name, None)
        for queue in list(member.granted):
            self._release(member, queue)
        for topic in member.subscriptions:
            subscription, count = self._wanted.pop(topic)
            if count > 1:
                self._wanted[topic] = (subscription, count - 1)
        return True

    def expired(self, now: float) -> list[str]:
        """Return the members whose last heartbeat is too old."""
        return [member.name for member in self.members.values() if member.deadline < now]

    # ---- assignment

    def take_heartbeat(self, member: Member, held: Collection[Queue], now: float) -> bool:
        """Process a heartbeat; return whether a queue was released. ``held``: queues it still has messages of."""
        member.heard_at = now
        member.deadline = now + member.session_seconds
        kept = set(held)
        # A queue that is meant for the member stays granted even unnamed: it may not know of the grant yet.
        released = [q for q in member.granted if q not in kept and self.meant.get(q) != member.name]
        for queue in released:
            self._release(member, queue)
        if released:
            self._changed[member.name] = None
        return bool(released)

    def _release(self, member: Member, queue: Queue) -> None:
        member.granted.pop(queue, None)
        if self.held.get(queue) == member.name:
            del self.held[queue]
            if queue in self.meant:
                self._free[queue] = None

    def rebalance(self, queues: Collection[Queue]) -> bool:
        """Assign ``queues``, all that the members want, again. Return whether the assignment changed."""
        if (found := frozenset(queues)) != self._queues:
            self._queues = found
            self._release_deleted()
        if not self.clustering:
            return False
        wanted = {member.name: member.topics for member in self.members.values()}
        # The holder takes precedence over the member a queue is meant for: the latter has read nothing of it yet, so
        # taking the queue from it costs nothing.
        meant = assign(self._queues, wanted, {**self.meant, **self.held})
        if meant == self.meant:
            return False

        # Holders are told both of queues to give up and of those that they may keep after all.
        for queue, holder in self.held.items():
            if meant.get(queue) != holder or self.meant.get(queue) != holder:
                self._changed[holder] = None
        self.meant = meant
        self._free = dict.fromkeys(queue for queue in meant if queue not in self.held)
        self.epoch += 1
        return True

    def _release_deleted(self) -> None:
        """Release the queues that no longer exist or that no member wants."""
        # Here no queue is held by one member alone: ``_grant_all`` compares what each has with what it wants.
        if not self.clustering:
            self._changed.update(dict.fromkeys(self.members))
            return
        for queue in [queue for queue in self.held if queue not in self._queues]:
            holder = self.members[self.held[queue]]
            self._release(holder, queue)
            self.meant.pop(queue, None)
            self._free.pop(queue, None)
            self._changed[holder.name] = None

    def grant(self, may_grant: bool = True) -> None:
        """Grant every free queue to the member that it is meant for."""
        if not self.clustering:
            self._grant_all()
            return
        # A queue that is meant for a member that has left waits for the next ``rebalance``.
        free = [queue for queue in self._free if self.meant[queue] in self.members] if may_grant else []
        if free:
            self.epoch += 1
        for queue in free:
            name = self.meant[queue]
            del self._free[queue]
            self.held[queue] = name
            self.members[name].granted[queue] = self.epoch
            self._changed[name] = None

    def _grant_all(self) -> None:
        """Grant each member that joined, or whose queues changed, all queues that it wants."""
        for name in self._changed:
            member = self.members[name]
            wanted = {queue for queue in self._queues if queue[0] in member.subscriptions}
            if wanted != member.granted.keys():
                self.epoch += 1
                # Queues that it has keep their epoch, so its requests for them stay valid.
                member.granted = {queue: member.granted.get(queue, self.epoch) for queue in wanted}

    def regrant(self, queue: Queue) -> None:
        """Make the queue's holder start again at the committed offset: its requests of the old epoch are refused."""
        self.epoch += 1
        if (holder := self.held.get(queue)) is not None:
            self.members[holder].granted[queue] = self.epoch
            self._changed[holder] = None

    def assignment(self, member: Member) -> dict[Queue, int]:
        """Return the queues that the member may consume, each with the epoch of its grant."""
        if not self.clustering:
            return dict(member.granted)
        return {queue: epoch for queue, epoch in member.granted.items() if self.meant.get(queue) == member.name}

    def to_give_up(self, member: Member) -> set[Queue]:
        """Return the queues that the member holds but that are meant for others."""
        return member.granted.keys() - self.assignment(member).keys()

    def to_tell(self) -> list[Member]:
        """Return the members to notify of a changed assignment, each once."""
        found = []
        # ``_remove`` also removes a member from ``_changed``, so all of these exist.
        for member in [self.members[name] for name in self._changed]:
            # The last response may already have told it everything: its newest grant, and that it need give up nothing.
            newest = max(member.granted.values(), default=0)
            if member.told_epoch < newest or (member.told_epoch < self.epoch and self.to_give_up(member)):
                member.told_epoch = self.epoch
                found.append(member)
        self._changed.clear()
        return found

    def check_holder(self, name: str, epoch: int, topic: str, queue_id: int) -> None:
        """Raise ``MemberUnknown`` or ``EpochFenced`` unless the member holds the queue in that epoch."""
        member = self.find(name, epoch)
        granted = member.granted.get((topic, queue_id))
        # A grant that is newer than the request comes from a reset in between, which the request must not undo.
        if granted is None or granted > epoch:
            holder = self.held.get((topic, queue_id))
            other = holder not in (None, name)
            reason = f"{holder!r} holds it" if other else "its offset was reset, or the member released it"
            raise EpochFenced(
                f"member {name!r} of group {self.name} does not hold queue {queue_id} of topic {topic} in epoch "
                f"{epoch}: {reason}, and the group is at epoch {self.epoch}; send a heartbeat for the assignment",
                epoch=self.epoch,
            )


def _shown(subscription: MemberSubscription) -> str:
    parts = [f"tags {subscription.tags!r}"] if subscription.tags else []
    parts += [f"filter {subscription.filter!r}"] if subscription.filter else []
    return " and ".join(parts) or "all messages"
