"""The replay: sends the flights of a year in the order of their hours, as they would have arrived live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path

from flintmq.client import Admin, InvalidArgument, Message, Producer

from .errors import InvalidFlights
from .flight import heartbeat, message_of, read_flights

QUEUES = 4
SLICE = 500
"""Number of messages that are sent together, dealt out to the queues. No queue is ever further ahead of another than
this, about a day of flights: half of the time that the query waits for late ones (``queries.LATENESS``)."""
QUIET_DAYS = 7
HEARTBEAT_HOURS = 6
"""After the last flight, every queue gets a heartbeat for each ``HEARTBEAT_HOURS`` of ``QUIET_DAYS``, which closes the
last hours. The steps are short compared with ``queries.LATENESS``, so that no heartbeat closes an hour whose flights
are still unread in another queue."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Totals of a replay; the broker has acknowledged every message."""

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
    """Send all flights of a CSV file to an empty topic, in the order of their hours.

    Creates the topic with ``queues`` if it does not exist. ``per_second`` limits the rate; None sends as fast as the
    broker acknowledges. ``timeout`` is in seconds, for each response. ``advance(sent, total)`` is called after every
    slice. Raises ``InvalidFlights``, ``InvalidArgument`` if the topic holds messages, and the broker's errors.
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
    """Return the heartbeats after the last flight; each of them goes to every queue."""
    step = timedelta(hours=HEARTBEAT_HOURS)
    return [heartbeat(last + step * number, topic) for number in range(1, timedelta(days=QUIET_DAYS) // step + 1)]


def _empty_topic(admin: Admin, topic: str, queues: int) -> int:
    """Create the topic, or check that it is empty; return its number of queues."""
    if (info := admin.topics().get(topic)) is None:
        admin.create_topic(topic, queues)
        return queues
    if count := sum(queue.count for queue in admin.topic_stats(topic)):
        raise InvalidArgument(
            f"topic {topic!r} holds {count:,} messages already; the flights of a second replay would be dropped as "
            "late: use another topic, or delete this one"
        )
    return info.write_queues


def _in_order(csv: Path, topic: str) -> tuple[list[Message], datetime]:
    """Return all messages, sorted by the hour of their flights, and the last hour."""
    found = [(flight.event_time, message_of(flight, topic)) for flight in read_flights(csv)]
    if not found:
        raise InvalidFlights(f"{csv} has a heading but no flights")
    found.sort(key=itemgetter(0))
    return [message for _, message in found], found[-1][0]


def _send(producer: Producer, messages: Sequence[Message], queues: int) -> None:
    """Send messages dealt out one by one, so that all queues are at the same hour; each queue keeps their order."""
    for queue in range(queues):
        if part := messages[queue::queues]:
            producer.send_many(part, queue=queue)
