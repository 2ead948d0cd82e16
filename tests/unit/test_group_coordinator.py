"""Groups over time: members that fall silent, topics that are created, and the state after all members are gone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from flintmq.broker.delivery.groups.coordinator import (
    LOST_SECONDS,
    MEMBERS_AT_ONCE_MAX,
    SETTLING_SECONDS,
    SWEEP_SECONDS,
    GroupCoordinator,
)
from flintmq.broker.delivery.groups.group import ConsumerGroup, Member, MemberSubscription
from flintmq.broker.store import MessageStore, TopicConfig
from flintmq.protocol.commands import HeartBeatRequest
from flintmq.protocol.errors import EpochFenced, GroupRunning, LimitReached, MemberUnknown, NoPermission
from tests.manual_clock import ManualClock
from tests.remotes import FakeRemote
from tests.store_tools import kill, make_topic, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path)
    make_topic(opened, "t", 4)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def groups(store: MessageStore, clock: ManualClock) -> GroupCoordinator:
    return GroupCoordinator(store, clock, clock.call_later)


def beat(
    groups: GroupCoordinator,
    name: str,
    remote: FakeRemote,
    epoch: int = 0,
    held: list[tuple[str, int]] | None = None,
    topic: str = "t",
    seconds: int = 10,
) -> tuple[ConsumerGroup, Member]:
    request = HeartBeatRequest(group="g", member=name, epoch=epoch, session_timeout_ms=seconds * 1000)
    return groups.heart_beat(remote, request, {topic: MemberSubscription(topic)}, held or [])


def test_a_member_that_is_silent_for_its_session_is_gone_and_no_sooner(
    groups: GroupCoordinator, clock: ManualClock
) -> None:
    group, _ = beat(groups, "a", FakeRemote(), seconds=10)
    clock.advance(9.9)
    assert "a" in group.members
    clock.advance(1)
    assert "a" not in group.members
    with pytest.raises(MemberUnknown, match="has no member 'a'"):
        beat(groups, "a", FakeRemote(), epoch=group.epoch)


def test_a_member_whose_connection_went_has_a_few_seconds_to_come_back(
    groups: GroupCoordinator, clock: ManualClock
) -> None:
    first, second = FakeRemote(), FakeRemote()
    group, _ = beat(groups, "a", first, seconds=60)
    beat(groups, "b", FakeRemote(), seconds=60)
    first.lose()
    clock.advance(LOST_SECONDS - 0.5)
    beat(groups, "a", second, epoch=group.epoch, held=[("t", 0)], seconds=60)
    clock.advance(LOST_SECONDS + 1)
    assert sorted(group.members) == ["a", "b"]
    second.lose()
    clock.advance(LOST_SECONDS + 1)
    assert list(group.members) == ["b"]


def test_a_later_topic_is_assigned_with_a_notification(
    groups: GroupCoordinator, clock: ManualClock, store: MessageStore
) -> None:
    remote = FakeRemote()
    group, member = beat(groups, "a", remote, topic="later")
    assert group.assignment(member) == {}
    store.topics.put(TopicConfig("later", 2, 2))
    clock.advance(1)
    assert set(group.assignment(member)) == {("later", 0), ("later", 1)}
    assert remote.told
    assert groups.begins_at_first("g", "later")
    assert not groups.begins_at_first("g", "t")


def test_a_topic_that_is_deleted_leaves_its_members_alone(
    groups: GroupCoordinator, clock: ManualClock, store: MessageStore
) -> None:
    group, member = beat(groups, "a", FakeRemote())
    store.topics.remove("t")
    clock.advance(1)
    assert group.assignment(member) == {}
    assert group.settled


def test_epochs_continue_after_a_group_was_empty(groups: GroupCoordinator) -> None:
    group, member = beat(groups, "a", FakeRemote())
    before = group.epoch
    groups.remove_member("g", "a", group.epoch)
    assert "g" not in groups.groups
    again, _ = beat(groups, "a", FakeRemote())
    assert again.epoch > before
    with pytest.raises(EpochFenced):
        groups.check_holder("g", "a", member.joined_epoch, "t", 0)


def test_a_disabled_group_cannot_be_joined(groups: GroupCoordinator, store: MessageStore) -> None:
    store.groups.ensure("g")
    store.groups._groups["g"]["consumeEnable"] = False
    with pytest.raises(NoPermission, match="is disabled"):
        beat(groups, "a", FakeRemote())


def test_a_running_group_is_named_with_its_members(groups: GroupCoordinator) -> None:
    beat(groups, "a", FakeRemote())
    with pytest.raises(GroupRunning, match=r"1 live member \(a\)"):
        groups.check_idle("g", "wait")
    groups.check_idle("other", "wait")


def test_after_a_crash_queues_wait_for_those_who_still_hold_them(tmp_path: Path, clock: ManualClock) -> None:
    first = open_store(tmp_path)
    make_topic(first, "t", 4)
    kill(first)
    store = open_store(tmp_path)
    groups = GroupCoordinator(store, clock, clock.call_later)
    group, one = beat(groups, "a", FakeRemote(), held=[("t", 2)])
    assert set(group.assignment(one)) == {("t", 2)}
    _, two = beat(groups, "b", FakeRemote(), held=[("t", 1), ("t", 2)])
    assert set(group.assignment(two)) == {("t", 1)}, "one of them holds it"
    clock.advance(SETTLING_SECONDS + 1)
    assert len(group.assignment(one)) == len(group.assignment(two)) == 2
    store.close()


def test_a_group_that_is_new_to_a_store_that_was_closed_does_not_wait(store: MessageStore, clock: ManualClock) -> None:
    groups = GroupCoordinator(store, clock, clock.call_later)
    group, member = beat(groups, "a", FakeRemote())
    assert len(group.assignment(member)) == 4


def test_groups_and_their_settings_survive_in_rocketmqs_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.groups.ensure("g")
    store.groups._groups["g"]["retryMaxTimes"] = 3
    store.close()
    again = open_store(tmp_path)
    assert (again.groups.names(), again.groups.retry_times_max("g")) == (["g"], 3)
    assert again.groups.retry_times_max("unknown") == 16
    assert '"subscriptionGroupTable"' in (tmp_path / "config" / "subscriptionGroup.json").read_text()
    again.close()


def test_a_member_that_keeps_its_own_progress_makes_no_group_and_goes_with_its_group(
    groups: GroupCoordinator, store: MessageStore
) -> None:
    offsets = store.consumer_offsets
    for group in ("g", "a|b"):
        store.groups.ensure(group)
    for name in ("g", "g:m-1", "g:m:2", "g:m|3", "a|b", "a|b:m", "plain|one"):
        offsets.commit(name, "t", 0, 1)
    known = {"g": {"t"}, "a|b": {"t"}, "plain|one": {"t"}}
    assert groups.known_topics() == known
    assert groups.group_names(offsets.rows()) == known.keys()
    groups.delete_progress("g")
    assert {name for name, _, _ in offsets.rows()} == {"a|b", "a|b:m", "plain|one"}
    groups.delete_progress("a|b")
    assert groups.known_topics() == {"plain|one": {"t"}}


def test_a_group_too_many_is_refused_and_existing_groups_continue(
    groups: GroupCoordinator, store: MessageStore
) -> None:
    groups.groups_max = 2
    groups.ensure_group("a")
    groups.ensure_group("b")
    with pytest.raises(LimitReached, match=r"limits\.groups_max is 2"):
        groups.ensure_group("c")
    groups.ensure_group("a")
    groups.delete_progress("a")
    groups.ensure_group("c")
    assert store.groups.names() == ["b", "c"]


def test_an_offset_too_many_is_refused_and_existing_offsets_still_change(
    groups: GroupCoordinator, store: MessageStore
) -> None:
    offsets = store.consumer_offsets
    groups.offsets_max = 3
    for queue in (0, 1):
        offsets.commit("a", "t", queue, 1)
    groups.check_may_commit("a", [("t", 0), ("t", 1), ("t", 2)])
    with pytest.raises(LimitReached, match=r"limits\.committed_offsets_max is 3"):
        groups.check_may_commit("a", [("t", 2), ("t", 3)])
    with pytest.raises(LimitReached, match="2 more queues of 2 topics"):
        groups.check_may_commit("b", [("t", 0), ("u", 0)])
    offsets.forget("a")
    assert len(offsets) == 0
    groups.check_may_commit("b", [("t", 0), ("t", 1)])


def test_the_offset_of_handled_dead_letters_outlives_a_group(groups: GroupCoordinator, store: MessageStore) -> None:
    offsets = store.consumer_offsets
    offsets.commit("g", "t", 0, 1)
    offsets.commit("g", "%DLQ%g", 0, 5)
    offsets.commit("other", "%DLQ%g", 0, 2)
    groups.delete_progress("g")
    assert offsets.committed("g", "%DLQ%g") == {0: 5}
    assert groups.known_topics() == {"other": {"%DLQ%g"}}
    assert groups.group_names(offsets.rows()) == {"other"}


def test_only_the_topics_that_members_consume_are_theirs_alone_to_commit(groups: GroupCoordinator) -> None:
    beat(groups, "a", FakeRemote())
    for topic in ("", "t", "%RETRY%g"):
        with pytest.raises(GroupRunning):
            groups.check_idle("g", "stop them", topic)
    groups.check_idle("g", "stop them", "%DLQ%g")


def test_a_rebalance_is_counted_if_queues_move(groups: GroupCoordinator) -> None:
    first, _ = beat(groups, "a", FakeRemote())
    assert groups.rebalances == 1
    beat(groups, "a", FakeRemote(), epoch=first.epoch)
    assert groups.rebalances == 1
    group, _ = beat(groups, "b", FakeRemote())
    assert groups.rebalances == 2
    assert group.state == "rebalancing", "until the first one has given up what the second is to have"


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of function calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def test_a_heartbeat_costs_no_more_in_a_large_group(store: MessageStore, clock: ManualClock) -> None:
    make_topic(store, "wide", 64)
    costs = {}
    for size in (2, 300):
        groups = GroupCoordinator(store, clock, clock.call_later)
        remotes = [FakeRemote() for _ in range(size)]
        for number, remote in enumerate(remotes):
            beat(groups, f"m-{number}", remote, topic="wide", seconds=300)
        clock.advance(SETTLING_SECONDS + 1)
        for _ in range(3):  # queues move from the members that joined first to the others
            settle(groups, remotes)
        group = groups.groups["g"]
        assert group.settled
        epoch, remote = group.epoch, remotes[0]
        costs[size] = calls_of(partial(beat, groups, "m-0", remote, epoch, list(group.members["m-0"].granted), "wide"))
    assert costs[300] <= costs[2] + 5, costs


def settle(groups: GroupCoordinator, remotes: list[FakeRemote]) -> None:
    """Let every member send a heartbeat and release the queues that it must give up."""
    for number, remote in enumerate(remotes):
        group = groups.groups["g"]
        held = list(group.assignment(group.members[f"m-{number}"]))
        beat(groups, f"m-{number}", remote, group.epoch, held, "wide", 300)


def test_a_large_group_is_rebalanced_once_for_many_changes(store: MessageStore, clock: ManualClock) -> None:
    make_topic(store, "wide", 1_000)
    groups = GroupCoordinator(store, clock, clock.call_later)
    remotes = [FakeRemote() for _ in range(300)]
    for number, remote in enumerate(remotes):
        beat(groups, f"m-{number}", remote, topic="wide", seconds=300)
    assert groups.rebalances <= MEMBERS_AT_ONCE_MAX
    clock.advance(SWEEP_SECONDS)
    assert groups.rebalances <= MEMBERS_AT_ONCE_MAX + 1
    for _ in range(3):
        settle(groups, remotes)
    group = groups.groups["g"]
    assert group.settled
    counts = [len(member.granted) for member in group.members.values()]
    assert (min(counts), max(counts), sum(counts)) == (3, 4, 1_000)
    for number in range(100):
        groups.remove_member("g", f"m-{number}", group.epoch)
    clock.advance(SWEEP_SECONDS)
    assert groups.rebalances <= MEMBERS_AT_ONCE_MAX + 2
    assert sum(len(member.granted) for member in group.members.values()) == 1_000


def test_a_queue_that_is_meant_for_a_member_that_just_left_waits_for_the_next_sharing_out(
    store: MessageStore, clock: ManualClock
) -> None:
    make_topic(store, "wide", 100)
    groups = GroupCoordinator(store, clock, clock.call_later)
    remotes = [FakeRemote() for _ in range(MEMBERS_AT_ONCE_MAX + 2)]
    for number, remote in enumerate(remotes):
        beat(groups, f"m-{number}", remote, topic="wide", seconds=300)
    clock.advance(SWEEP_SECONDS)
    group = groups.groups["g"]
    taker = next(name for queue, name in group.meant.items() if group.held[queue] != name)
    groups.remove_member("g", taker, group.epoch)
    giver = next(name for queue, name in group.held.items() if group.meant[queue] == taker)
    held = list(group.assignment(group.members[giver]))
    beat(groups, giver, remotes[int(giver.removeprefix("m-"))], group.epoch, held, "wide", 300)
    clock.advance(SWEEP_SECONDS)
    settle_left = [number for number in range(len(remotes)) if f"m-{number}" in group.members]
    for _ in range(3):
        for number in settle_left:
            held = list(group.assignment(group.members[f"m-{number}"]))
            beat(groups, f"m-{number}", remotes[number], group.epoch, held, "wide", 300)
    assert group.settled
    assert len(group.held) == 100
