"""The replication core in a simulated world: lives full of faults, schedules that others got wrong, broken rules."""

from __future__ import annotations

import pytest

from flintmq.broker.replication.core.configuration import Epochs
from flintmq.broker.replication.core.messages import Close, LogPiece, PositionReport
from flintmq.broker.replication.core.replica import Role
from flintmq.broker.replication.core.rules import Rules
from tests.simulation.chaos import run_seed, run_seeds
from tests.simulation.disk import Disk, Violation
from tests.simulation.mutants import MUTANTS, KeepReportsOfOldDisks
from tests.simulation.registry import REGISTRY
from tests.simulation.rule_table import HALVES, RANDOM
from tests.simulation.schedules import whole_world
from tests.simulation.world import World

SEEDS, MORE_SEEDS = range(60), range(60, 300)
SEEDS_MAX = 10_000
"""A broken rule must be seen within this many seeds."""
SHOWN_BY_SCHEDULES = {half.mutant for half in HALVES if half.shown_by is not RANDOM}


def name_of(mutant: type[Rules]) -> str:
    """Return the name of a broken rule."""
    return mutant.__name__


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.long(seconds=50))], ids=str)
def test_a_set_keeps_its_promises_through_any_faults(seeds: range) -> None:
    worlds = run_seeds(seeds)
    assert sum(world.judge.acknowledged for world in worlds) > 100 * len(seeds)
    assert sum(world.judge.leaderships for world in worlds) > 4 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, marks=[pytest.mark.long(seconds=40)] if each is KeepReportsOfOldDisks else [])
        for each in MUTANTS
        if each not in SHOWN_BY_SCHEDULES
    ],
    ids=name_of,
)
def test_random_lives_show_a_broken_rule(mutant: type[Rules]) -> None:
    with pytest.raises(Violation):
        run_seeds(range(SEEDS_MAX), mutant())


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = run_seed(7), run_seed(7)
    assert (one.now, one.judge.safe_end, one.registry.state) == (other.now, other.judge.safe_end, other.registry.state)


def test_every_rule_has_a_mutant() -> None:
    rules = {name for name in vars(Rules) if not name.startswith("_")}
    broken = {name for mutant in MUTANTS for name in vars(mutant) if not name.startswith("_")}
    # Tests below break the first two. What the last decides is safe by the others: it keeps a set able to work.
    assert rules - broken == {"may_cut", "is_current", "next_in_sync"}


# ---- schedules ----


@pytest.fixture
def world() -> World:
    """Return three members that follow ``a``, all in sync."""
    return whole_world(1, Rules())[0]


def test_a_killed_primary_is_replaced_without_waiting_for_its_lease(world: World) -> None:
    world.members["a"].crash(power=False)
    end, died_at = world.judge.safe_end, world.now
    assert world.run(10.0, lambda: world.judge.safe_end > end)
    assert world.now - died_at < 2.0  # the lease lasts 5 s


def test_a_primary_whose_host_is_gone_is_replaced_after_its_lease(world: World) -> None:
    world.members["a"].crash(power=True)
    end, died_at = world.judge.safe_end, world.now
    assert world.run(15.0, lambda: world.judge.safe_end > end)
    assert 3.0 < world.now - died_at < 7.0


def test_a_switch_costs_less_than_half_a_second(world: World) -> None:
    world.members["a"].switch("b")
    asked_at = world.now
    assert world.run(5.0, lambda: world.leader() is world.members["b"])
    end = world.judge.safe_end
    assert world.run(5.0, lambda: world.judge.safe_end > end)
    assert world.now - asked_at < 0.5


def test_the_target_of_a_switch_may_be_slow_to_take_the_lease(world: World) -> None:
    world.members["a"].switch("b")
    assert world.run(5.0, lambda: world.registry.config.primary == "b")
    world.members["b"].pause(0.3)
    world.run(5.0)
    assert (world.registry.config.primary, world.registry.config.epoch) == ("b", 2)


def test_a_switch_waits_for_a_member_that_is_just_being_taken_out(world: World) -> None:
    a = world.members["a"]
    world.members["b"].pause(world.limits.lag_s + 0.05)
    assert world.run(10.0, lambda: a.replica is not None and a.replica.proposals != [])
    a.switch("b")
    world.run(10.0)
    config = world.registry.config
    assert config.primary in config.in_sync


def test_a_primary_that_reaches_the_registry_but_no_member_gives_up(world: World) -> None:
    for other in "bc":
        world.network.cut("a", other)
        world.network.cut(other, "a")
    end = world.judge.safe_end
    assert world.run(60.0, lambda: world.judge.safe_end > end)
    assert world.leader() in (world.members["b"], world.members["c"])


def test_a_primary_whose_disk_hangs_gives_up(world: World) -> None:
    world.members["a"].disk_seconds = 1e9
    end = world.judge.safe_end
    assert world.run(30.0, lambda: world.judge.safe_end > end + 10)
    assert world.leader() in (world.members["b"], world.members["c"])


def test_a_member_whose_disk_hangs_gives_back_a_leadership_that_it_cannot_begin(world: World) -> None:
    a, b, c = world.members.values()
    b.disk_seconds = 1e9
    a.crash(power=False)
    assert world.run(10.0, lambda: world.registry.config.primary == "b")
    a.start()
    end = world.judge.safe_end
    assert world.run(60.0, lambda: world.judge.safe_end > end)
    assert world.leader() is c


def test_a_primary_that_loses_the_registry_stops_before_another_leads(world: World) -> None:
    world.network.cut("a", REGISTRY)
    assert world.run(15.0, lambda: not world.members["a"].leads)
    assert world.registry.config.primary == "a"  # no other member leads yet
    end = world.judge.safe_end
    assert world.run(15.0, lambda: world.judge.safe_end > end)


def test_two_members_of_three_may_lose_their_disks_one_after_another(world: World) -> None:
    for name in "ab":
        world.members[name].replace_disk()
        world.run(1.0)
        world.members[name].start()
        assert world.run(60.0, world.is_whole)


def test_no_member_leads_if_the_last_members_in_sync_lost_their_disks(world: World) -> None:
    world.members["c"].crash(power=True)
    assert world.run(30.0, lambda: world.registry.config.in_sync == {"a", "b"})
    for name in "ab":
        world.members[name].replace_disk()
        world.members[name].start()
    world.members["c"].start()
    world.run(120.0)
    assert not any(member.leads for member in world.members.values())


class CutEverything(Rules):
    """Tell a follower that it has nothing in common with the primary, once ``broken``."""

    broken = False

    def cut_point(self, ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int:
        return 0 if self.broken else super().cut_point(ours, our_end, theirs, their_end)


class CutWhatIsConfirmed(CutEverything):
    """Obey a primary that says so."""

    def may_cut(self, to: int, confirmed: int) -> bool:
        return True


def follow_a_primary_that_cuts_everything(world: World) -> None:
    """Let ``b`` follow again and then be the only one that is left."""
    world.members["b"].start()
    world.run(2.0, lambda: world.members["b"].disk.end == 0)
    for name in "ac":
        world.members[name].crash(power=True)
    world.check_progress(60.0)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (CutEverything(), "b stopped: the primary's history differs at 0"),
        (CutWhatIsConfirmed(), "acknowledges .* which is on 1 disks|other records|below"),
    ],
)
def test_a_follower_stops_before_it_cuts_what_was_confirmed(rules: CutEverything, text: str) -> None:
    world = World(1, rules=rules)
    world.load(0.05)
    assert world.run(30.0, world.is_whole)
    world.members["b"].crash(power=False)
    world.members["b"].disk.note_confirmed(world.judge.safe_end)
    rules.broken = True
    with pytest.raises(Violation, match=text):
        follow_a_primary_that_cuts_everything(world)


def test_a_store_of_another_set_is_left_alone() -> None:
    world = World(1)
    world.members["b"].crash(power=False)
    world.members["b"].disk = Disk("other", complete=True)
    world.members["b"].start()
    with pytest.raises(Violation, match="b stopped: this store belongs to the set other, the registry has one"):
        world.run(30.0)


def test_an_old_copy_of_the_registry_stops_the_members(world: World) -> None:
    world.members["a"].switch("b")
    assert world.run(10.0, lambda: world.leader() is world.members["b"])
    old = world.registry.config
    world.registry.config = type(old)(old.cluster_id, 0, "a", old.in_sync, old.members, old.min_in_sync)
    world.registry.version += 1
    with pytest.raises(Violation, match="is at epoch 0, this store is further"):
        world.run(30.0)


def test_a_follower_begins_from_scratch_if_its_records_were_deleted(world: World) -> None:
    c = world.members["c"]
    c.crash(power=True)
    missing = c.disk.end
    while world.members["a"].disk.begin <= missing:
        world.run(2.0)
        world.members["a"].delete_oldest()
    c.start()
    assert world.run(60.0, world.is_whole)
    assert c.disk.begin > missing
    assert c.replica is not None
    assert c.replica.role is Role.FOLLOWER


def test_a_report_of_another_epoch_does_not_count(world: World) -> None:
    a = world.members["a"].replica
    assert a is not None
    assert a.primary is not None
    connection, before = a.primary.followers["b"].connection, dict(a.primary.flushed)
    assert connection is not None
    a.received(connection, PositionReport(0, a.log.end, a.log.end, True), world.now)
    assert a.primary.flushed == before


def test_a_piece_of_another_epoch_ends_the_connection(world: World) -> None:
    b = world.members["b"].replica
    assert b is not None
    b.received(2, LogPiece(2, b.log.end, b.log.end + 5, b.log.end + 5), world.now)
    assert b.actions == [Close(2)]
