"""The flights of a year as a stream: sent in the order of their hours, as they would have come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path

from ..errors import InvalidArgument
from ..message import Message
from ..sync.admin import Admin
from ..sync.producer import Producer
from .errors import InvalidFlights
from .flights import heartbeat, message_of, read_flights

QUEUES = 4
SLICE = 500
"""Messages that are sent at once, each queue its part. Never is one queue further ahead of another than this: about a
day of flights, half of what the query waits for late ones (``queries.LATENESS``)."""
QUIET_DAYS = 7
HEARTBEAT_HOURS = 6
"""After the last flight time goes on for so many days: a message that says so in every queue, each so many hours. It is
what closes the last hours; the steps are short against ``queries.LATENESS``, so that none closes an hour whose flights
stand in another queue, not read yet."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was sent, and acknowledged."""

    flights: int
    heartbeats: int
    queues: int
    body_bytes: int
    seconds: float


def replay(
    addresses: str,
    topic: str,
    csv: Path,
    *,
    queues: int = QUEUES,
    per_second: float | None = None,
    timeout: float = 10.0,
    advance: Callable[[int, int], None] = lambda sent, total: None,
) -> Replayed:
    """Send all flights of a CSV file to a topic that holds nothing yet, in the order of their hours.

    Makes the topic with ``queues`` where it is not there. ``per_second``: flights a second, None: as fast as they are
    acknowledged. ``timeout``: seconds for each answer. ``advance(sent, total)`` is called after every slice.
    Raises ``InvalidFlights``, ``InvalidArgument`` for a topic that holds messages, and what the broker answers.
    """
    with Admin(addresses, timeout=timeout) as admin:
        queues = _empty_topic(admin, topic, queues)
    messages, last = _in_order(csv, topic)
    started = time.monotonic()
    with Producer(addresses, delivery_timeout=timeout) as producer:
        for begin in range(0, len(messages), SLICE):
            _send(producer, messages[begin : begin + SLICE], queues)
            sent = min(begin + SLICE, len(messages))
            advance(sent, len(messages))
            if per_second is not None:
                time.sleep(max(0.0, started + sent / per_second - time.monotonic()))
        beats = quiet_time(last, topic)
        for beat in beats:
            _send(producer, [beat] * queues, queues)
    body_bytes = sum(len(message.body) for message in messages)
    return Replayed(len(messages), len(beats) * queues, queues, body_bytes, time.monotonic() - started)


def quiet_time(last: datetime, topic: str) -> list[Message]:
    """What says that time went on after the last flight: each goes to every queue."""
    step = timedelta(hours=HEARTBEAT_HOURS)
    return [heartbeat(last + step * number, topic) for number in range(1, timedelta(days=QUIET_DAYS) // step + 1)]


def _empty_topic(admin: Admin, topic: str, queues: int) -> int:
    """Makes sure that the topic is there and empty; how many queues it has."""
    if (info := admin.topics().get(topic)) is None:
        admin.create_topic(topic, queues)
        return queues
    if count := sum(queue.count for queue in admin.topic_stats(topic)):
        raise InvalidArgument(
            f"topic {topic!r} holds {count:,} messages already, and a second year behind the first would be counted as "
            "late: give another topic, or delete this one"
        )
    return info.write_queues


def _in_order(csv: Path, topic: str) -> tuple[list[Message], datetime]:
    """All messages by the hour of their flights, and the last hour."""
    found = [(flight.event_time, message_of(flight, topic)) for flight in read_flights(csv)]
    if not found:
        raise InvalidFlights(f"{csv} has no flights: nothing but a heading")
    found.sort(key=itemgetter(0))
    return [message for _, message in found], found[-1][0]


def _send(producer: Producer, messages: Sequence[Message], queues: int) -> None:
    """Shared out message by message, so that all queues stay at the same hour; each queue's part keeps its order."""
    for queue in range(queues):
        if part := messages[queue::queues]:
            producer.send_many(part, queue=queue)
