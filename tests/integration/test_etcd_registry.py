"""The registry against a real etcd: configuration, lease and watch of one replica set."""

from __future__ import annotations

import asyncio
import signal
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flintmq.broker.replication.core.configuration import Proposal, ProposalOutcome, SetConfig
from flintmq.broker.replication.registry.etcd import EtcdRegistry, EtcdSettings
from flintmq.broker.replication.registry.interface import LeaseAnswer, MalformedRegistry, ProposalAnswer, RegistryView
from tests.etcd_server import EtcdServer, etcd_cluster

ADDRESSES = {"a": "127.0.0.1:10911", "b": "127.0.0.1:10921", "c": "127.0.0.1:10931"}
EMPTY = SetConfig("id", 0, "", frozenset("abc"), frozenset("abc"), 2)
LED_BY_A = EMPTY.led_by("a", "abc")
DONE, LOST = ProposalOutcome.DONE, ProposalOutcome.LOST


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Yield one etcd for the tests of this file, each of which uses a set of its own."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers[0]


@pytest.fixture
def settings(etcd: EtcdServer, request: pytest.FixtureRequest) -> EtcdSettings:
    """Return the settings of this test's set."""
    return EtcdSettings((etcd.url,), "tests", request.node.name, lease_s=2, silence_s=0.5)


async def propose(registry: EtcdRegistry, config: SetConfig, version: int, vacant: bool = False) -> ProposalAnswer:
    """Propose a configuration."""
    return await registry.propose(Proposal(1, config, version, vacant), ADDRESSES)


async def led_by_a(settings: EtcdSettings) -> tuple[EtcdRegistry, int]:
    """Return a registry whose set is led by the member ``a``, and the version of the configuration."""
    registry = EtcdRegistry(settings)
    answer = await propose(registry, LED_BY_A, 0)
    assert answer.outcome is DONE
    return registry, answer.version


def put(etcd: EtcdServer, settings: EtcdSettings, key: str, value: bytes) -> None:
    """Write a key of the set as an operator might."""
    names = b64encode((settings.prefix() + key).encode()).decode()
    etcd.post("/v3/kv/put", {"key": names, "value": b64encode(value).decode()})


async def test_a_new_set_is_empty_and_vacant(settings: EtcdSettings) -> None:
    view = await EtcdRegistry(settings).read()
    assert (view.state.config, view.state.version, view.state.holder, view.addresses) == (None, 0, None, {})


async def test_a_proposal_is_read_with_its_version_and_the_members_addresses(settings: EtcdSettings) -> None:
    registry, version = await led_by_a(settings)
    view = await registry.read()
    assert (view.state.config, view.state.version, view.addresses) == (LED_BY_A, version, ADDRESSES)
    smaller = replace(LED_BY_A, members=frozenset("ab"), in_sync=frozenset("ab"))
    assert (await propose(registry, smaller, version)).outcome is DONE
    assert (await registry.read()).addresses.keys() == {"a", "b"}


async def test_one_of_two_proposals_of_the_same_version_is_lost(settings: EtcdSettings) -> None:
    first, version = await led_by_a(settings)
    second = EtcdRegistry(settings)
    for _ in range(10):
        answers = await asyncio.gather(
            propose(first, LED_BY_A.with_in_sync("ab"), version), propose(second, LED_BY_A.with_in_sync("ac"), version)
        )
        assert {answer.outcome for answer in answers} == {DONE, LOST}
        version = max(answer.version for answer in answers)
        state = (await second.read()).state
        winner = "ab" if answers[0].outcome is DONE else "ac"
        assert (state.version, state.config) == (version, LED_BY_A.with_in_sync(winner))


async def test_a_proposal_that_needs_a_vacancy_loses_while_the_lease_is_held(settings: EtcdSettings) -> None:
    registry, version = await led_by_a(settings)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    assert (await registry.read()).state.holder == "a"
    assert (await propose(registry, LED_BY_A.led_by("b", "bc"), version, vacant=True)).outcome is LOST
    await registry.release_lease()
    assert (await registry.read()).state.holder is None
    assert (await propose(registry, LED_BY_A.led_by("b", "bc"), version, vacant=True)).outcome is DONE


async def test_only_the_primary_of_the_present_epoch_gets_the_lease(settings: EtcdSettings) -> None:
    registry, _ = await led_by_a(settings)
    other = EtcdRegistry(settings)
    assert await other.hold_lease("b", 1) is LeaseAnswer.REFUSED
    assert await other.hold_lease("a", 2) is LeaseAnswer.REFUSED
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD


async def test_the_primary_of_a_new_epoch_replaces_the_lease_of_the_old_one(settings: EtcdSettings) -> None:
    """A quick takeover and a switch do not wait for the end of the lease."""
    registry, version = await led_by_a(settings)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    other = EtcdRegistry(settings)
    assert (await propose(other, LED_BY_A.led_by("b", "bc"), version)).outcome is DONE
    assert await registry.hold_lease("a", 1) is LeaseAnswer.REFUSED
    assert (await registry.read()).state.holder == "a"
    assert await other.hold_lease("b", 2) is LeaseAnswer.HELD
    await registry.release_lease()  # ends a's lease, which the key no longer belongs to
    assert await registry.hold_lease("a", 1) is LeaseAnswer.REFUSED
    assert (await registry.read()).state.holder == "b"
    assert await other.hold_lease("b", 2) is LeaseAnswer.HELD


async def test_a_lease_without_renewals_frees_the_leadership(settings: EtcdSettings) -> None:
    registry, _ = await led_by_a(settings)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    await asyncio.sleep(1.5)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    await asyncio.sleep(1.5)
    assert (await registry.read()).state.holder == "a"  # the renewal counted
    await until_vacant(registry)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD  # no other member leads: a new lease


async def until_vacant(registry: EtcdRegistry) -> None:
    """Wait until no member holds the lease."""
    async with asyncio.timeout(60):
        while (await registry.read()).state.holder is not None:  # noqa: ASYNC110 - what is polled is etcd
            await asyncio.sleep(0.05)


async def test_a_member_that_started_again_moves_its_key_to_a_new_lease(settings: EtcdSettings) -> None:
    registry, _ = await led_by_a(settings)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    started_again = EtcdRegistry(settings)
    assert await started_again.hold_lease("a", 1) is LeaseAnswer.HELD
    for _ in range(3):  # the first lease ends meanwhile, and its end must not delete the key
        await asyncio.sleep(1)
        assert await started_again.hold_lease("a", 1) is LeaseAnswer.HELD


async def test_a_deleted_key_is_taken_again_by_the_renewal(etcd: EtcdServer, settings: EtcdSettings) -> None:
    registry, _ = await led_by_a(settings)
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    key = b64encode((settings.prefix() + "lead").encode()).decode()
    etcd.post("/v3/kv/deleterange", {"key": key})
    assert (await registry.read()).state.holder is None
    assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
    assert (await registry.read()).state.holder == "a"


@pytest.mark.parametrize("value", [b"\xff", b"[]", b'{"format":1}', b'{"format":2,"leader":"a"}', b"[" * 100_000])
async def test_a_configuration_that_cannot_be_read_is_an_error(
    etcd: EtcdServer, settings: EtcdSettings, value: bytes
) -> None:
    put(etcd, settings, "config", value)
    with pytest.raises(MalformedRegistry, match="update this broker" if b"2" in value else "configuration"):
        await EtcdRegistry(settings).read()


@asynccontextmanager
async def watching(settings: EtcdSettings) -> AsyncIterator[asyncio.Queue[RegistryView]]:
    """Run a watch; yield the queue of its views."""
    views: asyncio.Queue[RegistryView] = asyncio.Queue()

    async def collect() -> None:
        async with aclosing(EtcdRegistry(settings).watch()) as watch:
            async for view in watch:
                views.put_nowait(view)

    task = asyncio.create_task(collect())
    try:
        yield views
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def next_view(views: asyncio.Queue[RegistryView], timeout_s: float = 5) -> RegistryView:
    """Return the next view of a watch."""
    return await asyncio.wait_for(views.get(), timeout_s)


async def test_a_watch_yields_the_present_view_and_each_change(settings: EtcdSettings) -> None:
    registry, version = await led_by_a(settings)
    async with watching(replace(settings, silence_s=60)) as views:
        assert (await next_view(views)).state.version == version
        assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD
        assert (await next_view(views)).state.holder == "a"
        await propose(registry, LED_BY_A.with_in_sync("ab"), version)
        assert (await next_view(views)).state.config == LED_BY_A.with_in_sync("ab")
        assert (await next_view(views)).state.holder is None  # the lease has ended


async def test_a_quiet_watch_yields_nothing(settings: EtcdSettings) -> None:
    await led_by_a(settings)
    async with watching(settings) as views:
        await next_view(views)
        await asyncio.sleep(1.5)  # three times its limit of silence
        assert views.empty()


async def test_a_watch_of_compacted_revisions_reads_again(etcd: EtcdServer, settings: EtcdSettings) -> None:
    registry, version = await led_by_a(settings)
    answer = await propose(registry, LED_BY_A.with_in_sync("ab"), version)
    etcd.post("/v3/kv/compaction", {"revision": str(answer.version)})
    async with asyncio.timeout(60):
        await EtcdRegistry(replace(settings, silence_s=60))._wait_for_change(1)


async def test_a_watch_continues_after_a_restart_of_etcd(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as (server,):
        settings = EtcdSettings((server.url,), "tests", "set", silence_s=1)
        registry, version = await led_by_a(settings)
        async with watching(settings) as views:
            assert (await next_view(views)).state.version == version
            server.kill()
            await asyncio.sleep(0.5)
            server.start()
            await propose(registry, LED_BY_A.with_in_sync("ab"), version)
            assert (await next_view(views)).state.config == LED_BY_A.with_in_sync("ab")
            # A connection that breaks silently: etcd stops while the watch is idle, another change follows.
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(2.5)
            server.signal(signal.SIGCONT)
            version = (await registry.read()).state.version
            await propose(registry, LED_BY_A.with_in_sync("ac"), version)
            assert (await next_view(views)).state.config == LED_BY_A.with_in_sync("ac")


def test_the_lead_key_holds_the_members_id(etcd: EtcdServer, settings: EtcdSettings) -> None:
    async def hold() -> None:
        registry, _ = await led_by_a(settings)
        assert await registry.hold_lease("a", 1) is LeaseAnswer.HELD

    asyncio.run(hold())
    key = b64encode(f"/flintmq/tests/{settings.replica_set}/lead".encode()).decode()
    (pair,) = etcd.post("/v3/kv/range", {"key": key})["kvs"]
    assert b64decode(pair["value"]) == b"a"
