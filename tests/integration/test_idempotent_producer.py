"""A frame that is sent again is stored once, and answered as the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import ConnectionFactory, RunningBroker

PREFIX = "7F00000155A738209801"


def test_the_same_frame_twice_is_stored_once(
    shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
) -> None:
    first, second = connect(shared_broker), connect(shared_broker)
    frame = {"unique_prefix": PREFIX, "unique_first": 7}
    answer = first.produce(topic, b"a", b"b", **frame).raise_for_error()
    for connection in (first, second, first):
        again = connection.produce(topic, b"a", b"b", **frame)
        assert (again.code, again.fields, again.body) == (answer.code, answer.fields, answer.body)
