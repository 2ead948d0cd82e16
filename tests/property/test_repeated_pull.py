"""The short way of repeated PULL headers: a broker that takes it does the same as one that never does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.protocol.frames import ProduceHead, PullHead
from tests.native_side import CHANGES, TOPICS, NativeSide, change_topic
from tests.paired_brokers import Pair, pair_of, split_evenly


class PullSide(NativeSide):
    """A broker whose responses may come in any order: some pulls wait for a moment, or for their turn."""

    def answers(self) -> list[Any]:
        """Return the responses by request id."""
        return sorted(super().answers(), key=lambda answer: answer[0])


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[PullSide]]:
    with pair_of(PullSide, request.param) as made:
        yield made


@st.composite
def pulls(draw: st.DrawFn) -> tuple[PullHead, int]:
    """Return the constant part of a PULL, and its offset; most are valid."""
    fields: dict[str, str | int] = {
        "topic": draw(st.sampled_from([*TOPICS[:2] * 4, "offers"])),
        "queue": draw(st.sampled_from([0, 0, 0, 0, 0, 1, 7])),
        "max_count": draw(st.sampled_from([3, 3, 3, 3, 1, 0])),
    }
    fields |= draw(st.sampled_from([{}, {"max_bytes": 200}, {"max_bytes": 200}, {"wait_ms": 1}]))
    fields |= draw(st.sampled_from([*[{}] * 9, {"tags": "red"}, {"filter": "a > 1"}]))
    fields |= draw(st.sampled_from([*[{}] * 9, {"group": "audit"}, {"group": "%bad"}, {"group": "g", "member": "m"}]))
    return PullHead(fields), draw(st.integers(0, 30) | st.sampled_from([2**63 - 1, 2**63]))


changes = st.tuples(st.sampled_from(TOPICS[:2]), st.sampled_from(CHANGES))
steps = st.lists(
    st.tuples(
        st.sampled_from(TOPICS[:2]),
        st.integers(0, 3),
        st.lists(pulls(), min_size=1, max_size=5),
        st.integers(1, 6),
        st.none() | changes,
    ),
    min_size=1,
    max_size=8,
)


@given(steps=steps, repeats=st.integers(1, 3))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_answer_and_count_the_same(pair: Pair[PullSide], steps: list[Any], repeats: int) -> None:
    sides = (pair.short, pair.general)
    for topic, messages, asked, pieces, change in steps * repeats:
        pair.next_id += 1
        body = b"".join(msgpack.packb((b"%d" % number, {"TAGS": "red"})) for number in range(messages))
        produce = ProduceHead(topic, 0, 0, "", "", "").encode(pair.next_id, max(messages, 1), 0, 0, len(body)) + body
        stream = bytearray()
        for head, offset in asked:
            pair.next_id += 1
            stream += head.encode(pair.next_id, offset)
        pair.next_id += 1
        for side in sides:
            # The pulls follow the responses: a pull may or may not see a message that is not acknowledged yet.
            pair.runner.run(side.feed([produce], 1))
            side.wire.sent.clear()
            pair.runner.run(side.feed(split_evenly(bytes(stream), pieces), len(asked)))
            changed, how = change or (topic, "writable")
            pair.runner.run(side.feed([change_topic(changed, how, pair.next_id)], len(asked) + 1))
        assert pair.short.pulled() == pair.general.pulled()
        pair.check_equal()
    assert not pair.general.connection.repeated.headers
    event(f"kept headers: {min(len(pair.short.connection.repeated.headers), 4)}")
