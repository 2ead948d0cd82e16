"""A group whose members join, leave, die and fall silent in any order: each queue has one member at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flintmq.broker.delivery.groups.group import CLUSTERING, ConsumerGroup, Member, MemberSubscription, Queue
from flintmq.protocol.errors import EpochFenced, MemberUnknown
from tests.remotes import FakeRemote

SESSION = 10.0
NAMES = tuple("abcdef")


@dataclass
class Client:
    """State of one member as it believes. ``working``: the queues of which it has messages."""

    name: str
    remote: FakeRemote
    epoch: int = 0
    working: dict[Queue, int] = field(default_factory=dict)
    giving_up: set[Queue] = field(default_factory=set)
    alive: bool = True


class GroupMachine(RuleBasedStateMachine):
    """Members that follow the protocol, and a clock that they do not see."""

    @initialize(queues=st.integers(1, 12))
    def begin(self, queues: int) -> None:
        self.queues: list[Queue] = [("t", number) for number in range(queues)]
        self.group = ConsumerGroup("g", CLUSTERING, 100)
        self.clients: dict[str, Client] = {}
        self.now = 0.0
        self.epochs = [100]
        self.settling = False

    def settle(self) -> None:
        self.group.rebalance(self.queues)
        self.group.grant(not self.settling)
        self.epochs.append(self.group.epoch)

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name in self.clients and self.clients[name].alive:
            return
        self.enter(Client(name, FakeRemote()))

    def enter(self, client: Client) -> None:
        self.clients[client.name] = client
        member = Member(
            client.name,
            client.remote,
            0,
            SESSION,
            {"t": MemberSubscription("t")},
            False,
            self.now,
            self.now + SESSION,
            self.now,
        )
        self.group.join(member, list(client.working))
        self.settle()
        client.epoch = 0
        self.told(client)

    @rule(data=st.data())
    def the_broker_starts_again(self, data: st.DataObject) -> None:
        """Restart the broker: members are forgotten; some come back and report their queues before any is assigned."""
        self.group = ConsumerGroup("g", CLUSTERING, self.group.epoch + 1000)
        self.settling = True
        for client in [c for c in list(self.clients.values()) if c.alive]:
            if data.draw(st.booleans()):
                self.enter(client)
            else:
                del self.clients[client.name]  # it never comes back, or as another member
        self.settling = False
        self.settle()

    def told(self, client: Client) -> None:
        member = self.group.find(client.name, client.epoch or self.group.epoch)
        client.epoch = self.group.epoch
        granted = self.group.assignment(member)
        client.giving_up = set(client.working) - granted.keys()
        for queue, since in granted.items():
            if client.working.get(queue) != since:
                client.working[queue] = since
        member.told_epoch = self.group.epoch

    @precondition(lambda self: any(client.alive for client in self.clients.values()))
    @rule(data=st.data(), finish=st.booleans())
    def heart_beat(self, data: st.DataObject, finish: bool) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients.values() if c.alive]))
        if finish:
            for queue in client.giving_up:
                client.working.pop(queue, None)
            client.giving_up = set()
        try:
            member = self.group.find(client.name, client.epoch)
        except MemberUnknown:
            del self.clients[client.name]  # it forgets what it had
            return
        if self.group.take_heartbeat(member, list(client.working), self.now):
            self.group.grant(not self.settling)  # like the broker: a heartbeat changes no assignment
            self.epochs.append(self.group.epoch)
        self.told(client)

    @precondition(lambda self: any(client.alive for client in self.clients.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients.values() if c.alive]))
        self.group.leave(client.name)
        del self.clients[client.name]
        self.settle()

    @precondition(lambda self: any(client.alive for client in self.clients.values()))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients.values() if c.alive]))
        client.alive = False

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name in self.group.expired(self.now):
            self.group.leave(name)
        self.settle()

    @rule(queue=st.integers(0, 11))
    def reset(self, queue: int) -> None:
        self.group.regrant(("t", queue))
        self.epochs.append(self.group.epoch)

    @invariant()
    def a_queue_is_worked_on_by_one_member_that_the_broker_knows(self) -> None:
        if not hasattr(self, "group"):
            return
        for queue in self.queues:
            members = [c.name for c in self.clients.values() if queue in c.working and c.name in self.group.members]
            assert len(members) <= 1 or self.all_but_one_are_fenced(queue, members)

    def all_but_one_are_fenced(self, queue: Queue, names: list[str]) -> bool:
        """Return whether all but one would be refused: those that were taken for dead and do not know it yet."""
        allowed = []
        for name in names:
            try:
                self.group.check_holder(name, self.clients[name].epoch, *queue)
                allowed.append(name)
            except (EpochFenced, MemberUnknown):
                pass
        return len(allowed) <= 1

    @invariant()
    def the_groups_cached_state_equals_its_recomputation(self) -> None:
        if hasattr(self, "group"):
            group = self.group
            assert group._free.keys() == group.meant.keys() - group.held.keys()
            held = {queue: name for name, member in group.members.items() for queue in member.granted}
            assert held == group.held
            assert group.topics() == {topic for member in group.members.values() for topic in member.subscriptions}

    @invariant()
    def epochs_only_grow(self) -> None:
        if hasattr(self, "epochs"):
            assert self.epochs == sorted(self.epochs)

    def teardown(self) -> None:
        """Send only heartbeats of live members: the group must settle, evenly and with all queues assigned."""
        if not hasattr(self, "group"):
            return
        for client in [c for c in self.clients.values() if not c.alive]:
            self.group.leave(client.name)
            del self.clients[client.name]
        self.settle()
        for _ in range(3):
            for client in list(self.clients.values()):
                self.heart_beat_of(client)
        members = self.group.members
        assert self.group.settled
        if members:
            counts = [len(member.granted) for member in members.values()]
            assert sum(counts) == len(self.queues)
            assert max(counts) - min(counts) <= 1
            for name, member in members.items():
                assert set(self.clients[name].working) == set(member.granted)

    def heart_beat_of(self, client: Client) -> None:
        for queue in client.giving_up:
            client.working.pop(queue, None)
        try:
            member = self.group.find(client.name, client.epoch)
        except MemberUnknown:
            del self.clients[client.name]
            return
        self.group.take_heartbeat(member, list(client.working), self.now)
        self.settle()
        self.told(client)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
pytestmark = pytest.mark.filterwarnings("error")
