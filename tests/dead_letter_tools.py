"""Members of groups and dead letters for tests, over a plain connection: nothing happens by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from flintmq.client import Admin, Message, Producer
from flintmq.client.core.receipts import Receipt
from flintmq.protocol.commands import (
    CONSUMER_SEND_MSG_BACK,
    HEART_BEAT,
    PHYSICAL_OFFSET_STRUCT,
    PULL,
    UNREGISTER_CLIENT,
)
from tests.conftest import Answer, RawConnection, RunningBroker

DEAD_AT_ONCE = -1
SESSION_MS = 300_000


@dataclass
class Member:
    """A member of a group that does only what it is told."""

    connection: RawConnection
    group: str
    name: str
    epoch: int = 0
    rows: Sequence[tuple[str, int, int, int]] = ()
    """What it may consume: topic, queue, next offset, epoch since when."""

    def beat(self, *topics: str, mode: str = "clustering") -> Member:
        """Join with these topics, or stay."""
        held = [[topic, queue] for topic, queue, _, _ in self.rows]
        body = msgpack.packb([[[topic, "", ""] for topic in topics], held])
        fields = {"group": self.group, "member": self.name, "epoch": self.epoch, "mode": mode, "start": "first"}
        answer = self.connection.call(HEART_BEAT, fields | {"session_timeout_ms": SESSION_MS}, body).raise_for_error()
        self.epoch = answer.fields["epoch"]
        self.rows = [tuple(row) for row in msgpack.unpackb(answer.body)]
        return self

    def pull(self, topic: str, queue: int, offset: int, **fields: Any) -> Answer:
        """Pull as this member."""
        who = {"group": self.group, "member": self.name, "epoch": self.epoch}
        where = {"topic": topic, "queue": queue, "offset": offset}
        return self.connection.call(PULL, who | where | fields).raise_for_error()

    def leave(self) -> None:
        """Leave the group."""
        self.connection.call(UNREGISTER_CLIENT, {"group": self.group, "member": self.name}).raise_for_error()


def send_back(
    connection: RawConnection, group: str, physical_offsets: Sequence[int], level: int = DEAD_AT_ONCE
) -> None:
    """Have messages tried again after a delay level, or become dead letters at once."""
    for first in range(0, len(physical_offsets), 1024):
        some = physical_offsets[first : first + 1024]
        body = b"".join(map(PHYSICAL_OFFSET_STRUCT.pack, some))
        fields = {"group": group, "count": len(some), "delay_level": level}
        connection.call(CONSUMER_SEND_MSG_BACK, fields, body).raise_for_error()


def bury(
    running: RunningBroker, connection: RawConnection, group: str, messages: Sequence[Message]
) -> Sequence[Receipt]:
    """Send messages, all of which become dead letters of the group, in this order."""
    with Admin(running.address) as admin, Producer(running.address) as producer:
        for topic in {message.topic for message in messages} - admin.topics().keys():
            admin.create_topic(topic, queues=2)
        receipts = producer.send_many(messages)
    send_back(connection, group, [receipt.physical_offset for receipt in receipts])
    return receipts
