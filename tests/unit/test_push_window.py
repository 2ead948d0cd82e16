"""Queues whose messages an application settles: the window, what is committed, and the memory for what is settled."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.client.groups.push.assignments import MERGE_WORKS_MIN, Claim, Claims, WorkItem
from tests.unit.test_push_claims import batch, only


def make(prefetch: int = 100, uncommitted: int = 10_000, queues: int = 1) -> Claims:
    claims = Claims(
        messages_max=prefetch,
        bytes_max=1 << 20,
        batch_max=1024,
        orderly=False,
        chunk_max=1,
        workers=1,
        uncommitted_max=uncommitted,
    )
    claims.assign([("t", queue, 0, 1) for queue in range(queues)], rejoined=False)
    return claims


class Application:
    """Receives the messages of one queue, up to the offset ``end``, and settles them."""

    def __init__(self, claims: Claims, end: int) -> None:
        self.claims = claims
        self.claim: Claim = only(claims)
        self.end = end
        self.running_max = 0
        self.waiting: list[WorkItem] = []
        self.open: dict[int, WorkItem] = {}

    def pull(self) -> bool:
        """Pull as much as is asked for at once; returns whether it was anything."""
        if self.claim not in self.claims.to_pull(0.0, frozenset()):
            return False
        count = min(self.claims.pull_count, self.end - self.claim.position)
        pulled = batch(self.claim.position, count)
        self.waiting += self.claims.arrived(self.claim, pulled, pulled.messages)
        self.running_max = max(self.running_max, self.claim.running)
        return count > 0

    def receive(self, count: int) -> None:
        """Open deliveries, in the order of the queue."""
        for work in self.waiting[:count]:
            self.claim.hand_out(work)
            self.open[work.messages[0].queue_offset] = work
        del self.waiting[:count]

    def settle(self, offset: int) -> None:
        """Settle one of them."""
        self.claim.running -= 1
        self.claim.complete(self.open.pop(offset))

    def check(self) -> None:
        """Check that the state of the queue is that of the open and waiting messages."""
        claim, waiting = self.claim, [work.messages[0].queue_offset for work in self.waiting]
        assert claim.commit_offset == min([*self.open, *waiting, claim.position])
        assert claim.messages == claim.position - claim.commit_offset
        assert claim.messages - claim.handed_messages == len(waiting)
        assert claim.ahead == claim.messages - len(waiting) - len(self.open)
        assert claim.running == len(waiting) + len(self.open)
        assert claim.bytes == sum(work.size for work in (*self.waiting, *self.open.values()))
        assert claim.handed_bytes == sum(work.size for work in self.open.values())
        # Between two works that are not done there is one merged run; others wait for the next merge.
        assert len(claim.works) <= 4 * (self.running_max + 1) + 2 * MERGE_WORKS_MIN


@settings(max_examples=25)
@given(st.integers(0, 1 << 32), st.integers(1, 200), st.integers(1, 300), st.integers(1, 50))
def test_any_order_of_settling_commits_the_part_without_holes_within_the_bounds(
    seed: int, prefetch: int, uncommitted: int, open_max: int
) -> None:
    source = random.Random(seed)
    application = Application(make(prefetch, uncommitted), 200)
    claim = application.claim
    while claim.commit_offset < 200:
        application.pull()
        application.receive(source.randint(0, open_max - len(application.open)))
        application.check()
        assert claim.messages <= uncommitted
        assert len(application.waiting) <= prefetch
        # The oldest ones are settled rarely, so that others are done behind them.
        for offset in source.sample(sorted(application.open), source.randint(0, len(application.open))):
            if offset != claim.commit_offset or source.random() < 0.2:
                application.settle(offset)
        application.check()
    assert not claim.works
    assert (claim.messages, claim.bytes, claim.handed_messages, claim.handed_bytes) == (0, 0, 0, 0)


def test_one_open_message_stops_its_queue_only_at_the_bound() -> None:
    application = Application(make(prefetch=4, uncommitted=500), 1000)
    application.pull()
    application.receive(1)
    while application.pull():
        application.receive(100)
        for offset in list(application.open):
            if offset:
                application.settle(offset)
    assert application.claim.position == 500
    assert application.claims.newly_blocked() == [application.claim]
    assert application.claims.newly_blocked() == []
    application.settle(0)
    assert application.claim.commit_offset == 500
    assert application.pull()
    assert application.claims.newly_blocked() == []


def test_more_queues_than_messages_in_the_window_all_continue_behind_an_open_message() -> None:
    claims = make(prefetch=2, queues=64)
    for claim in claims:
        pulled = batch(0, 1)
        (work,) = claims.arrived(claim, pulled, pulled.messages)
        claim.hand_out(work)
    assert len(claims.to_pull(0.0, frozenset())) == 64


def test_an_open_message_does_not_keep_the_bytes_of_others() -> None:
    application = Application(make(prefetch=1000), 1000)
    application.pull()
    application.receive(500)
    for offset in range(1, 500):
        application.settle(offset)
    (work,) = application.open.values()
    (message,) = work.messages
    assert work.batch is None
    assert len(message.record.obj) == message.size  # type: ignore[arg-type]  # the whole buffer, not the slice of it
    assert not any(each.messages for each in application.claim.works if each.done)
    assert len(application.claim.works) <= 2 * MERGE_WORKS_MIN + 4
