"""Sends of RocketMQ's clients at the level of the protocol: every check, its code, and what is stored."""

from __future__ import annotations

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import BINARY_HEADER, JSON_HEADER
from tests.remoting_tools import RemotingBroker


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER])
def test_a_message_is_stored_and_its_place_is_told(gateway: RemotingBroker, topic: str, header_type: int) -> None:
    with gateway.connect(header_type) as remote:
        answer = remote.produce(topic, b"body", {"KEYS": "k"})
    assert answer.code == codes.SUCCESS
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")
    assert len(answer.fields["msgId"]) == 32
