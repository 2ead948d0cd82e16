"""How many repeated headers a connection keeps: many for many topics, as long as others have room for theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.handlers.repeated_headers import (
    HEADERS_MAX,
    HEADERS_PER_CONNECTION_MAX,
    MORE_HEADERS_MAX,
    RepeatedHeaders,
)
from flintmq.broker.requests.counters import Counters


def kept(broker: Any) -> int:
    """Return how many headers a new connection keeps of more than it may."""
    headers = RepeatedHeaders(broker)
    header: Any = None
    for number in range(2 * MORE_HEADERS_MAX):
        fixed = b"%d" % number
        if headers._has_room(fixed):
            headers._keep(fixed, header)
    return len(headers.headers)


@pytest.fixture
def broker() -> Any:
    return SimpleNamespace(short_sends=None, counters=Counters())


def test_a_connection_keeps_the_headers_of_many_topics(broker: Any) -> None:
    assert kept(broker) == MORE_HEADERS_MAX
    assert broker.counters.kept_headers == MORE_HEADERS_MAX


def test_connections_with_many_headers_leave_half_of_the_room_to_others(broker: Any) -> None:
    for _ in range(HEADERS_MAX // 2 // MORE_HEADERS_MAX):
        assert kept(broker) == MORE_HEADERS_MAX
    few = [kept(broker) for _ in range(HEADERS_MAX // 2 // HEADERS_PER_CONNECTION_MAX)]
    assert set(few) == {HEADERS_PER_CONNECTION_MAX}
    assert kept(broker) == 0
    assert broker.counters.kept_headers == HEADERS_MAX
