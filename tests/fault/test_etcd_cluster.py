"""The registry over three members of etcd, some of which are killed or stopped."""

from __future__ import annotations

import asyncio
import os
import random
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from flintmq.broker.replication.core.configuration import Proposal, ProposalOutcome, SetConfig
from flintmq.broker.replication.registry.etcd import EtcdRegistry, EtcdSettings
from flintmq.broker.replication.registry.interface import (
    EndpointError,
    LeaseAnswer,
    RegistryUnreachable,
    RegistryView,
    decode_config,
)
from tests.etcd_server import EtcdServer, etcd_cluster

pytestmark = pytest.mark.slow

ADDRESSES = {"a": "127.0.0.1:10911", "b": "127.0.0.1:10921"}
LED_BY_A = SetConfig("id", 1, "a", frozenset("ab"), frozenset("ab"), 2)
ELECTION_S = 120.0
"""Time that etcd may take for an election on a busy machine."""


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[EtcdServer]]:
    """Yield three members of a cluster, its leader first."""
    with etcd_cluster(tmp_path, 3) as servers:
        yield sorted(servers, key=lambda server: not server.leads())


def registry_of(members: list[EtcdServer]) -> EtcdRegistry:
    """Return a registry that tries the members in this order."""
    return EtcdRegistry(EtcdSettings(tuple(each.url for each in members), "tests", "set", silence_s=1))


async def read_until(registry: EtcdRegistry, holds: Callable[[RegistryView], bool]) -> RegistryView:
    """Read until the registry answers with what is wanted."""
    end = time.monotonic() + ELECTION_S
    while True:
        try:
            view = await registry.read()
            if holds(view):
                return view
        except EndpointError:  # or it has no leader yet
            pass
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def begin(registry: EtcdRegistry) -> int:
    """Store the first configuration, take the lease, return the version."""
    answer = await registry.propose(Proposal(1, LED_BY_A, 0, True), ADDRESSES)
    assert answer.outcome is ProposalOutcome.DONE
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    return answer.version


async def held_again(registry: EtcdRegistry) -> float:
    """Return the time until the lease is held; meanwhile no answer may be a refusal."""
    begun = time.monotonic()
    while (answer := await registry.hold_lease("a", 1)) is not LeaseAnswer.HELD:
        assert answer is LeaseAnswer.UNKNOWN
        assert time.monotonic() < begun + ELECTION_S
        await asyncio.sleep(0.1)
    return time.monotonic() - begun


async def test_a_change_without_a_majority_is_unknown_and_applied_later(members: list[EtcdServer]) -> None:
    registry = registry_of(members[:1])
    version = await begin(registry)
    smaller = LED_BY_A.with_in_sync("a")
    for _ in range(5):
        with ExitStack() as stack:
            for follower in members[1:]:
                stack.enter_context(follower.stopped())
            answer = await registry.propose(Proposal(2, smaller, version, False), ADDRESSES)
            assert answer.outcome is ProposalOutcome.UNKNOWN
            assert answer.reason
            with pytest.raises(RegistryUnreachable):
                await registry.read()
            assert await registry.hold_lease("a", 1) is LeaseAnswer.UNKNOWN
        view = await read_until(registry, lambda view: True)
        if view.state.version != version:
            break
        # On a busy machine the leader may have stepped down before it got the change.
    assert view.state.config == smaller
    # The same compare-and-set again is lost: its version is gone.
    answer = await registry.propose(Proposal(2, smaller, version, False), ADDRESSES)
    assert answer.outcome is ProposalOutcome.LOST
    await held_again(registry)


async def test_the_registry_serves_on_after_its_leader_is_killed(members: list[EtcdServer]) -> None:
    registry = registry_of(members)
    version = await begin(registry)
    members[0].kill()
    await held_again(registry)
    assert (await registry.read()).state.holder == "a"
    answer = await registry.propose(Proposal(2, LED_BY_A.with_in_sync("a"), version, False), ADDRESSES)
    assert answer.outcome is ProposalOutcome.DONE


async def test_the_registry_serves_on_while_its_leader_is_stopped(members: list[EtcdServer]) -> None:
    registry = registry_of(members)
    version = await begin(registry)
    with members[0].stopped():
        await held_again(registry)
        answer = await registry.propose(Proposal(2, LED_BY_A.with_in_sync("a"), version, False), ADDRESSES)
        assert answer.outcome is ProposalOutcome.DONE
    assert (await registry_of(members).read()).state.config == LED_BY_A.with_in_sync("a")


async def test_a_proposal_goes_to_the_next_member_if_no_process_listens(members: list[EtcdServer]) -> None:
    members[1].kill()  # a follower: the others need no election
    registry = registry_of([members[1], members[0]])
    assert await begin(registry) > 0


async def test_a_watch_at_a_member_that_stops_goes_to_another(members: list[EtcdServer]) -> None:
    registry = registry_of(members[1:])
    async with aclosing(registry.watch()) as watch:
        assert (await anext(watch)).state.config is None
        with members[1].stopped():
            other = registry_of(members[:1])
            version = await begin(other)
            async with asyncio.timeout(ELECTION_S):
                while (view := await anext(watch)).state.version != version:
                    pass
            assert view.addresses == ADDRESSES


async def test_a_member_that_is_cut_off_does_not_hide_changes_from_a_watch(members: list[EtcdServer]) -> None:
    """The watch is at a member that answers, but no longer hears of changes: the others are gone for it."""
    registry = registry_of([members[2], members[0]])
    async with aclosing(registry.watch()) as watch:
        assert (await anext(watch)).state.config is None
        with members[0].stopped(), members[1].stopped():
            pending = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(3)  # longer than the watch's limit of silence: it has asked, in vain
            assert not pending.done()
        await begin_after_election(registry_of(members))
        assert (await asyncio.wait_for(pending, ELECTION_S)).state.config == LED_BY_A


async def begin_after_election(registry: EtcdRegistry) -> None:
    """Store the first configuration; the election may need some time."""
    end = time.monotonic() + ELECTION_S
    while (await registry.propose(Proposal(1, LED_BY_A, 0, True), ADDRESSES)).outcome is ProposalOutcome.UNKNOWN:
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "4"))
PROPOSERS = 3


async def test_each_outcome_is_true_while_members_are_killed(members: list[EtcdServer]) -> None:
    """Each proposal has an address of its own, so that etcd's history tells which were applied."""
    outcomes: dict[str, tuple[ProposalOutcome, int]] = {}
    killing = True

    async def propose_without_end(number: int) -> None:
        registry, made = registry_of(members[number:] + members[:number]), 0
        while killing:
            made += 1
            address = f"proposer-{number}:{made}"
            try:
                version = (await registry.read()).state.version
                await asyncio.sleep(random.uniform(0, 0.01))
                answer = await registry.propose(Proposal(made, LED_BY_A, version, False), {"a": address, "b": "b:1"})
            except EndpointError:
                await asyncio.sleep(0.1)
            else:
                outcomes[address] = answer.outcome, answer.version

    proposers = [asyncio.create_task(propose_without_end(number)) for number in range(PROPOSERS)]
    for round_number in range(ROUNDS):
        victim = members[round_number % 3]
        await asyncio.sleep(1)
        victim.kill()
        await asyncio.sleep(1)
        await asyncio.to_thread(victim.start)
    killing = False
    await asyncio.gather(*proposers)
    registry = registry_of(members)
    await read_until(registry, lambda view: view.state.version != 0)

    history = {}
    request = {"key": registry._config_key, "start_revision": "1"}
    async with aclosing(registry._gateway.stream("/v3/watch", {"create_request": request}, 2)) as stream:
        async for result in stream:
            for pair in (event["kv"] for event in result.get("events", [])):
                history[decode_config(b64decode(pair["value"]))[1]["a"]] = int(pair["mod_revision"])
    done = {address: version for address, (outcome, version) in outcomes.items() if outcome is ProposalOutcome.DONE}
    lost = {address for address, (outcome, _) in outcomes.items() if outcome is ProposalOutcome.LOST}
    assert len(done) > 20
    assert lost
    assert done.items() <= history.items()
    assert not lost & history.keys()
    assert len(set(done.values())) == len(done)
