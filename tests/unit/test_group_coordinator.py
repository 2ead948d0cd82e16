"""Groups over time: members that go silent, topics that come, and what is left when all are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.broker.delivery.coordinator import LOST_SECONDS, SETTLING_SECONDS, SWEEP_SECONDS, GroupCoordinator
from flintmq.broker.delivery.group import ConsumerGroup, Member, Subscription
from flintmq.broker.store import MessageStore, TopicConfig
from flintmq.protocol.commands import HeartBeatRequest
from flintmq.protocol.errors import EpochFenced, GroupRunning, MemberUnknown, NoPermission
from tests.remotes import FakeRemote
from tests.store_tools import kill, make_topic, open_store


class Clock:
    """Time that goes by when it is told to, and what was to be called by then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self.now + seconds, call))

    def advance(self, seconds: float) -> None:
        """Let time go by in steps as small as a sweep."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + SWEEP_SECONDS, end)
            due = [call for at, call in self._calls if at <= self.now]
            self._calls = [(at, call) for at, call in self._calls if at > self.now]
            for call in due:
                call()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path)
    make_topic(opened, "t", 4)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def groups(store: MessageStore, clock: Clock) -> GroupCoordinator:
    return GroupCoordinator(store, clock, clock.call_later)


def beat(
    groups: GroupCoordinator, name: str, remote: FakeRemote, epoch: int = 0, held: list[tuple[str, int]] | None = None,
    topic: str = "t", seconds: int = 10,
) -> tuple[ConsumerGroup, Member]:  # fmt: skip
    request = HeartBeatRequest(group="g", member=name, epoch=epoch, session_timeout_ms=seconds * 1000)
    return groups.heart_beat(remote, request, {topic: Subscription(topic)}, held or [])


def test_a_member_that_is_silent_for_its_session_is_gone_and_no_sooner(groups: GroupCoordinator, clock: Clock) -> None:
    group, _ = beat(groups, "a", FakeRemote(), seconds=10)
    clock.advance(9.9)
    assert "a" in group.members
    clock.advance(1)
    assert "a" not in group.members
    with pytest.raises(MemberUnknown, match="has no member 'a'"):
        beat(groups, "a", FakeRemote(), epoch=group.epoch)


def test_a_member_whose_connection_went_has_a_few_seconds_to_come_back(groups: GroupCoordinator, clock: Clock) -> None:
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


def test_a_topic_that_comes_later_is_given_out_and_told(
    groups: GroupCoordinator, clock: Clock, store: MessageStore
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
    groups: GroupCoordinator, clock: Clock, store: MessageStore
) -> None:
    group, member = beat(groups, "a", FakeRemote())
    store.topics.remove("t")
    clock.advance(1)
    assert group.assignment(member) == {}
    assert group.settled


def test_epochs_go_on_when_a_group_was_empty(groups: GroupCoordinator) -> None:
    group, member = beat(groups, "a", FakeRemote())
    before = group.epoch
    groups.leave("g", "a", group.epoch)
    assert "g" not in groups.groups
    again, _ = beat(groups, "a", FakeRemote())
    assert again.epoch > before
    with pytest.raises(EpochFenced):
        groups.check_holder("g", "a", member.joined_epoch, "t", 0)


def test_a_group_that_is_switched_off_cannot_be_joined(groups: GroupCoordinator, store: MessageStore) -> None:
    store.groups.ensure("g")
    store.groups._groups["g"]["consumeEnable"] = False
    with pytest.raises(NoPermission, match="switched off"):
        beat(groups, "a", FakeRemote())


def test_a_running_group_is_named_with_its_members(groups: GroupCoordinator) -> None:
    beat(groups, "a", FakeRemote())
    with pytest.raises(GroupRunning, match=r"1 live members \(a\)"):
        groups.check_idle("g", "wait")
    groups.check_idle("other", "wait")


def test_after_a_crash_queues_wait_for_those_who_still_hold_them(tmp_path: Path, clock: Clock) -> None:
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


def test_a_group_that_is_new_to_a_store_that_was_closed_does_not_wait(store: MessageStore, clock: Clock) -> None:
    groups = GroupCoordinator(store, clock, clock.call_later)
    group, member = beat(groups, "a", FakeRemote())
    assert len(group.assignment(member)) == 4


def test_groups_and_what_is_set_for_them_survive_in_rocketmqs_file(tmp_path: Path) -> None:
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
    for name in ("g", "g|m-1", "g|m|2", "a|b", "plain|one"):
        offsets.commit(name, "t", 0, 1)
    known = {"g": {"t"}, "a|b": {"t"}, "plain|one": {"t"}}
    assert groups.known() == known
    assert groups.names(offsets.rows()) == known.keys()
    groups.forget("g")
    assert {name for name, _, _ in offsets.rows()} == {"a|b", "plain|one"}
    groups.forget("a|b")
    assert groups.known() == {"plain|one": {"t"}}


def test_how_far_its_dead_letters_are_dealt_with_outlives_a_group(
    groups: GroupCoordinator, store: MessageStore
) -> None:
    offsets = store.consumer_offsets
    offsets.commit("g", "t", 0, 1)
    offsets.commit("g", "%DLQ%g", 0, 5)
    offsets.commit("other", "%DLQ%g", 0, 2)
    groups.forget("g")
    assert offsets.committed("g", "%DLQ%g") == {0: 5}
    assert groups.known() == {"other": {"%DLQ%g"}}
    assert groups.names(offsets.rows()) == {"other"}


def test_only_the_topics_that_members_consume_are_theirs_alone_to_commit(groups: GroupCoordinator) -> None:
    beat(groups, "a", FakeRemote())
    for topic in ("", "t", "%RETRY%g"):
        with pytest.raises(GroupRunning):
            groups.check_idle("g", "stop them", topic)
    groups.check_idle("g", "stop them", "%DLQ%g")


def test_a_rebalance_is_counted_where_queues_move(groups: GroupCoordinator) -> None:
    first, _ = beat(groups, "a", FakeRemote())
    assert groups.rebalances == 1
    beat(groups, "a", FakeRemote(), epoch=first.epoch)
    assert groups.rebalances == 1
    group, _ = beat(groups, "b", FakeRemote())
    assert groups.rebalances == 2
    assert group.state == "rebalancing", "until the first one has given up what the second is to have"
