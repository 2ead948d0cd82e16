"""Schedules that need one half of a rule of the tables each."""

from __future__ import annotations

from flintmq.broker.replication.core.rules import Rules

from .member import Member
from .schedules import WORLDS, in_sync, joined, leads, must, streams, whole_world
from .tables import ACKNOWLEDGED, PROGRESS
from .world import World


def world_with_tables(seed: int, rules: Rules, *, min_in_sync: int = 2) -> tuple[World, Member, Member, Member]:
    """Return a world with tables, whose members are in sync under ``a`` and have the same, and the members."""
    world, a, b, c = whole_world(seed, rules, load=False, min_in_sync=min_in_sync, tables=True)
    a.change_table(ACKNOWLEDGED, "x")
    assert world.run(30.0, lambda: world.judge.changes == 1)
    world.run(1.0)
    return world, a, b, c


def lag_with_a_table(rules: Rules) -> None:
    """Let ``c`` have the whole log and an old table."""
    world, a, _, c = world_with_tables(1, rules)
    c.slow_tables = 60.0
    a.change_table(PROGRESS, "x")
    must(world.run(world.limits.lag_s + 2.0, in_sync(world, "ab")), "c lags with a table, and stays in sync")
    must(not world.run(20.0, joined(world, "c")), "c joins with an old table")


def hand_over_with_the_newest_tables(rules: Rules) -> None:
    """Let progress be made directly before a switch."""
    for seed in WORLDS:
        world, a, b, _ = world_with_tables(seed, rules)
        a.change_table(PROGRESS, "x")
        rows = dict(a.tables[PROGRESS].rows)
        a.switch("b")
        assert world.run(10.0, leads(b))
        must(b.tables[PROGRESS].rows == rows, f"seed {seed}: the switch lost progress")


def join_with_the_first_tables(rules: Rules) -> None:
    """Let ``b`` take over while ``c`` is away, and ``c`` come back: it needs the tables with which ``b`` began."""
    for slow in "bc":
        _take_over_and_join(rules, slow)


def _take_over_and_join(rules: Rules, slow: str) -> None:
    world, a, b, c = world_with_tables(1, rules)
    c.crash(power=True)
    assert world.run(30.0, in_sync(world, "ab"))
    world.run(1.0)
    a.change_table(ACKNOWLEDGED, "x")
    world.run(1.0)
    assert world.judge.changes == 2
    a.crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.primary == "b")
    world.members[slow].slow_tables = 60.0
    assert world.run(30.0, leads(b))
    c.start()
    assert world.run(10.0, streams(b, "c"))
    must(not world.run(world.limits.lag_s - 1.0, joined(world, "c")), "c joins without the tables")


def replace_a_disk_that_gets_no_tables(rules: Rules) -> None:
    """Let ``c`` lose its disk while it is in sync, and copy the log, but not the tables, before the others die."""
    world, a, b, c = world_with_tables(1, rules)
    for _ in range(10):
        a.produce()
    world.run(1.0)
    c.replace_disk()
    a.lines_are_full = True
    c.start()
    assert world.run(10.0, streams(a, "c"))
    world.run(2.0)
    assert c.disk.flushed == a.disk.end
    assert "c" in world.registry.config.in_sync
    for member in (a, b):
        member.crash(power=True)
    world.run(30.0)
    must(not c.leads, "c leads without the tables")
    a.lines_are_full = False
    for member in (a, b):
        member.start()
    assert world.run(90.0, lambda: c.disk.complete)


def join_with_what_was_confirmed_since(rules: Rules) -> None:
    """Let a change be confirmed without ``c``, which has all earlier ones and joins."""
    world, a, _, c = world_with_tables(1, rules)
    c.slow_tables = 60.0
    a.change_table(PROGRESS, "x")
    assert world.run(10.0, in_sync(world, "ab"))
    c.slow_tables = world.limits.lag_s - 1.0
    assert not world.run(59.0 - (world.now - 2.0) + 1.0, joined(world, "c"))
    a.change_table(ACKNOWLEDGED, "x")
    assert world.run(30.0, joined(world, "c"))
    must(c.disk.tables[ACKNOWLEDGED] == a.tables[ACKNOWLEDGED].rows, "c joins without a confirmed change")


def change_while_the_line_is_full(rules: Rules) -> None:
    """Let two versions of a table wait for followers that take no bytes."""
    world, a, _, _ = world_with_tables(1, rules)
    a.lines_are_full = True
    for key in "xy":
        a.change_table(ACKNOWLEDGED, key)
        world.run(0.5)
    assert world.judge.changes == 1
    a.lines_are_full = False
    must(world.run(5.0, lambda: world.judge.changes == 3), "the changes are not confirmed")


def connect_again_with_old_tables(rules: Rules) -> None:
    """Let ``b`` lose its connection, and not take the tables that it gets on the next one."""
    for seed in WORLDS:
        world, a, b, _ = world_with_tables(seed, rules, min_in_sync=3)
        for key in "xyzxyz":
            a.change_table(ACKNOWLEDGED, key)
            world.run(0.5)
        for one, other in ("ab", "ba"):
            world.network.cut(one, other)
        b.slow_tables = 60.0
        a.change_table(ACKNOWLEDGED, "x")
        world.run(world.limits.silence_s + 1.0)
        world.network.heal()
        world.run(3.0)


def lead_while_a_table_is_written(rules: Rules) -> None:
    """Let ``b`` take over while its disk still takes a table of ``a``."""
    world, a, b, _ = world_with_tables(1, rules)
    b.slow_tables = 3.0
    a.change_table(PROGRESS, "x")
    world.run(0.5)
    a.crash(power=False)
    assert world.run(30.0, leads(b))
    world.run(10.0)
