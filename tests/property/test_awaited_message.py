"""Held pulls that get a message before its dispatch: the broker answers as one that always dispatches first."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.background import loop_work
from flintmq.broker.net import connection
from flintmq.protocol.commands import HELLO, LAYOUT_ROWS, PRODUCE, PROTOCOL_VERSION, PULL
from flintmq.protocol.errors import PULL_NOT_FOUND
from flintmq.protocol.frames import REQUEST, ProduceHead, encode_frame
from flintmq.protocol.storage.layout import RECORD
from tests.native_side import NativeSide, change_topic
from tests.paired_brokers import Pair, pair_of

TOPIC = "orders"
WAIT_MS = 60_000
"""Longer than an example, whose end answers the pulls that no message ends."""


class ConsumerSide(NativeSide):
    """A broker with a connection that consumes and one that produces."""

    given = 0
    """Number of messages that pulls got before the dispatch."""
    asked = 0
    """Number of requests of the connection that consumes in this example."""
    changing: Sequence[str] = ()
    """Topics that were being changed or deleted before the last flush began."""

    def __init__(self, folder: Path, policy: str, now_ms: int) -> None:
        super().__init__(folder, policy, now_ms)
        self.ends = [0, 0]
        """Offset of each queue's next message."""

    async def prepare(self) -> None:
        """Open both connections, and create the topics."""
        await super().prepare()
        self.producer = self.connection, self.wire
        self.connect()
        await self.feed([encode_frame(REQUEST, HELLO.code, 1, {"protocol": PROTOCOL_VERSION, "client": "test"})], 1)
        self.consumer = self.connection, self.wire
        give = self.broker.holds.give

        def count(held: Any, pulled: Any) -> None:
            self.given += 1
            record = memoryview(pulled.body)[4:]
            (physical_offset,) = struct.unpack_from(">q", record, RECORD.at["physical_offset"])
            assert physical_offset + len(record) <= self.broker.store.dispatchable_offset, "not on disk yet"
            give(held, pulled)

        self.broker.holds.give = count  # type: ignore[method-assign]  # counted or left out here

    async def send(self, frames: list[bytes], requests: int) -> None:
        """Feed frames to the connection that produces, and wait for their responses. One flush is for all frames:
        otherwise the disk would decide how many messages the first one brings to a pull.
        """
        self.connection, self.wire = self.producer
        requests += len(self.answers())
        flush = self.broker.flush
        with mock.patch.object(flush, "wake"):
            await self.feed(frames, 0)
            await self._until(lambda: not self.broker.dispatch._turn_due)
            self.changing = list(self.broker.topic_changes.pending)
        flush.wake()
        await self.feed([], requests)

    async def ask(self, frames: list[bytes]) -> None:
        """Feed frames to the connection that consumes; return after each is answered or held."""
        self.connection, self.wire = self.consumer
        await self.feed(frames, 0)
        self.asked += len(frames)
        await self.settled()

    async def settled(self) -> None:
        """Return after each request to the connection that consumes is answered or held."""
        self.connection, self.wire = self.consumer
        held = self.connection.deferred.held_pulls
        await self._until(lambda: len(self.answers()) + len(held) == self.asked)

    def answers(self) -> list[Any]:
        """Return the responses of the current connection by request id."""
        return sorted(super().answers(), key=lambda answer: answer[0])


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[ConsumerSide]]:
    with (
        # A turn or a slice that a busy machine ends early would let a pull read fewer messages.
        mock.patch.object(connection, "TURN_S", WAIT_MS / 1000),
        mock.patch.object(loop_work, "SLICE_S", WAIT_MS / 1000),
        pair_of(ConsumerSide, request.param) as made,
    ):
        made.general.broker.holds.taker = lambda topic, queue, offset: None  # type: ignore[method-assign]  # counted or left out here
        yield made


pulls = st.fixed_dictionaries(
    {
        "queue": st.sampled_from([0, 0, 0, 1]),
        "ahead": st.sampled_from([0, 0, 0, 0, -1, 1]),
        "more": st.sampled_from([{}, {}, {}, {"max_bytes": 150}, {"tags": "red"}, {"filter": "a > 1"}, {"group": "g"}]),
    }
)
frames = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1]), st.sampled_from([1, 1, 1, 3]), st.sampled_from([{}, {"TAGS": "red", "a": "2"}])
    ),
    min_size=1,
    max_size=3,
)
steps = st.lists(st.tuples(st.lists(pulls, max_size=3), frames, st.booleans()), min_size=1, max_size=6)


@given(steps=steps)
@settings(
    max_examples=60,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_message_that_is_given_before_its_dispatch_is_the_one_that_a_pull_reads(
    pair: Pair[ConsumerSide], steps: list[Any]
) -> None:
    sides, ends = (pair.short, pair.general), pair.short.ends
    before = pair.short.given
    for waiting, produced, together in steps:
        requests, messages = [], []
        for pull in waiting:
            pair.next_id += 1
            queue = pull["queue"]
            fields = {"topic": TOPIC, "queue": queue, "offset": max(ends[queue] + pull["ahead"], 0), "wait_ms": WAIT_MS}
            requests.append(encode_frame(REQUEST, PULL.code, pair.next_id, fields | {"max_count": 10} | pull["more"]))
        for queue, count, properties in produced:
            pair.next_id += 1
            body = msgpack.packb((b"x" * 40, properties)) * count
            head = ProduceHead(TOPIC, queue, LAYOUT_ROWS, "", "", "")
            messages.append(head.encode(pair.next_id, count, 0, 0, len(body)) + body)
            ends[queue] += count
        for side in sides:
            pair.runner.run(side.ask(requests))
            for chunk in [messages] if together else [[each] for each in messages]:
                pair.runner.run(side.send([b"".join(chunk)], len(chunk)))
                pair.runner.run(side.settled())
    event(f"given: {min(pair.short.given - before, 3)}")
    for side in sides:
        side.broker.holds.answer_all()
        pair.runner.run(side.settled())
    assert pair.short.pulled() == pair.general.pulled()
    pair.check_equal()
    for side in sides:
        side.producer[1].sent.clear()
        side.asked = 0


def test_a_topic_continues_behind_messages_that_were_sent_just_before_its_deletion(pair: Pair[ConsumerSide]) -> None:
    pair.next_id += 1
    fields, body = {"topic": TOPIC, "queue": 1, "count": 1}, msgpack.packb((b"x", {}))
    frames = [encode_frame(REQUEST, PRODUCE.code, pair.next_id, fields, body)]
    for side in (pair.short, pair.general):
        pair.runner.run(side.send(frames, 1))
        assert side.broker.dispatch.is_done()
        side.wire.sent.clear()
    pair.next_id += 3
    frames.append(change_topic(TOPIC, "delete", pair.next_id - 2))
    created = change_topic(TOPIC, "writable", pair.next_id - 1)
    for side in (pair.short, pair.general):
        pair.runner.run(side.send([b"".join(frames)], len(frames)))
        assert not (side.broker.sync and side.changing), "the deletion overtakes the flush"
        end = side.answers()[0][2]["queue_offset"] + 1
        pair.runner.run(side.send([created], 1))
        pull = encode_frame(REQUEST, PULL.code, pair.next_id, {"topic": TOPIC, "queue": 1, "offset": end})
        pair.runner.run(side.ask([pull]))
        ((_, code, answer, _),) = side.answers()
        assert (code, answer["min_offset"], answer["max_offset"]) == (PULL_NOT_FOUND, end, end)
        side.asked = 0
        for _, wire in (side.producer, side.consumer):
            wire.sent.clear()


def test_messages_were_given_before_their_dispatch(pair: Pair[ConsumerSide]) -> None:
    """Run after the other test, which would hold without them too."""
    assert pair.short.given >= 10
    assert pair.general.given == 0
