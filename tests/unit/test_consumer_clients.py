"""Groups of RocketMQ's clients over time: heartbeats that stop, locks, resets, and members of the other kind."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from flintmq.broker.delivery.groups.clients import (
    EXPIRY_S,
    LOCK_S,
    NOTIFIED_AT_ONCE_MAX,
    NOTIFY_S,
    SWEEP_S,
    UNUSED_S,
    ClientIdentity,
    ClientRole,
    ClientSubscription,
    ConsumerClients,
)
from flintmq.broker.delivery.groups.group import SubscriptionMemory
from flintmq.protocol.errors import GroupKind, LimitReached
from tests.manual_clock import ManualClock
from tests.remotes import FakeRemote

TOPICS = {"t": ClientSubscription("t")}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def members() -> dict[str, Collection[str]]:
    """Members of FlintMQ's own kind by group."""
    return {}


@pytest.fixture
def clients(clock: ManualClock, members: dict[str, Collection[str]]) -> ConsumerClients:
    return ConsumerClients(
        clock, clock.call_later, lambda name: members.get(name, ()), lambda: 100, SubscriptionMemory(2**20)
    )


def beat(
    clients: ConsumerClients, client_id: str, remote: FakeRemote, group: str = "g", model: str = "CLUSTERING"
) -> bool:
    role = ClientRole("CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", TOPICS)
    return clients.heart_beat(group, ClientIdentity(client_id, remote, "JAVA", 479), role)


def ids(clients: ConsumerClients, group: str = "g") -> list[str]:
    found = clients.groups.get(group)
    return sorted(found.clients) if found is not None else []


def test_a_silent_client_is_gone_after_two_minutes_and_no_sooner(clients: ConsumerClients, clock: ManualClock) -> None:
    silent, alive = FakeRemote(), FakeRemote()
    beat(clients, "silent", silent)
    for _ in range(4):
        beat(clients, "alive", alive)
        clock.advance(EXPIRY_S / 4)
    assert ids(clients) == ["alive", "silent"]
    told = len(alive.told)
    clock.advance(2 * SWEEP_S)
    assert ids(clients) == ["alive"]
    assert len(alive.told) == told + 1
    clock.advance(EXPIRY_S + 2 * SWEEP_S)
    assert ids(clients) == []
    assert clock.pending == 0, "without clients nothing is watched"


def test_the_loss_of_a_connection_removes_its_clients_at_once(clients: ConsumerClients) -> None:
    lost, other = FakeRemote(), FakeRemote()
    for group in ("g", "h"):
        beat(clients, "a", lost, group)
        beat(clients, "b", other, group)
    lost.lose()
    assert (ids(clients, "g"), ids(clients, "h")) == (["b"], ["b"])


def test_an_old_connection_does_not_remove_a_client_that_has_a_new_one(clients: ConsumerClients) -> None:
    old, new = FakeRemote(), FakeRemote()
    beat(clients, "a", old)
    beat(clients, "a", new)
    old.lose()
    assert ids(clients) == ["a"]
    new.lose()
    assert ids(clients) == []


def test_a_large_group_is_told_once_of_all_that_join_together(clients: ConsumerClients, clock: ManualClock) -> None:
    remotes = [FakeRemote() for _ in range(2 * NOTIFIED_AT_ONCE_MAX)]
    for number, remote in enumerate(remotes):
        beat(clients, f"c{number}", remote)
    clock.advance(NOTIFY_S)
    assert {len(remote.told) for remote in remotes[NOTIFIED_AT_ONCE_MAX:]} == {1}


def test_the_number_of_groups_is_bounded(clock: ManualClock) -> None:
    clients = ConsumerClients(clock, clock.call_later, lambda name: (), lambda: 2, SubscriptionMemory(2**20))
    remote = FakeRemote()
    beat(clients, "a", remote, "g1")
    beat(clients, "a", remote, "g2")
    with pytest.raises(LimitReached, match=r"limits\.groups_max"):
        beat(clients, "a", remote, "g3")
    beat(clients, "b", remote, "g2")


# ---- the other kind ----


def test_clients_wait_while_the_group_has_members_of_the_other_kind(
    clients: ConsumerClients, members: dict[str, Collection[str]]
) -> None:
    members["g"] = ["native-1"]
    remote = FakeRemote()
    beat(clients, "a", remote)
    assert (clients.sharing("g"), list(clients.waiting("g")), clients.count()) == (None, ["a"], (0, 1))
    assert not remote.told, "nothing has changed for it"
    with pytest.raises(GroupKind, match="native-1"):
        clients.check_may_consume("g")
    clients.check_none("g")  # more members may join
    del members["g"]
    clients.members_left("g")
    assert len(remote.told) == 1
    clients.check_may_consume("g")
    assert (ids(clients), list(clients.waiting("g")), clients.count()) == (["a"], [], (1, 0))
    with pytest.raises(GroupKind, match=r"1 live RocketMQ clients \(a\)"):
        clients.check_none("g")


def test_an_error_names_few_of_many_clients(clients: ConsumerClients) -> None:
    remote = FakeRemote()
    for number in range(8):
        beat(clients, f"c{number}", remote)
    with pytest.raises(GroupKind, match=r"\(c0, c1, c2, c3, c4 and 3 more\)"):
        clients.check_none("g")


# ---- locks ----


def test_a_lock_ends_a_minute_after_its_renewal(clients: ConsumerClients, clock: ManualClock) -> None:
    locks = clients.locks
    assert locks.lock("g", "a", [("t", 0)]) == [("t", 0)]
    clock.advance(LOCK_S / 2)
    locks.lock("g", "a", [("t", 0)])
    clock.advance(LOCK_S - 0.1)
    assert locks.lock("g", "b", [("t", 0), ("t", 1)]) == [("t", 1)]
    clock.advance(0.1)
    assert locks.lock("g", "b", [("t", 0)]) == [("t", 0)]
    assert locks.lock("g", "a", [("t", 0)]) == []


def test_a_lost_client_loses_its_locks_when_it_must_have_stopped_using_them(
    clients: ConsumerClients, clock: ManualClock
) -> None:
    lost, locks = FakeRemote(), clients.locks
    beat(clients, "a", lost)
    locks.lock("g", "a", [("t", 0)])
    clock.advance(UNUSED_S / 2)
    lost.lose()
    clock.advance(UNUSED_S / 2 - 0.1)
    assert locks.lock("g", "b", [("t", 0)]) == []
    clock.advance(0.1)
    assert locks.lock("g", "b", [("t", 0)]) == [("t", 0)]


def test_a_client_that_leaves_releases_its_locks_at_once(clients: ConsumerClients) -> None:
    beat(clients, "a", FakeRemote())
    clients.locks.lock("g", "a", [("t", 0)])
    clients.leave("g", "a", "")
    assert clients.locks.lock("g", "b", [("t", 0)]) == [("t", 0)]


def test_expired_locks_take_no_memory(clients: ConsumerClients, clock: ManualClock) -> None:
    remote = FakeRemote()
    beat(clients, "a", remote)
    clients.locks.lock("g", "a", [("t", number) for number in range(100)])
    assert len(clients.locks) == 100
    remote.lose()
    clock.advance(LOCK_S + 2 * SWEEP_S)
    assert len(clients.locks) == 0
    assert clock.pending == 0


# ---- resets ----


def test_a_reset_is_told_once_and_only_to_clients_that_share_the_group(
    clients: ConsumerClients, members: dict[str, Collection[str]]
) -> None:
    clients.reset("g", ("t", 0), 5)
    assert not clients.was_reset("g", ("t", 0)), "without clients the committed offset says it all"
    beat(clients, "a", FakeRemote())
    clients.reset("g", ("t", 0), 5)
    assert clients.was_reset("g", ("t", 0))
    assert not clients.was_reset("g", ("t", 1))
    assert (clients.take_reset("g", ("t", 0)), clients.take_reset("g", ("t", 0))) == (5, None)
    clients.leave("g", "a", "")
    beat(clients, "a", FakeRemote(), model="BROADCASTING")
    clients.reset("g", ("t", 0), 5)
    assert not clients.was_reset("g", ("t", 0)), "clients of a broadcasting group keep their own offsets"
