"""A member's state of its queues: bounds, commit offsets, and queues that move to another member."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client.core.consume.batch import Batch
from flintmq.client.groups.push.assignments import Claim, Claims, WorkItem
from flintmq.protocol.storage.record import Record


def batch(first: int, count: int, next_offset: int | None = None) -> Batch:
    blobs = [Record(topic=b"t", body=b"%d" % n, queue_offset=n).encode() for n in range(first, first + count)]
    body = b"".join(len(blob).to_bytes(4, "big") for blob in blobs) + b"".join(blobs)
    end = first + count if next_offset is None else next_offset
    return Batch("t", 0, body, count, next_offset=end, min_offset=0, max_offset=1 << 40)


def make(orderly: bool = False, messages_max: int = 100, chunk_max: int | None = 32, batch_max: int = 1000) -> Claims:
    return Claims(
        messages_max=messages_max,
        bytes_max=1 << 20,
        batch_max=batch_max,
        orderly=orderly,
        chunk_max=chunk_max,
        workers=2,
    )


def only(claims: Claims) -> Claim:
    (claim,) = claims
    return claim


def arrive(claims: Claims, claim: Claim, first: int, count: int, next_offset: int | None = None) -> list[WorkItem]:
    pulled = batch(first, count, next_offset)
    return claims.arrived(claim, pulled, pulled.messages)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_commit_offset_follows_the_longest_unbroken_run_of_done_messages(
    chooser: random.Random, count: int
) -> None:
    claims = make()
    claims.assign([("t", 0, 5, 1)], rejoined=False)
    claim = only(claims)
    works = arrive(claims, claim, 5, count, 5 + count + 3)
    pending = {work.messages[0].queue_offset: work for work in works}
    while pending:
        first = chooser.choice(list(pending))
        claim.complete(pending.pop(first))
        expected = min(pending) if pending else 5 + count + 3
        assert claim.commit_offset == expected
    assert (claim.messages, claim.bytes) == (0, 0)


def test_messages_that_do_not_match_the_filter_count_as_done() -> None:
    claims = make()
    claims.assign([("t", 0, 0, 1)], rejoined=False)
    claim = only(claims)
    assert arrive(claims, claim, 0, 0, 40) == []
    assert claims.commits() == {"t": {0: 40}}
    (work,) = arrive(claims, claim, 40, 1, 41)
    arrive(claims, claim, 41, 0, 90)
    assert claim.commit_offset == 40
    claim.complete(work)
    assert claim.commit_offset == 90


def test_few_messages_are_spread_over_workers_and_many_go_in_chunks() -> None:
    claims = make()
    claims.took(0.001, 1_000)
    claims.assign([("t", 0, 0, 1)], rejoined=False)
    assert [len(work.messages) for work in arrive(claims, only(claims), 0, 5)] == [1] * 5
    assert {len(work.messages) for work in arrive(claims, only(claims), 5, 640)} == {32}
    whole = make(chunk_max=None)
    whole.assign([("t", 0, 0, 1)], rejoined=False)
    assert [len(work.messages) for work in arrive(whole, only(whole), 0, 640)] == [640]


def test_chunks_shrink_for_a_slow_listener() -> None:
    claims = make(orderly=True)
    claims.assign([("t", 0, 0, 1)], rejoined=False)

    def largest(first: int) -> int:
        claim = only(claims)
        arrive(claims, claim, first, 100)
        return max(len(work.messages) for work in claim.works if work.messages[0].queue_offset >= first)

    assert largest(0) == 1, "the listener's speed is not known yet"
    claims.took(0.1, 100)
    assert largest(100) == 32
    for _ in range(50):
        claims.took(1.0, 100)
    assert 9 <= largest(200) <= 10
    for _ in range(50):
        claims.took(2.0, 1)
    assert largest(300) == 1


@given(st.integers(1, 40), st.integers(1, 5000), st.integers(1, 2000))
def test_all_queues_together_stay_within_the_bounds(queues: int, messages_max: int, batch_max: int) -> None:
    claims = make(messages_max=messages_max, batch_max=batch_max)
    claims.assign([("t", number, 0, 1) for number in range(queues)], rejoined=False)
    for _ in range(4):
        for claim in claims.to_pull(0.0, frozenset()):
            claim.asked = True
            count = claims.pull_count
            claim.asked = False
            claim.messages += count  # no message is handled
    assert claims.messages <= max(messages_max, queues), "there is always room for one message of each queue"


def test_a_paused_or_refused_queue_is_not_pulled() -> None:
    claims = make()
    claims.assign([("t", 0, 0, 1), ("u", 0, 0, 1)], rejoined=False)
    first, second = claims
    assert claims.to_pull(0.0, frozenset({"t"})) == [second]
    second.retry_at = 5.0
    assert claims.to_pull(4.0, frozenset()) == [first]
    assert claims.to_pull(5.0, frozenset()) == [first, second]


def test_in_orderly_mode_one_work_of_a_queue_runs_at_a_time() -> None:
    claims = make(orderly=True, chunk_max=10)
    claims.assign([("t", 0, 0, 1)], rejoined=False)
    claim = only(claims)
    works = arrive(claims, claim, 0, 25)
    assert claims.next_in_order(claim) == []
    assert arrive(claims, claim, 25, 5) == []
    order = []
    while works:
        (work,) = works
        order += [message.queue_offset for message in work.messages]
        claim.running -= 1
        claim.complete(work)
        works = claims.next_in_order(claim)
    assert order == list(range(30))
    assert claim.commit_offset == 30


class TestAssignment:
    def test_a_queue_missing_from_the_assignment_is_released_when_nothing_of_it_runs(self) -> None:
        claims = make()
        claims.assign([("t", 0, 0, 1), ("t", 1, 0, 1)], rejoined=False)
        claim = next(iter(claims))
        (work,) = arrive(claims, claim, 0, 1)
        claims.assign([("t", 1, 0, 1)], rejoined=False)
        assert claim.revoked
        assert not claims.release(commit_first=True)
        assert claims.owned() == [["t", 0], ["t", 1]]
        claim.running -= 1
        claim.complete(work)
        assert not claims.release(commit_first=True), "its progress must be committed first"
        claims.committed("t", {0: 1})
        assert claims.release(commit_first=True)
        assert claims.owned() == [["t", 1]]

    def test_a_reset_queue_restarts_and_its_running_works_do_not_count(self) -> None:
        claims = make()
        claims.assign([("t", 0, 10, 1)], rejoined=False)
        before = only(claims)
        (work,) = arrive(claims, before, 10, 1)
        claims.assign([("t", 0, 3, 2)], rejoined=False)
        after = only(claims)
        assert (before.lost, after.position, after.granted) == (True, 3, 2)
        before.complete(work)
        assert claims.commits() == {}

    @pytest.mark.parametrize(("next_offset", "kept"), [(10, True), (8, True), (12, False)])
    def test_a_rejoined_member_keeps_the_queues_in_which_no_other_made_progress(
        self, next_offset: int, kept: bool
    ) -> None:
        claims = make()
        claims.assign([("t", 0, 10, 1)], rejoined=False)
        before = only(claims)
        arrive(claims, before, 10, 5)
        claims.assign([("t", 0, next_offset, 7)], rejoined=True)
        assert (only(claims) is before) == kept
        assert only(claims).granted == 7

    @pytest.mark.parametrize(("forgetful", "kept"), [(True, True), (False, False)])
    def test_a_smaller_offset_is_a_reset_unless_the_broker_restarted(self, forgetful: bool, kept: bool) -> None:
        claims = make()
        claims.assign([("t", 0, 10, 1)], rejoined=False)
        before = only(claims)
        for work in arrive(claims, before, 10, 5):
            before.running -= 1
            before.complete(work)
        claims.committed("t", {0: 15})
        claims.assign([("t", 0, 12, 7)], rejoined=True, forgetful=forgetful)
        assert (only(claims) is before) == kept
        assert only(claims).position == (15 if kept else 12)

    def test_an_orderly_queue_reassigned_before_its_release_restarts_at_its_progress(self) -> None:
        claims = make(orderly=True)
        claims.assign([("t", 0, 0, 1)], rejoined=False)
        before = only(claims)
        (work,) = arrive(claims, before, 0, 1)
        claims.assign([], rejoined=False)
        claims.assign([("t", 0, 0, 1)], rejoined=False)
        assert only(claims) is before, "something of it still runs"
        before.running -= 1
        before.complete(work)
        claims.assign([("t", 0, 0, 1)], rejoined=False)
        assert only(claims) is not before
        assert only(claims).position == 1
        assert claims.commits() == {"t": {0: 1}}, "the broker does not know it yet"

    def test_a_queue_reassigned_before_its_release_continues_although_a_message_of_it_is_open(self) -> None:
        claims = make(chunk_max=1)
        claims.assign([("t", 0, 0, 1)], rejoined=False)
        claim = only(claims)
        still_open, waiting = arrive(claims, claim, 0, 2)
        claims.assign([], rejoined=False)
        assert claims.recalls
        claim.running -= 1
        waiting.dropped = True
        assert not claims.release(commit_first=True)
        claims.assign([("t", 0, 0, 1)], rejoined=False)
        assert only(claims) is claim
        assert claims.take_resumed() == [waiting]
        assert claims.take_resumed() == []
        assert (claim.running, claims.to_pull(0.0, frozenset())) == (2, [claim])
        claim.complete(waiting)
        assert claim.commit_offset == 0
        claim.complete(still_open)
        assert claim.commit_offset == 2

    def test_a_leaving_member_does_not_take_a_released_queue_again(self) -> None:
        claims = make()
        claims.assign([("t", 0, 0, 1), ("t", 1, 0, 1)], rejoined=False)
        first, second = claims
        (work,) = arrive(claims, first, 0, 1)
        claims.revoke_all()
        assert claims.release(commit_first=True)
        claims.assign(
            [("t", 0, 0, 1), ("t", 1, 0, 1)], rejoined=False
        )  # the broker does not know yet that the member leaves
        assert list(claims) == [first]
        assert second.lost
        first.running -= 1
        first.complete(work)
        claims.assign([("t", 0, 0, 1), ("t", 1, 0, 1)], rejoined=False)
        assert claims.commits() == {"t": {0: 1}}


def test_the_rest_of_a_batch_is_a_batch() -> None:
    """A listener of batches gets a batch even if some of its messages were already settled."""
    claims = make(chunk_max=None)
    claims.assign([("t", 0, 0, 1)], rejoined=True)
    (claim,) = claims
    whole = batch(0, 5)
    (work,) = claims.arrived(claim, whole, whole.messages)
    assert work.whole is whole
    work.messages = list(whole.messages)[1:4:2]
    left = work.whole
    assert isinstance(left, Batch)
    assert left.bodies() == [message.body for message in left] == [b"1", b"3"]
    assert (len(left), left.queue, left.next_offset) == (2, 0, 5)
    assert list(left.messages) == work.messages
