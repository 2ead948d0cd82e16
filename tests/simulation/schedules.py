"""Schedules that need one half of a rule each: without it a promise is broken, with it none. Few random lives meet
them."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.replication.core.messages import Close, Hello, PositionReport, Refusal, SaveState, SendMessage
from flintmq.broker.replication.core.replica import Replica
from flintmq.broker.replication.core.rules import Rules

from .disk import Violation
from .member import Member
from .registry import REGISTRY
from .world import World

WORLDS = range(20)
"""Seeds of a schedule whose result depends on how long messages take."""


def replica_of(member: Member) -> Replica:
    """Return the core of a member that runs."""
    assert member.replica is not None
    return member.replica


def in_sync(world: World, names: str) -> Callable[[], bool]:
    """Return a condition: exactly these members are in sync."""
    return lambda: world.registry.config.in_sync == set(names)


def joined(world: World, name: str) -> Callable[[], bool]:
    """Return a condition: a member is in sync."""
    return lambda: name in world.registry.config.in_sync


def streams(primary: Member, name: str) -> Callable[[], bool]:
    """Return a condition: the primary sends the log to a member."""

    def holds() -> bool:
        leadership = replica_of(primary).primary
        return leadership is not None and leadership.followers[name].streaming

    return holds


def proposes(member: Member) -> Callable[[], bool]:
    """Return a condition: a proposal of a member is on its way."""
    return lambda: replica_of(member).proposals != []


def asks_for_the_lease(member: Member) -> Callable[[], bool]:
    """Return a condition: a member has asked for the lease once more, and has no answer yet."""
    asked = replica_of(member)._lease_asked
    return lambda: replica_of(member)._lease_asked not in (None, asked)


def leads(member: Member) -> Callable[[], bool]:
    """Return a condition: a member leads."""
    return lambda: member.leads > 0


def must(holds: bool, text: str) -> None:
    """Raise ``Violation`` unless a promise holds."""
    if not holds:
        raise Violation(text)


def whole_world(
    seed: int,
    rules: Rules,
    *,
    quick_takeover: bool = True,
    load: bool = True,
    min_in_sync: int = 2,
    tables: bool = False,
) -> tuple[World, Member, Member, Member]:
    """Return a world whose members ``a``, ``b`` and ``c`` are in sync under ``a``, and the members."""
    world = World(seed, quick_takeover=quick_takeover, rules=rules, min_in_sync=min_in_sync, tables=tables)
    if load:
        world.load(0.05)
    assert world.run(30.0, in_sync(world, "abc"))
    world.run(1.0)  # until the primary knows it
    a, b, c = world.members.values()
    return world, a, b, c


def lead_from_the_same_offset(rules: Rules) -> None:
    """Let ``a`` write a tail that no other member has, ``b`` lead from the same offset, and ``a`` come back and lead.

    RocketMQ 5.3.3 loses ten acknowledged messages in it (SYNC_FLUSH, all members in sync).
    """
    world, a, b, c = whole_world(1, rules, quick_takeover=False, load=False)
    for other in "bc":  # what a writes from now on stays there
        world.network.cut("a", other)
    for _ in range(10):
        a.produce()
    world.run(1.0)
    a.crash(power=False)
    c.pause(40.0)
    assert world.run(30.0, lambda: world.leader() is b)
    world.network.heal()
    for _ in range(20):
        b.produce()
    a.start()
    assert world.run(90.0, in_sync(world, "abc"))
    b.crash(power=True)
    assert world.run(30.0, lambda: world.leader() in (a, c))
    world.load(0.1)
    b.start()
    world.check_progress(60.0)


def replace_a_disk_under_a_new_primary(rules: Rules) -> None:
    """Let ``c`` lose its disk and copy from ``b``, which has just begun to lead and knows of nothing confirmed.

    ``b`` dies as soon as ``c`` calls its log complete.
    """
    world, a, b, c = whole_world(1, rules, load=False)
    for _ in range(100):
        a.produce()
    world.run(1.0)
    c.replace_disk()
    a.crash(power=True)
    b.crash(power=False)
    b.disk.confirmed = 0
    b.start()
    c.start()
    assert world.run(30.0, lambda: c.disk.complete)
    b.crash(power=True)
    assert world.run(60.0, leads(c))


def hand_over_without_learning_of_it(rules: Rules) -> None:
    """Let ``a`` propose ``b`` as the primary and not hear that it is done."""
    world, a, b, _ = whole_world(1, rules, quick_takeover=False)
    world.network.cut(REGISTRY, "a")
    a.switch("b")
    assert world.run(5.0, leads(b))
    world.network.heal()
    world.check_progress(60.0)


def hand_over_and_remember_the_own_lease(rules: Rules) -> None:
    """Let ``a`` hand over to ``b`` while the last that it knows of the lease is that it holds it; it stays in sync."""
    for seed in WORLDS:
        world, a, _, _ = whole_world(seed, rules, quick_takeover=False, min_in_sync=3)
        a.switch("b")
        world.run(5.0)
        if world.registry.config.primary != "b":
            raise Violation(f"seed {seed}: a took the leadership back")


def add_a_member_without_learning_of_it(rules: Rules) -> None:
    """Let the registry put ``c`` in sync without the primary's knowledge, the primary propose another configuration
    before it dies, and ``c`` be the last that is left: both proposals must count.

    RocketMQ's issue 5663: the primary acknowledged without the new member.
    """
    world, a, b, c = whole_world(3, rules)
    c.crash(power=True)
    assert world.run(30.0, in_sync(world, "ab"))
    world.run(1.0)
    world.network.cut(REGISTRY, "a")
    c.start()
    assert world.run(10.0, joined(world, "c"))
    c.crash(power=True)
    world.run(3.3)
    a.crash(power=True)
    b.crash(power=True)
    c.start()
    assert world.run(30.0, lambda: world.registry.config.primary == "c")
    world.network.heal()
    a.start()
    b.start()
    world.check_progress(60.0)


def remove_a_member_without_learning_of_it(rules: Rules) -> None:
    """Let ``a`` propose the set without ``c``, hear nothing, and ``c`` be the last that is left."""
    for seed in WORLDS:
        world, a, b, c = whole_world(seed, rules)
        world.registry.unknown = 1.0
        c.crash(power=True)
        world.run(world.limits.lag_s + 0.5)
        a.crash(power=True)
        b.crash(power=True)
        world.registry.unknown = 0.0
        c.start()
        world.run(20.0)
        a.start()
        b.start()
        world.check_progress(60.0)


def stop_while_the_lease_is_renewed(rules: Rules) -> None:
    """Let the process of ``a`` stand still between the request for its lease and the answer, nearly a lease long."""
    for seed in WORLDS:
        world, a, _, _ = whole_world(seed, rules, quick_takeover=False)
        assert world.run(10.0, asks_for_the_lease(a))
        a.pause(4.7)
        world.run(4.7)
        for other in (REGISTRY, "b", "c"):
            world.network.cut(other, "a")
            world.network.cut("a", other)
        for _ in range(800):
            world.run(0.01)
            a.read()


def join_a_new_primary(rules: Rules) -> None:
    """Let ``b`` lead again and know of nothing confirmed, and ``c`` follow with a slow disk, without the last record.

    It may not join before it has what the log had when the epoch began. Then ``b`` dies.
    """
    for seed in range(40):
        world, a, b, c = whole_world(seed, rules, load=False)
        for _ in range(20):
            a.produce()
        world.run(1.0)
        c.crash(power=True)
        assert world.run(30.0, in_sync(world, "ab"))
        world.run(1.0)
        for _ in range(2):
            a.produce()
        world.run(1.0)
        a.crash(power=True)
        b.crash(power=False)
        b.disk.confirmed = c.disk.confirmed = 0
        b.start()
        assert world.run(30.0, leads(b))
        c.start()
        if not world.run(8.0, streams(b, "c")):
            continue
        c.disk_seconds = 60.0
        world.run(8.0, joined(world, "c"))
        b.crash(power=True)
        c.crash(power=True)
        c.disk_seconds = 0.003
        c.start()
        world.run(20.0)
        a.start()
        b.start()
        world.load(0.1)
        world.check_progress(90.0)


def join_before_the_mark_is_saved(rules: Rules) -> None:
    """Let ``c`` copy everything to a replaced disk that is slow to save that it is complete; its power fails as soon as
    it is in sync. It is one of those who may lead, so its disk must know that it is complete."""
    for seed in range(4):
        world, a, _, c = whole_world(seed, rules, load=False)
        for _ in range(10):
            a.produce()
        world.run(1.0)
        c.replace_disk()
        assert world.run(30.0, in_sync(world, "ab"))
        c.start()
        if not world.run(8.0, streams(a, "c")):
            continue
        c.slow_step = SaveState, 40.0
        world.run(60.0, joined(world, "c"))
        c.crash(power=True)
        must(c.disk.complete or "c" not in world.registry.config.in_sync, "c is in sync and cannot lead")


def stop_leading(rules: Rules) -> None:
    """Let ``a`` lead, confirm, and step down: it still knows what it confirmed itself, and would refuse to cut that."""
    world, a, _, _ = whole_world(1, rules, load=False)
    for _ in range(10):
        a.produce()
    world.run(1.0)
    end = world.judge.safe_end
    world.network.cut("a", REGISTRY)
    assert world.run(15.0, lambda: not a.leads)
    must(replica_of(a).log.confirmed == end > 0, "a has forgotten what it confirmed itself")


def report_what_cannot_be(rules: Rules) -> None:
    """Let a faulty follower report more than it was sent, and less than it reported before."""
    for written, flushed in ((30, 0), (-10, -10), (0, -10)):
        world, a, b, _ = whole_world(2, rules, load=False)
        for _ in range(10):
            a.produce()
        world.run(1.0)
        replica = replica_of(a)
        primary = replica.primary
        assert primary is not None
        follower, end = primary.followers["b"], a.disk.end
        assert follower.connection is not None
        report = PositionReport(primary.config.epoch, end + written, end + flushed, complete=True)
        replica.received(follower.connection, report, a.clock)
        must(follower.connection is None, f"a believes that {b.name} has {report}")
        must(primary.flushed["b"] == end, f"a counts {report}")


def report_in_another_epoch(rules: Rules) -> None:
    """Let a report of an earlier and of a later epoch arrive after new records: neither says that they are on disk."""
    for epoch in (-1, 1):
        world, a, _, _ = whole_world(2, rules, load=False)
        world.network.cut("a", "b")
        for _ in range(3):
            a.produce()
        world.run(0.1)
        primary = replica_of(a).primary
        assert primary is not None
        follower = primary.followers["b"]
        assert follower.connection is not None
        assert follower.sent == a.disk.end > primary.flushed["b"]
        report = PositionReport(primary.config.epoch + epoch, a.disk.end, a.disk.end, complete=True)
        replica_of(a).received(follower.connection, report, a.clock)
        must(primary.flushed["b"] < a.disk.end, "a report of another epoch counts")


def follow_twice(rules: Rules) -> None:
    """Let another broker greet with the id of a member whose connection lives."""
    world, a, b, _ = whole_world(2, rules)
    replica = replica_of(a)
    primary = replica.primary
    assert primary is not None
    before = primary.followers["b"].connection
    replica.received(
        -1000, Hello(world.registry.config.cluster_id, primary.config.epoch, "b", b.disk.end, b.disk.epochs), a.clock
    )
    refused = [each for each in replica.actions if isinstance(each, SendMessage) and each.connection == -1000]
    must([type(each.message) for each in refused] == [Refusal], "a second connection of b is accepted")
    must(Close(-1000) in replica.actions and primary.followers["b"].connection == before, "the connection of b ended")


def take_over_without_the_old_primary(rules: Rules) -> None:
    """Let ``b`` take over with ``a`` in sync, because the minimum needs it; ``a`` stays away, and ``c`` comes back."""
    world, a, b, c = whole_world(1, rules)
    c.crash(power=True)
    assert world.run(30.0, in_sync(world, "ab"))
    a.crash(power=True)
    assert world.run(30.0, leads(b))
    c.start()
    must(world.run(world.limits.lag_s - 1.0, in_sync(world, "bc")), "a is gone, and waited for")


def come_back_after_a_takeover(rules: Rules) -> None:
    """Let the old primary come back: a set in which nothing fails does not change."""
    world, a, _, _ = whole_world(1, rules, min_in_sync=1)
    a.crash(power=False)
    assert world.run(30.0, lambda: world.leader() is not None and world.leader() is not a)
    a.start()
    assert world.run(30.0, in_sync(world, "abc"))
    check_unchanged(world, 8.0)


def connect_again_soon(rules: Rules) -> None:
    """Let a follower lose its process for less than the lag limit: it stays in sync."""
    world, _, b, _ = whole_world(1, rules, min_in_sync=1)
    b.crash(power=False)
    world.after(1.0, b.start)
    check_unchanged(world, 8.0)


def check_unchanged(world: World, seconds: float) -> None:
    """Check that the configuration does not change in this time."""
    config = world.registry.config
    must(not world.run(seconds, lambda: world.registry.config != config), "the configuration changed without a reason")


def remove_while_another_is_taken_out(rules: Rules) -> None:
    """Let an operator remove ``c`` in the moment in which ``b`` is taken out because it lags."""
    for seed in WORLDS:
        world, a, b, _ = whole_world(seed, rules)
        b.pause(60.0)
        assert world.run(20.0, proposes(a))
        a.change_members(frozenset("ab"))
        world.run(5.0)


def change_twice(rules: Rules) -> None:
    """Let an operator remove ``b`` and then ``c``, the second before the first is done."""
    world, a, _, _ = whole_world(3, rules, min_in_sync=1)
    accepted = [replica_of(a).change_members(frozenset(members)) is None for members in ("ac", "ab")]
    world.run(10.0)
    wanted = set("abc") - {name for name, took in zip("bc", accepted, strict=True) if took}
    must(world.registry.config.members == wanted, f"members are {sorted(world.registry.config.members)}")


def join_below_what_is_confirmed(rules: Rules) -> None:
    """Let ``c`` follow with a slow disk, one acknowledged record behind, and be the last that is left."""
    for seed in WORLDS:
        world, a, b, c = whole_world(seed, rules, load=False)
        c.crash(power=True)
        assert world.run(30.0, in_sync(world, "ab"))
        for _ in range(5):
            a.produce()
        world.run(1.0)
        c.start()
        assert world.run(8.0, streams(a, "c"))
        c.disk_seconds = 60.0
        a.produce()
        world.run(8.0, joined(world, "c"))
        for member in (a, b, c):
            member.crash(power=True)
        c.disk_seconds = 0.003
        c.start()
        world.run(20.0)


def replace_a_disk_that_the_minimum_needs(rules: Rules) -> None:
    """Let ``c`` lose its disk and stay in sync, because the minimum needs it; it is the last that is left while it
    copies."""
    world, a, b, c = whole_world(1, rules, load=False, min_in_sync=3)
    for _ in range(100):
        a.produce()
    world.run(1.0)
    c.replace_disk()
    c.start()
    assert world.run(30.0, lambda: c.disk.complete)
    a.crash(power=True)
    b.crash(power=True)
    world.run(20.0)


def hand_over_to_a_disk_that_is_lost(rules: Rules) -> None:
    """Let ``a`` hand over to ``b``, the only other one in sync, whose disk is lost in this moment."""
    world, a, b, c = whole_world(1, rules, min_in_sync=1)
    c.crash(power=True)
    assert world.run(30.0, in_sync(world, "ab"))
    world.run(1.0)
    a.switch("b")
    assert world.run(5.0, lambda: world.registry.config.primary == "b")
    b.replace_disk()
    must(world.run(30.0, lambda: world.leader() is a), "no member can lead")


def begin_an_epoch_too_late(rules: Rules) -> None:
    """Let ``b`` be elected, save its epoch slowly, and not hear that ``c`` leads the next one."""
    world, a, b, c = whole_world(1, rules, quick_takeover=False)
    b.slow_step = SaveState, 9.0  # not long enough for b to give up
    a.crash(power=True)
    assert world.run(20.0, lambda: replica_of(b).primary is not None)
    world.network.cut("b", REGISTRY)
    world.network.cut(REGISTRY, "b")
    assert world.run(10.0, leads(c))
    a.start()
    end = world.judge.safe_end
    assert world.run(10.0, lambda: world.judge.safe_end > end)
    world.run(20.0)
