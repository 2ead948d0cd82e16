"""Refused commits: a member drops the queues that are not its own, and commits the rest."""

from __future__ import annotations

import pytest

from flintmq.client.core.rpc.operation import Request
from flintmq.client.groups.push.assignments import Claims, claims_for
from flintmq.client.groups.push.membership import Membership
from flintmq.client.groups.push.options import Options, check_options
from flintmq.client.groups.push.progress import Progress
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT
from flintmq.protocol.errors import (
    CommitIllegal,
    ConnectionFailed,
    EpochFenced,
    FlintError,
    MemberUnknown,
    NoPermission,
    QueueNotExist,
    TopicNotExist,
)

EPOCH = 7


def options() -> Options:
    own = {"start": "first", "workers": 1, "prefetch_messages": 100, "listener_timeout": 10.0, "retry_reason": False}
    return check_options("g", ["t", "u"], None, own)


class Member:
    """A member with four queues of ``t`` and one of ``u``, each with 5 handled, uncommitted messages."""

    def __init__(self) -> None:
        chosen = options()
        self.now = 100.0
        self.claims: Claims = claims_for(chosen)
        self.membership = Membership(chosen, self.claims, lambda: self.now, lambda rejoined: None)
        self.membership.epoch = EPOCH
        self.progress = Progress(chosen, self.claims, self.membership, lambda: self.now)
        self.claims.assign([("t", queue, 0, EPOCH) for queue in range(4)] + [("u", 0, 0, EPOCH)], rejoined=True)
        for claim in self.claims:
            claim.commit_offset = 5
        self.told: list[FlintError | None] = []
        self.progress.ask(self.told.append)

    def due(self) -> dict[str, Request]:
        """Return the commits that are due now, by topic and queues."""
        found = {}
        for request in self.progress.due(self.now):
            operation = request[0]
            queues = [queue for queue, _ in CONSUMER_OFFSET_STRUCT.iter_unpack(operation.body)]
            found[f"{operation.fields['topic']} {queues}"] = request
        return found

    def held(self) -> list[tuple[str, int]]:
        return sorted(claim.key for claim in self.claims)


def answer(requests: dict[str, Request], errors: dict[str, FlintError]) -> None:
    """Answer all requests; those whose names begin with a key of ``errors`` get that error."""
    for name, (_, answered) in requests.items():
        answered(None, errors.get(name.split()[0], errors.get(name)))


@pytest.fixture
def member() -> Member:
    return Member()


def test_queues_named_by_the_broker_are_dropped_and_the_others_committed_at_once(member: Member) -> None:
    error = EpochFenced("not yours", refused=(1, 3))
    answer(member.due(), {"t": error})
    assert member.held() == [("t", 0), ("t", 2), ("u", 0)]
    assert member.told == [error]
    assert member.claims.taken == 2
    again = member.due()
    assert list(again) == ["t [0, 2]"]
    answer(again, {})
    assert (member.due(), member.progress.trouble, member.progress.due_at()) == ({}, None, float("inf"))


def test_a_queue_granted_after_the_commit_is_not_dropped(member: Member) -> None:
    requests = member.due()
    member.claims.assign(
        [("t", queue, 0, EPOCH + 1 if queue == 1 else EPOCH) for queue in range(4)] + [("u", 0, 0, EPOCH)],
        rejoined=False,
    )
    answer(requests, {"t": EpochFenced("not yours", refused=[1])})
    assert ("t", 1) in member.held()


def test_missing_queues_and_topics_do_not_prevent_commits_of_the_others(member: Member) -> None:
    answer(member.due(), {"t": QueueNotExist("no queue 2", queues=2), "u": TopicNotExist("no topic u")})
    assert member.held() == [("t", 0), ("t", 1)]
    assert list(member.due()) == ["t [0, 1]"]


def test_a_queue_cut_by_a_crash_does_not_prevent_commits_of_the_others(member: Member) -> None:
    answer(member.due(), {"t": CommitIllegal("beyond", queue=2, max_offset=3)})
    (request,) = member.due().values()
    assert list(CONSUMER_OFFSET_STRUCT.iter_unpack(request[0].body)) == [(0, 5), (1, 5), (2, 3), (3, 5)]


@pytest.mark.parametrize("error", [NoPermission("no"), MemberUnknown("who?")])
def test_any_other_refusal_is_shown_until_a_commit_succeeds(member: Member, error: FlintError) -> None:
    answer(member.due(), {"t": error})
    assert member.progress.trouble is error
    assert len(member.held()) == 5
    assert member.due() == {}
    member.now += 1.0
    answer(member.due(), {})
    assert member.progress.trouble is None


def test_a_lost_connection_is_not_a_refusal(member: Member) -> None:
    answer(member.due(), {"t": ConnectionFailed("gone"), "u": ConnectionFailed("gone")})
    assert member.progress.trouble is None
    assert not member.progress.committing


def test_nothing_is_committed_before_the_broker_knows_the_member(member: Member) -> None:
    member.membership.epoch = 0
    assert member.due() == {}
    assert member.progress.due_at() == float("inf")
    member.membership.epoch = EPOCH
    assert len(member.due()) == 2
