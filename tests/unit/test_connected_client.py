"""A client and its connection: callbacks for the loss are called once, and not after another one has cancelled them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from flintmq.broker.remoting.gateway import RemotingClient
from flintmq.broker.requests.connected_client import ConnectedClient, ResponseQueue
from flintmq.broker.security.users import AccessTable
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import decode_frame


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


def test_no_request_to_a_rocketmq_client_carries_a_signature() -> None:
    """Whatever fields a caller passes on: who has another's signature can make other requests with it."""
    sent: list[bytes] = []
    responses = cast(ResponseQueue, SimpleNamespace(send=lambda head, body: sent.append(head)))
    client = RemotingClient(("127.0.0.1", 40_000), AccessTable(lambda: None), responses)
    fields = {"topic": "orders", "AccessKey": "key", "Signature": "c2lnbmF0dXJl", "SecurityToken": "token"}
    client.send_one_way(codes.NOTIFY_CONSUMER_IDS_CHANGED, fields)
    client.send_request(codes.GET_CONSUMER_RUNNING_INFO, fields, b"", lambda frame: None)
    assert [decode_frame(bytearray(head), 0, len(head)).fields for head in sent] == 2 * [{"topic": "orders"}]
