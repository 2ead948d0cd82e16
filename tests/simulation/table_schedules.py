"""Schedules that need one half of a rule of the tables each."""

from __future__ import annotations

from flintmq.broker.replication.core.rules import Rules

from .member import Member
from .rule_schedules import in_sync, joined, leads, must, replica_of
from .schedules import WORLDS, whole_world
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


def change_a_table_twice(rules: Rules) -> None:
    """Let two changes of a table wait for ``b``, whose disk is slow; ``b`` leads before it has taken them."""
    world, a, b, _ = world_with_tables(1, rules)
    for member in (b,):
        member.slow_tables = 3.0
    for key in "xyz":
        a.change_table(ACKNOWLEDGED, key)
        world.run(0.5)
    world.run(10.0)
    assert replica_of(a).primary is not None
