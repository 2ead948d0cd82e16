"""A client whose connection is lost: callbacks are called once, and not after another one has cancelled them."""

from __future__ import annotations

from functools import partial
from typing import cast

import pytest

from flintmq.broker.requests.connected_client import ConnectedClient
from flintmq.broker.requests.response_queue import ResponseQueue
from flintmq.broker.security.access import AccessTable


@pytest.fixture
def client() -> ConnectedClient:
    """Return a client that is sent nothing."""
    return ConnectedClient(("127.0.0.1", 40_000), AccessTable(lambda: None), cast(ResponseQueue, None))


def test_a_lost_connection_calls_back_in_order(client: ConnectedClient) -> None:
    calls: list[int] = []
    for number in range(3):
        client.when_lost(partial(calls.append, number))
    client.disconnected()
    client.disconnected()
    assert calls == [0, 1, 2]


def test_a_callback_cancels_a_later_one(client: ConnectedClient) -> None:
    calls: list[str] = []
    client.when_lost(lambda: cancel())
    cancel = client.when_lost(lambda: calls.append("cancelled"))
    client.when_lost(lambda: calls.append("last"))
    client.disconnected()
    assert calls == ["last"]


def test_a_callback_for_a_lost_connection_is_called_at_once(client: ConnectedClient) -> None:
    calls: list[str] = []
    client.lost = True
    client.when_lost(lambda: calls.append("now"))
    assert calls == ["now"]
