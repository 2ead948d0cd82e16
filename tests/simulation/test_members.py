"""Operators change the members of a simulated set, and members stop in order, while other changes are on their way."""

from __future__ import annotations

import pytest

from flintmq.broker.replication.core.messages import PositionReport
from flintmq.broker.replication.core.replica import Replica
from flintmq.broker.replication.core.rules import Rules
from tests.simulation.member import Member
from tests.simulation.schedules import WORLDS, whole_world
from tests.simulation.world import World


def replica_of(member: Member) -> Replica:
    """Return the core of a member that runs."""
    assert member.replica is not None
    return member.replica


def is_above_minimum(world: World) -> bool:
    """Return whether enough members are in sync, and all of them are members."""
    config = world.registry.config
    return len(config.in_sync) >= config.min_in_sync and config.in_sync <= config.members


@pytest.mark.parametrize("seed", WORLDS)
def test_a_member_cannot_be_removed_while_another_one_is_being_taken_out(seed: int) -> None:
    world, a, b, _ = whole_world(seed, Rules())
    b.pause(60.0)
    assert world.run(20.0, lambda: replica_of(a).proposals != [])
    refused = replica_of(a).change_members(frozenset("ab"))
    assert not world.run(5.0, lambda: not is_above_minimum(world))
    assert refused is not None
    assert "too few members" in refused


@pytest.mark.parametrize("seed", WORLDS)
def test_a_member_that_lags_stays_in_sync_while_another_one_is_removed(seed: int) -> None:
    world, a, b, _ = whole_world(seed, Rules())
    b.pause(60.0)
    # The change is accepted directly before b is due: both would be one proposal.
    world.run(world.limits.lag_s - 0.2)
    assert replica_of(a).proposals == []
    assert replica_of(a).change_members(frozenset("ab")) is None
    assert not world.run(10.0, lambda: not is_above_minimum(world))
    assert world.registry.config.members == set("ab")


def test_of_two_changes_in_a_row_the_second_is_refused_until_the_first_is_done() -> None:
    world, a, _, _ = whole_world(3, Rules(), min_in_sync=1)
    assert replica_of(a).change_members(frozenset("ac")) is None
    assert replica_of(a).change_members(frozenset("ac")) is None  # the same one again
    refused = replica_of(a).change_members(frozenset("ab"))
    assert refused is not None
    assert "are being changed to a, c" in refused
    assert world.run(10.0, lambda: world.registry.config.members == set("ac"))
    world.run(1.0)
    assert replica_of(a).change_members(frozenset("a")) is None
    assert world.run(10.0, lambda: world.registry.config.members == set("a"))


def test_neither_a_switch_drops_a_change_of_the_members_nor_a_change_a_switch() -> None:
    world, a, _, _ = whole_world(4, Rules(), min_in_sync=1)
    assert replica_of(a).change_members(frozenset("ab")) is None
    refused = replica_of(a).switch("b", a.clock, 5.0)
    assert refused is not None
    assert "are being changed" in refused
    assert world.run(10.0, lambda: world.registry.config.members == set("ab"))
    world.run(1.0)
    assert replica_of(a).switch("b", a.clock, 5.0) is None
    refused = replica_of(a).change_members(frozenset("abc"))
    assert refused is not None
    assert "handed over to b" in refused


@pytest.mark.parametrize("seed", WORLDS)
def test_a_follower_that_stops_in_order_is_not_waited_for(seed: int) -> None:
    world, _, b, _ = whole_world(seed, Rules())
    assert replica_of(b).stop(b.clock)
    b._input("tick")  # carries out what the core asks for
    assert world.run(1.0, lambda: world.registry.config.in_sync == set("ac"))
    assert not world.run(3.0, lambda: "b" in world.registry.config.in_sync)
    b.crash(power=False)
    end, stopped_at = world.judge.safe_end, world.now
    assert world.run(5.0, lambda: world.judge.safe_end > end)
    assert world.now - stopped_at < 1.0  # the lag limit is 5 s
    b.start()
    world.check_progress(30.0)


def test_a_follower_that_is_needed_for_the_minimum_stays_in_sync_when_it_stops() -> None:
    world, _, b, c = whole_world(5, Rules())
    c.crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.in_sync == set("ab"))
    world.run(1.0)
    assert not replica_of(b).stop(b.clock)
    assert not world.run(5.0, lambda: not is_above_minimum(world))


def test_a_report_of_more_on_disk_than_was_written_ends_the_connection() -> None:
    """The primary has written more than it has sent, and a faulty follower says that it has all of it."""
    world, a, _b, _c = whole_world(6, Rules(), load=False)
    world.network.cut("a", "b")
    world.network.cut("a", "c")
    for _ in range(30):
        a.produce()
    primary = replica_of(a).primary
    assert primary is not None
    for name in "bc":
        follower = primary.followers[name]
        assert follower.connection is not None
        report = PositionReport(primary.config.epoch, follower.written, a.disk.end, complete=True)
        a._input("received", follower.connection, report)
    assert primary.confirmed < a.disk.end
    assert all(primary.followers[name].connection is None for name in "bc")
