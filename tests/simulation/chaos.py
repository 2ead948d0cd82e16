"""Faults at random times: crashes, power cuts, pauses, partitions, slow and lost disks, no registry, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from flintmq.broker.replication.core.rules import Rules

from .member import Member
from .registry import REGISTRY
from .world import World


class Chaos:
    """Faults in one world. Each ends by itself; ``heal`` ends all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random: Random = world.random
        self._replaced: Member | None = None
        self._over = False
        faults: dict[Callable[[], None], float] = {
            self._kill: 4.0,
            self._cut_power: 3.0,
            self._cut_power_everywhere: 0.5,
            self._die_at_an_action: 3.0,
            self._pause: 4.0,
            self._partition: 6.0,
            self._slow_disk: 3.0,
            self._slow_network: 1.0,
            self._registry_away: 1.0,
            self._registry_unknown: 2.0,
            self._replace_disk: 2.0,
            self._switch: 2.0,
            self._remove: 1.0,
            self._change_members_at_once: 2.0,
            self._registry_node_fails: 2.0,
            self._delete_oldest: 2.0,
        }
        # A few kinds a run: combinations of the same kinds are found sooner than all kinds at once.
        kinds = self._random.sample(list(faults), self._random.randint(3, len(faults)))
        self._kinds, self._weights = kinds, [faults[kind] for kind in kinds]
        self._pause_between = self._random.choice((0.3, 1.0, 3.0))

    def begin(self) -> None:
        """Let faults happen from now on."""
        self._world.after(self._random.expovariate(1.0 / self._pause_between), self._happen)

    def _happen(self) -> None:
        if not self._over:
            self._random.choices(self._kinds, self._weights)[0]()
            self.begin()

    def heal(self) -> None:
        """End every fault."""
        self._over = True
        world = self._world
        world.network.heal()
        world.network.slowness = 0.002
        world.registry.away, world.registry.unknown = False, 0.0
        for node in world.registry.nodes:
            node.away, node.late = False, 0.0
        for member in world.members.values():
            member.disk_seconds, member.crash_chance = 0.003, 0.0
            if not member.runs:
                member.start()
        self._add_all()

    def _add_all(self) -> None:
        """Make every member one of the set again, however often the leader changes or a removal is applied late."""
        world = self._world
        is_complete = world.registry.config.members == world.members.keys()
        leader = world.leader()
        if leader is not None and not is_complete:
            leader.change_members(frozenset(world.members))
        if self._over or not is_complete:
            world.after(1.0, self._add_all)

    # ---- faults ----

    def _any(self) -> Member:
        leader = self._world.leader()
        if leader is not None and self._random.random() < 0.5:
            return leader
        return self._random.choice(list(self._world.members.values()))

    def _start_later(self, member: Member, seconds: float) -> None:
        def start() -> None:
            if not member.runs:
                member.start()

        self._world.after(self._random.uniform(0.1, seconds), start)

    def _kill(self) -> None:
        member = self._any()
        member.crash(power=False)
        self._start_later(member, 8.0)

    def _cut_power(self) -> None:
        member = self._any()
        member.crash(power=True)
        self._start_later(member, 15.0)

    def _cut_power_everywhere(self) -> None:
        for member in self._world.members.values():
            member.crash(power=True)
            self._start_later(member, 10.0)

    def _die_at_an_action(self) -> None:
        member = self._any()
        member.crash_chance = self._random.choice((0.01, 0.1))

        def end() -> None:
            member.crash_chance = 0.0
            if not member.runs:
                self._start_later(member, 3.0)

        self._world.after(self._random.uniform(0.5, 5.0), end)

    def _pause(self) -> None:
        self._any().pause(self._random.choice((0.3, 3.0, 12.0)) * self._random.random())

    def _partition(self) -> None:
        names = [*self._world.members, REGISTRY]
        one = self._any().name
        others = [name for name in names if name != one]
        match self._random.randrange(4):
            case 0:  # from everything
                pairs = {(one, other) for other in others} | {(other, one) for other in others}
            case 1:  # from one other
                other = self._random.choice(others)
                pairs = {(one, other), (other, one)}
            case 2:  # one way only
                other = self._random.choice(others)
                pairs = {self._random.choice([(one, other), (other, one)])}
            case _:  # from the other members, but not from the registry
                others.remove(REGISTRY)
                pairs = {(one, other) for other in others} | {(other, one) for other in others}
        for pair in sorted(pairs):
            self._world.network.cut(*pair)
        self._world.after(
            self._random.choice((2.0, 8.0, 20.0)) * self._random.random(), self._world.network.heal, pairs
        )

    def _slow_disk(self) -> None:
        member = self._any()
        member.disk_seconds = self._random.choice((0.1, 0.5, 3.0))

        def end() -> None:
            member.disk_seconds = 0.003

        self._world.after(self._random.uniform(1.0, 15.0), end)

    def _slow_network(self) -> None:
        network = self._world.network
        network.slowness = self._random.choice((0.05, 0.3))

        def end() -> None:
            network.slowness = 0.002

        self._world.after(self._random.uniform(1.0, 10.0), end)

    def _registry_away(self) -> None:
        registry = self._world.registry
        registry.away = True

        def end() -> None:
            registry.away = False

        self._world.after(self._random.uniform(0.5, 12.0), end)

    def _registry_unknown(self) -> None:
        registry = self._world.registry
        registry.unknown = self._random.choice((0.3, 0.8))

        def end() -> None:
            registry.unknown = 0.0

        self._world.after(self._random.uniform(2.0, 20.0), end)

    def _replace_disk(self) -> None:
        """Replace a disk, unless too few complete ones would be left: a set survives as many as it has copies."""
        world = self._world
        if self._replaced is not None and not self._replaced.disk.complete:
            return
        member = self._any()
        for config in (world.registry.config, *world.registry.waiting):
            if not any(world.members[name].disk.complete for name in config.in_sync - {member.name}):
                return
        self._replaced = member
        member.replace_disk()
        self._start_later(member, 10.0)

    def _switch(self) -> None:
        leader = self._world.leader()
        if leader is not None:
            leader.switch(self._random.choice(list(self._world.members)))

    def _remove(self) -> None:
        world, leader = self._world, self._world.leader()
        if leader is None:
            return
        removed = self._random.choice(list(world.members))
        leader.change_members(frozenset(world.members) - {removed})
        world.after(self._random.uniform(1.0, 10.0), self._add_all)

    def _change_members_at_once(self) -> None:
        """Let two operators ask for different members, one of them perhaps while a member is being taken out."""
        world, leader = self._world, self._world.leader()
        if leader is None:
            return
        members = list(world.members)
        for delay in (0.0, self._random.choice((0.0, 0.005, 0.1))):
            world.after(delay, leader.change_members, frozenset(members) - {self._random.choice(members)})
        slow = self._random.choice(members)
        if slow != leader.name and self._random.random() < 0.5:
            world.members[slow].pause(world.limits.lag_s + 1.0)
            for step in range(8):
                world.after(
                    world.limits.lag_s - 0.2 + step * 0.1,
                    leader.change_members,
                    frozenset(members) - {self._random.choice(members)},
                )
        world.after(self._random.uniform(5.0, 12.0), self._add_all)

    def _registry_node_fails(self) -> None:
        """Let one node of the registry be away, or answer late and with what was true before."""
        node = self._random.choice(self._world.registry.nodes)
        if self._random.random() < 0.5:
            node.away = True
        else:
            node.late = self._random.choice((0.3, 1.0, 5.0))

        def end() -> None:
            node.away, node.late = False, 0.0

        self._world.after(self._random.uniform(1.0, 15.0), end)

    def _delete_oldest(self) -> None:
        self._any().delete_oldest()


def run_seed(seed: int, rules: Rules | None = None) -> World:
    """Let a set of 2 to 5 members live through 60 seconds of faults and recover from them.

    Raises ``Violation`` if it broke a promise. The same seed and rules give the same run.
    """
    random = Random(f"world {seed}")
    members = random.choice((2, 3, 3, 3, 4, 5))
    world = World(
        seed,
        members=members,
        min_in_sync=random.choice((1, members // 2 + 1, members // 2 + 1)),
        quick_takeover=random.random() < 0.5,
        rules=rules,
        tables=seed % 2 == 1,
    )
    for member in world.members.values():
        member.clock_rate = random.uniform(0.97, 1.03)
    world.load(random.choice((0.02, 0.1, 0.5)))
    if world.tables:
        world.load_tables(world.table_random.choice((0.05, 0.2, 1.0)))
    if random.random() < 0.8:
        world.run(60.0, world.is_whole)
    chaos = Chaos(world)
    chaos.begin()
    world.run(60.0)
    chaos.heal()
    world.check_progress(120.0)
    return world


def run_seeds(seeds: Iterable[int], rules: Rules | None = None) -> list[World]:
    """Run each seed and return the worlds. Raises the first ``Violation``."""
    return [run_seed(seed, rules) for seed in seeds]
