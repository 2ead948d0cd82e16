"""Schedules that need one rule each: without it a promise is broken, with it none. Few random lives meet them."""

from __future__ import annotations

from collections.abc import Callable

from flintmq.broker.replication.core.rules import Rules

from .disk import Violation
from .member import Member
from .mutants import (
    AnswerWhileHandingOver,
    CompleteTooEarly,
    ForgetUnknownProposals,
    JoinTooEarly,
    KeepAnEpochWithTheSameStart,
    ShrinkBeforeItIsDone,
    TakeOwnLeasesForVacant,
)
from .registry import REGISTRY
from .world import World

WORLDS = range(20)
"""Seeds of a schedule whose result depends on how long messages take."""


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
    assert world.run(30.0, lambda: world.registry.config.in_sync == set("abc"))
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
    assert world.run(90.0, lambda: world.registry.config.in_sync == set("abc"))
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
    assert world.run(60.0, lambda: c.leads > 0)


def hand_over_without_learning_of_it(rules: Rules) -> None:
    """Let ``a`` propose ``b`` as the primary and not hear that it is done."""
    world, a, b, _ = whole_world(1, rules, quick_takeover=False)
    world.network.cut(REGISTRY, "a")
    a.switch("b")
    assert world.run(5.0, lambda: b.leads > 0)
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
    """Let the registry put ``c`` in sync without the primary's knowledge, and ``c`` be the last that is left.

    RocketMQ's issue 5663: the primary acknowledged without the new member.
    """
    world, a, b, c = whole_world(3, rules)
    c.crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.in_sync == set("ab"))
    world.run(1.0)
    world.network.cut(REGISTRY, "a")
    c.start()
    assert world.run(10.0, lambda: "c" in world.registry.config.in_sync)
    c.crash(power=True)
    world.run(2.0)
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


def join_and_be_the_last(rules: Rules) -> None:
    """Let ``c`` come back with an old log, and be the last that is left as soon as it is in sync."""
    world, a, b, c = whole_world(1, rules)
    c.crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.in_sync == set("ab"))
    world.run(5.0)
    c.start()
    assert world.run(30.0, lambda: "c" in world.registry.config.in_sync)
    a.crash(power=True)
    b.crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.primary == "c")
    a.start()
    b.start()
    world.check_progress(60.0)


SCHEDULES: dict[type[Rules], Callable[[Rules], None]] = {
    KeepAnEpochWithTheSameStart: lead_from_the_same_offset,
    CompleteTooEarly: replace_a_disk_under_a_new_primary,
    AnswerWhileHandingOver: hand_over_without_learning_of_it,
    TakeOwnLeasesForVacant: hand_over_and_remember_the_own_lease,
    ForgetUnknownProposals: add_a_member_without_learning_of_it,
    ShrinkBeforeItIsDone: remove_a_member_without_learning_of_it,
    JoinTooEarly: join_and_be_the_last,
}
"""Each schedule by the broken rule that it shows."""
