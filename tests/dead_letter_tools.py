"""Sent-back messages and dead letters over a plain connection, where nothing happens by itself."""

from __future__ import annotations

from collections.abc import Sequence

from flintmq.client import Admin, Message, Producer
from flintmq.client.core.produce.receipts import Receipt
from flintmq.protocol.commands import CONSUMER_SEND_MSG_BACK, PHYSICAL_OFFSET_STRUCT
from tests.conftest import RawConnection, RunningBroker

DEAD_AT_ONCE = -1


def send_back(
    connection: RawConnection,
    group: str,
    physical_offsets: Sequence[int],
    level: int = DEAD_AT_ONCE,
    reason: str | None = None,
) -> None:
    """Send messages back, to be delivered again after a delay level or to become dead letters at once."""
    for first in range(0, len(physical_offsets), 1024):
        some = physical_offsets[first : first + 1024]
        body = b"".join(map(PHYSICAL_OFFSET_STRUCT.pack, some))
        fields: dict[str, object] = {"group": group, "count": len(some), "delay_level": level}
        if reason is not None:
            fields["reason"] = reason
        connection.call(CONSUMER_SEND_MSG_BACK, fields, body).raise_for_error()


def bury(
    running: RunningBroker,
    connection: RawConnection,
    group: str,
    messages: Sequence[Message],
    reason: str | None = None,
) -> Sequence[Receipt]:
    """Send messages and let all of them become dead letters of the group, in this order."""
    with Admin(running.address) as admin, Producer(running.address) as producer:
        for topic in {message.topic for message in messages} - admin.topics().keys():
            admin.create_topic(topic, queues=2)
        receipts = producer.send_many(messages)
    send_back(connection, group, [receipt.physical_offset for receipt in receipts], reason=reason)
    return receipts
