"""The short way of repeated PRODUCE headers: a broker that takes it does the same as one that never does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.protocol.frames import ProduceHead
from tests.native_side import CHANGES, TOPICS, NativeSide, change_topic
from tests.paired_brokers import Pair, pair_of, split_evenly

PREFIXES = ("", "AB" * 10, "CD" * 10)


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[NativeSide]]:
    with pair_of(NativeSide, request.param) as made:
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


changes = st.tuples(st.sampled_from(TOPICS), st.sampled_from(CHANGES))
steps = st.lists(
    st.tuples(st.lists(produces(), min_size=1, max_size=4), st.integers(1, 6), st.none() | changes),
    min_size=1,
    max_size=8,
)


@given(steps=steps, repeats=st.integers(1, 3), advance_ms=st.integers(0, 3))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_store_answer_and_count_the_same(
    pair: Pair[NativeSide], steps: list[Any], repeats: int, advance_ms: int
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
                pair.runner.run(side.feed([change_topic(change[0], change[1], pair.next_id)], len(frames) + 1))
        pair.check_equal()
    assert not pair.general.connection.repeated.headers
    event(f"kept headers: {min(len(pair.short.connection.repeated.headers), 4)}")
