"""Listeners that tests can wait for, and group members that speak frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgpack

from flintmq.client import Message, Producer, StoredMessage
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, HEART_BEAT, UNREGISTER_CLIENT, UPDATE_CONSUMER_OFFSET
from flintmq.protocol.errors import ConnectionFailed, NotPrimary
from tests.conftest import Answer, RawConnection

WAIT_SECONDS = 120.0
"""Longer than anything takes that works, also beside other work: it is the time after which a test fails."""
SOON_S = 9.0
"""Less than a call takes that does not end when its own short time is over: clients wait ten seconds by default."""
UNREACHABLE = (OSError, EOFError, ConnectionFailed, NotPrimary)
"""Errors of a server that starts, opens its store again, or does not lead."""


def until(holds: Callable[[], bool], what: str = "it", seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds that only polling can show. Where it asks a server that cannot be reached, it does
    not hold yet."""
    deadline = time.monotonic() + seconds
    while True:
        error: BaseException | None = None
        try:
            if holds():
                return
        except UNREACHABLE as unreachable:
            error = unreachable
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not happen within {seconds:.0f} s") from error
        time.sleep(0.005)


class Seen:
    """A listener that collects messages; ``then`` is called with each message, and may raise."""

    def __init__(self, then: Callable[[StoredMessage], object] | None = None) -> None:
        self.messages: list[StoredMessage] = []
        self._then = then
        self._changed = threading.Condition()

    def __call__(self, handed: Any) -> None:
        messages: Iterable[StoredMessage] = (handed,) if isinstance(handed, StoredMessage) else handed
        for message in messages:
            with self._changed:
                self.messages.append(message)
                self._changed.notify_all()
            if self._then is not None:
                self._then(message)

    def wait(self, count: int) -> list[StoredMessage]:
        """Wait for at least so many messages."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.messages) >= count, WAIT_SECONDS)
            assert arrived, f"{len(self.messages)} of {count} messages arrived"
            return list(self.messages)

    @property
    def bodies(self) -> list[bytes]:
        """Return the bodies in order of arrival."""
        return [message.body for message in self.messages]


class RawMember:
    """A group member that acts only when the test tells it to."""

    def __init__(self, connection: RawConnection, group: str, name: str, **fields: Any) -> None:
        self.connection = connection
        self.group = group
        self.name = name
        self.fields = fields
        self.epoch = 0
        self.rows: dict[tuple[str, int], tuple[int, int]] = {}
        """Next offset and epoch of the grant, by queue."""

    def beat(self, *topics: str, owned: Iterable[tuple[str, int]] | None = None, **fields: Any) -> Answer:
        """Send a heartbeat, by default as the owner of its current queues."""
        body = msgpack.packb(
            [[[topic, "", ""] for topic in topics], [list(queue) for queue in (self.rows if owned is None else owned)]]
        )
        wanted = {"group": self.group, "member": self.name, "epoch": self.epoch, **self.fields, **fields}
        answer = self.connection.call(HEART_BEAT, wanted, body)
        if answer.code == 0:
            self.epoch = answer.fields["epoch"]
            self.rows = {(row[0], row[1]): (row[2], row[3]) for row in msgpack.unpackb(answer.body)}
        return answer

    @property
    def queues(self) -> list[int]:
        """Return the numbers of the queues that it may consume, without the retry topic's."""
        return sorted(queue for topic, queue in self.rows if not topic.startswith("%"))

    def commit(self, topic: str, queue: int, offset: int, **fields: Any) -> Answer:
        """Commit the offset of one queue."""
        wanted = {"group": self.group, "topic": topic, "count": 1, "member": self.name, "epoch": self.epoch, **fields}
        return self.connection.call(UPDATE_CONSUMER_OFFSET, wanted, CONSUMER_OFFSET_STRUCT.pack(queue, offset))

    def pull(self, topic: str, queue: int, offset: int, **fields: Any) -> Answer:
        """Pull as this member."""
        return self.connection.pull(
            topic, queue, offset, group=self.group, member=self.name, epoch=self.epoch, **fields
        )

    def leave(self) -> None:
        """Leave the group."""
        self.connection.call(UNREGISTER_CLIENT, {"group": self.group, "member": self.name}).raise_for_error()


Members = Callable[..., RawMember]


def joined(connection: RawConnection, group: str, name: str, *topics: str, **fields: Any) -> RawMember:
    """Return a member that reads from the beginning and stays in the group without heartbeats."""
    member = RawMember(connection, group, name, start="first", session_timeout_ms=300_000, **fields)
    member.beat(*topics).raise_for_error()
    return member


def numbered(topic: str, count: int, **options: Any) -> list[Message]:
    return [Message(topic, b"%d" % number, **options) for number in range(count)]


def fill(producer: Producer, topic: str, count: int, queues: int = 4, **fields: Any) -> None:
    """Send messages 0 to ``count``, to the queues in turn."""
    for queue in range(queues):
        producer.send_many(
            [Message(topic, b"%d" % number, **fields) for number in range(queue, count, queues)], queue=queue
        )
