"""One consumer group: its members, who of them holds which queue, and who is to hold it.

A queue passes from one member to another in two steps, so that a message is with one of them at a time. It is *meant*
for the new member at once; the old one still *holds* it until it says, in a heartbeat, that it has finished and
committed what it had of it, leaves, or is gone. Only then the new one is *granted* it.

Every change of the assignment raises the group's epoch. A grant carries the epoch at which it was made, and what a
member does in an older one is refused: a member that was away cannot commit over who came after it.

What a heartbeat costs does not depend on how many members and queues there are: the group keeps which queues are free,
and which members have something to be told. Only ``rebalance`` looks at all of them.

No loop, no store and no clock: the coordinator passes in what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from ...protocol.errors import EpochFenced, MemberNameTaken, MemberUnknown, SubscriptionIllegal
from .assignment import Queue, assign
from .remote import Remote

CLUSTERING = "clustering"
BROADCASTING = "broadcasting"
EMPTY, REBALANCING, STABLE = "empty", "rebalancing", "stable"
STATES = (EMPTY, REBALANCING, STABLE)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic."""

    topic: str
    tags: str = ""
    filter: str = ""


@dataclass(slots=True, eq=False)
class Member:
    """One member. ``granted``: the queues that it holds, and the epoch since which; times are seconds."""

    name: str
    remote: Remote
    joined_epoch: int
    session_seconds: float
    subscriptions: dict[str, Subscription]
    orderly: bool
    joined_at: float
    deadline: float
    heard_at: float
    granted: dict[Queue, int] = field(default_factory=dict)
    begins: dict[Queue, int] = field(default_factory=dict)
    """Where it was told to begin, in a broadcasting group: it has committed nothing of these queues then."""
    told_epoch: int = 0
    """The epoch of the last answer to it, or of the last notice that there is a newer one."""
    forget: Callable[[], None] = field(default=lambda: None)
    """Nobody need be told any more when its connection goes."""
    topics: frozenset[str] = field(init=False)
    """What it wants, for ``assign``."""

    def __post_init__(self) -> None:
        self.topics = frozenset(self.subscriptions)


class ConsumerGroup:
    """See the module. ``epoch``: where it begins; larger than of any group of this name before."""

    def __init__(self, name: str, mode: str, epoch: int) -> None:
        self.name = name
        self.mode = mode
        self.epoch = epoch
        self.members: dict[str, Member] = {}
        self.meant: dict[Queue, str] = {}
        self.held: dict[Queue, str] = {}
        self._queues: frozenset[Queue] = frozenset()
        self._wanted: dict[str, tuple[Subscription, int]] = {}
        """By topic: what its members want of it, all the same, and how many they are."""
        self._free: dict[Queue, None] = {}
        """Queues that are meant for a member and that nobody holds."""
        self._changed: dict[str, None] = {}
        """Members whose queues are not those that they were told last."""

    @property
    def clustering(self) -> bool:
        """Whether the members share the messages; else each gets all."""
        return self.mode == CLUSTERING

    @property
    def settled(self) -> bool:
        """Whether every queue is with the member that it is meant for."""
        return self.meant == self.held

    @property
    def state(self) -> str:
        """One of ``STATES``: nobody is in it, queues have still to pass to another member, or neither."""
        if not self.members:
            return EMPTY
        return STABLE if self.settled or not self.clustering else REBALANCING

    def topics(self) -> set[str]:
        """All topics that a member wants."""
        return set(self._wanted)

    # ---- members come and go

    def find(self, name: str, epoch: int) -> Member:
        """The member of that name that got ``epoch``. Raises ``MemberUnknown`` or ``EpochFenced``."""
        member = self.members.get(name)
        if member is None:
            raise MemberUnknown(
                f"group {self.name} has no member {name!r}: its session ran out, it left, or the broker was started "
                "again; join again with epoch 0"
            )
        if epoch < member.joined_epoch:
            raise EpochFenced(
                f"member {name!r} of group {self.name} joined anew at epoch {member.joined_epoch}; what speaks of "
                f"epoch {epoch} is an earlier one of the same name: stop it, or give it a name of its own",
                epoch=member.joined_epoch,
            )
        return member

    def check_join(self, name: str, remote: Remote, mode: str, subscriptions: Mapping[str, Subscription]) -> None:
        """Raise where a member cannot join: a live one has its name, or the group consumes otherwise."""
        before = self.members.get(name)
        if before is not None and before.remote is not remote and not before.remote.lost:
            raise MemberNameTaken(
                f"group {self.name} has a live member {name!r}, from {before.remote.address[0]}:"
                f"{before.remote.address[1]}; give each member a name of its own, or none"
            )
        others = len(self.members) - (before is not None)
        if others and mode != self.mode:
            raise SubscriptionIllegal(
                f"group {self.name} is {self.mode}, and {name!r} wants {mode}: all members of a group consume in the "
                "same way; use another group, or stop the others first"
            )
        for topic, subscription in subscriptions.items():
            theirs, _ = self._wanted.get(topic, (subscription, 0))
            if theirs == subscription:
                continue
            for other in self.members.values():
                if other.name != name and topic in other.subscriptions:
                    raise SubscriptionIllegal(
                        f"member {other.name!r} of group {self.name} wants of topic {topic} {_shown(theirs)}, and "
                        f"{name!r} {_shown(subscription)}: what one passes over the other would miss; use another "
                        "group, or stop the others first"
                    )

    def join(self, member: Member, held: Collection[Queue]) -> None:
        """A member joins, or joins anew. Of ``held``, what it says it still has, it keeps what nobody else holds."""
        self._remove(member.name)
        self.epoch += 1
        member.joined_epoch = self.epoch
        self.members[member.name] = member
        self._changed[member.name] = None
        for topic, subscription in member.subscriptions.items():
            self._wanted[topic] = (subscription, self._wanted.get(topic, (subscription, 0))[1] + 1)
        if self.clustering:
            for queue in held:
                if queue not in self.held and queue[0] in member.subscriptions:
                    self.held[queue] = member.name
                    self.meant[queue] = member.name
                    self._free.pop(queue, None)
                    member.granted[queue] = self.epoch

    def leave(self, name: str) -> bool:
        """A member goes, and lets go of all its queues; whether it was there."""
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
        """Members that were not heard of for too long."""
        return [member.name for member in self.members.values() if member.deadline < now]

    # ---- queues move

    def heard(self, member: Member, held: Collection[Queue], now: float) -> bool:
        """A heartbeat: ``held`` are the queues that the member still has messages of. Return whether it let any go."""
        member.heard_at = now
        member.deadline = now + member.session_seconds
        kept = set(held)
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
        """Say anew who is to hold which of ``queues``, all that the members want; whether something changed."""
        if (found := frozenset(queues)) != self._queues:
            self._queues = found
            self._let_go_of_the_rest()
        if not self.clustering:
            return False
        wanted = {member.name: member.topics for member in self.members.values()}
        # Who holds a queue keeps it if that is fair: what is only meant for somebody moves without a cost.
        meant = assign(self._queues, wanted, {**self.meant, **self.held})
        if meant == self.meant:
            return False
        for queue, holder in self.held.items():
            if meant.get(queue) != holder or self.meant.get(queue) != holder:
                self._changed[holder] = None
        self.meant = meant
        self._free = dict.fromkeys(queue for queue in meant if queue not in self.held)
        self.epoch += 1
        return True

    def _let_go_of_the_rest(self) -> None:
        """The queues are others now: of those that are gone nothing can be consumed."""
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
        """Give every queue that nobody holds to the member that it is meant for."""
        if not self.clustering:
            self._grant_all()
            return
        # What is meant for somebody who is gone waits for the next ``rebalance``.
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
        """Give each member that joined, or whose queues are others now, all queues that it wants."""
        for name in self._changed:
            member = self.members[name]
            wanted = {queue for queue in self._queues if queue[0] in member.subscriptions}
            if wanted != member.granted.keys():
                self.epoch += 1
                member.granted = {queue: member.granted.get(queue, self.epoch) for queue in wanted}

    def regrant(self, queue: Queue) -> None:
        """Make who holds the queue begin anew, at what is committed now: what it does in the old epoch is refused."""
        self.epoch += 1
        if (holder := self.held.get(queue)) is not None:
            self.members[holder].granted[queue] = self.epoch
            self._changed[holder] = None

    def assignment(self, member: Member) -> dict[Queue, int]:
        """The queues that the member may consume, and the epoch since which."""
        if not self.clustering:
            return dict(member.granted)
        return {queue: epoch for queue, epoch in member.granted.items() if self.meant.get(queue) == member.name}

    def to_give_up(self, member: Member) -> set[Queue]:
        """The queues that the member holds and that are meant for others."""
        return member.granted.keys() - self.assignment(member).keys()

    def to_tell(self) -> list[Member]:
        """Members whose assignment changed since they were last told anything, once each."""
        found = []
        for member in [self.members[name] for name in self._changed]:
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
        if granted is None or granted > epoch:
            holder = self.held.get((topic, queue_id))
            whose = f"{holder!r} holds it" if holder not in (None, name) else "its offset was reset, or it was given up"
            raise EpochFenced(
                f"member {name!r} of group {self.name} does not hold queue {queue_id} of topic {topic} in epoch "
                f"{epoch}: {whose}, and the group is at epoch {self.epoch}; send a heartbeat for the assignment",
                epoch=self.epoch,
            )


def _shown(subscription: Subscription) -> str:
    parts = [f"tags {subscription.tags!r}"] if subscription.tags else []
    parts += [f"filter {subscription.filter!r}"] if subscription.filter else []
    return " and ".join(parts) or "all messages"
