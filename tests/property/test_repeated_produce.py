"""The short way of repeated PRODUCE headers: a broker that takes it does the same as one that never does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.net.connection import ClientConnection
from flintmq.protocol.commands import DELETE_TOPIC_IN_BROKER, HELLO, PROTOCOL_VERSION, UPDATE_AND_CREATE_TOPIC, Command
from flintmq.protocol.frames import REQUEST, FrameParser, encode_head
from flintmq.protocol.produce_frame import ProduceHead
from tests.paired_brokers import Pair, Side, pair_of, split_evenly

TOPICS = ("orders", "payments", "returns")
PREFIXES = ("", "AB" * 10, "CD" * 10)


class ProduceSide(Side):
    """A broker whose client speaks FlintMQ's protocol."""

    def make_connection(self) -> ClientConnection:
        """Return a new connection to the broker."""
        return ClientConnection(self.broker, ("127.0.0.1", 4000), lambda connection: None)

    async def prepare(self) -> None:
        """Say HELLO, and create the topics."""
        await self.feed([_request(HELLO, 1, {"protocol": PROTOCOL_VERSION, "client": "test"})], 1)
        for number, topic in enumerate(TOPICS, 2):
            await self.feed([_request(UPDATE_AND_CREATE_TOPIC, number, {"topic": topic, **_queues(2)})], number)

    def answers(self) -> list[Any]:
        """Return the responses."""
        return _frames(self.wire.sent)


def _request(command: Command, request_id: int, fields: dict[str, Any]) -> bytes:
    return encode_head(REQUEST, command.code, request_id, fields, 0)


def _queues(count: int) -> dict[str, int]:
    return {"read_queues": count, "write_queues": count}


def _frames(sent: bytearray) -> list[tuple[int, int, dict[str, Any], bytes]]:
    parser = FrameParser()
    frames = []
    for at in range(0, len(sent), 4096):
        piece = sent[at : at + 4096]
        parser.writable()[: len(piece)] = piece
        parser.received(len(piece))
        while (frame := parser.next_frame()) is not None:
            frames.append((frame.request_id, frame.code, frame.fields, bytes(frame.body)))
    return frames


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[ProduceSide]]:
    with pair_of(ProduceSide, request.param) as made:
        yield made


properties = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "colour"]), st.text("ab\x01", max_size=3), max_size=2)
rows = st.tuples(st.binary(max_size=40), properties)


@st.composite
def produces(draw: st.DrawFn) -> tuple[ProduceHead, dict[str, Any]]:
    """Return the constant part of a PRODUCE, and its numbers and body; most are valid."""
    layout = draw(st.sampled_from([0, 0, 1]))
    count = draw(st.integers(1, 3))
    if layout:
        bodies = [draw(st.binary(max_size=20)) for _ in range(count)]
        body = msgpack.packb(bodies) + msgpack.packb([draw(st.sampled_from([None, "k"])) for _ in bodies])
    else:
        body = b"".join(msgpack.packb(draw(rows)) for _ in range(count))
    head = ProduceHead(
        draw(st.sampled_from(TOPICS)),
        draw(st.sampled_from([-1, -1, -1, 0, 1, 7])),
        layout,
        draw(st.sampled_from(["", "", "", "sync", "never"])),
        draw(st.sampled_from(["", "", "TAGS\x01red\x02", "DELAY\x0118\x02"])),
        draw(st.sampled_from(PREFIXES)),
    )
    return head, {
        "count": draw(st.sampled_from([count] * 8 + [count + 1, 0, 1 << 31])),
        "first": draw(st.integers(0, 40) | st.sampled_from([2**48 - 1, 2**48])),
        "born_ms": draw(st.sampled_from([0, 1_600_000_000_000, 2**63])),
        "body": body,
    }


changes = st.tuples(st.sampled_from(TOPICS), st.sampled_from(["delete", "read only", "writable", "one queue"]))
steps = st.lists(
    st.tuples(st.lists(produces(), min_size=1, max_size=4), st.integers(1, 6), st.none() | changes),
    min_size=1,
    max_size=8,
)


def _change(topic: str, change: str, request_id: int) -> bytes:
    if change == "delete":
        return _request(DELETE_TOPIC_IN_BROKER, request_id, {"topic": topic})
    fields: dict[str, Any] = {"topic": topic, **_queues(1 if change == "one queue" else 2)}
    return _request(UPDATE_AND_CREATE_TOPIC, request_id, {**fields, "perm": 4 if change == "read only" else 6})


@given(steps=steps, repeats=st.integers(1, 3), advance_ms=st.integers(0, 3))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_store_answer_and_count_the_same(
    pair: Pair[ProduceSide], steps: list[Any], repeats: int, advance_ms: int
) -> None:
    sides = (pair.short, pair.general)
    for frames, pieces, change in steps * repeats:
        stream = bytearray()
        for head, numbers in frames:
            pair.next_id += 1
            stream += head.encode(
                pair.next_id, numbers["count"], numbers["first"], numbers["born_ms"], len(numbers["body"])
            )
            stream += numbers["body"]
        chunks = split_evenly(bytes(stream), pieces)
        pair.next_id += 1
        for side in sides:
            side.clock.at_ms += advance_ms
            pair.runner.run(side.feed(chunks, len(frames)))
            if change is not None:
                pair.runner.run(side.feed([_change(change[0], change[1], pair.next_id)], len(frames) + 1))
        pair.check_equal()
    assert not pair.general.connection.repeated.headers
    event(f"kept headers: {min(len(pair.short.connection.repeated.headers), 4)}")
