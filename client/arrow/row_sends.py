"""Turns the rows of a batch into as few calls of a producer as their order allows.

``send_bulk`` takes bodies and keys as columns, and one topic, tag, sharding key and queue for all. A message costs a
seventh of its cost with ``send_many``, which needs a ``Message`` for each. So rows are grouped by the values that must
be equal, unless the groups would be small or would reorder rows that share a queue or a sharding key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..errors import InvalidMessage
from ..message import Message
from .message_rows import NOTHING, CheckedRows, Distinct
from .scan import Ints

if TYPE_CHECKING:
    from ..sync.producer import Producer

T = TypeVar("T")

GROUP_ROWS_MIN = 256
"""Minimum average number of rows in a group: with fewer, each group's round trip costs more than it saves."""


class Send(Protocol):
    """One call of a producer."""

    @property
    def rows(self) -> Ints:
        """Positions in the batch of the rows that it sends."""

    def run(self, producer: Producer, prepare: str | None) -> None:
        """Send the rows and return when all are acknowledged; raises ``DeliveryFailed`` with the errors by index in
        ``rows``. ``prepare`` is the producer's argument."""


@dataclass(frozen=True, slots=True)
class ColumnSend:
    """Rows that differ only in body and keys."""

    rows: Ints
    topic: str
    bodies: list[bytes]
    keys: Sequence[Any] | None
    tags: str | None
    sharding_key: str | None
    queue: int | None
    properties: dict[str, str] | None = None

    def run(self, producer: Producer, prepare: str | None) -> None:
        """Send with ``Producer.send_bulk``."""
        producer.send_bulk(
            self.topic,
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            sharding_key=self.sharding_key,
            queue=self.queue,
            prepare=prepare,
        )


@dataclass(frozen=True, slots=True)
class MessageSend:
    """Rows of any kind that go to one queue, or to any queue."""

    rows: Ints
    messages: list[Message]
    queue: int | None

    def run(self, producer: Producer, prepare: str | None) -> None:
        """Send with ``Producer.send_many``."""
        producer.send_many(self.messages, queue=self.queue, prepare=prepare)


def sends(rows: CheckedRows) -> list[Send]:
    """Return the calls that, one after the other, send all rows.

    Raises ``InvalidMessage`` for the first row whose properties cannot be sent.
    """
    found: list[Send] = []
    for mine in _split(np.arange(len(rows)), rows.queues):
        found += _sends_to_queue(rows, mine, rows.queues.value(mine[0]))
    return found


def _sends_to_queue(rows: CheckedRows, mine: Ints, queue: int | None) -> Iterator[Send]:
    """Yield the calls for the rows that go to ``queue``, or to any queue if it is None."""
    if rows.properties is None:
        groups = list(_split(mine, rows.topics, rows.tags, rows.sharding_keys, rows.shared))
        is_large = len(groups) == 1 or len(groups) * GROUP_ROWS_MIN <= len(mine)
        if is_large and _order_holds(rows, mine, queue, len(groups)):
            yield from (_column_send(rows, group, queue) for group in groups)
            return
    yield _message_send(rows, mine, queue)


def _order_holds(rows: CheckedRows, mine: Ints, queue: int | None, groups: int) -> bool:
    """Return whether each sequence that must stay in order (a topic's queue or sharding key) is in one group."""
    if groups == 1 or (queue is None and rows.sharding_keys is NOTHING):
        return True
    in_order = (rows.topics,) if queue is not None else (rows.topics, rows.sharding_keys)
    return sum(1 for _ in _split(mine, *in_order)) == groups


def _split(mine: Ints, *columns: Distinct) -> Iterator[Ints]:
    """Yield the rows ``mine``, split by their values in ``columns``; each part ascends."""
    combined = None
    for column in columns:
        if column.codes is not None:
            codes = column.codes[mine]
            combined = codes if combined is None else _combined(combined, codes, len(column.values))
    if combined is None or not len(mine):
        yield mine
        return
    order = np.argsort(combined, kind="stable")
    bounds = np.flatnonzero(np.diff(combined[order])) + 1
    yield from np.split(mine[order], bounds)


def _combined(first: Ints, second: Ints, second_values: int) -> Ints:
    """Return one number for each pair of codes; renumbered, so that any number of columns can follow."""
    codes: Ints = np.unique(first * second_values + second, return_inverse=True)[1].astype(np.int64)
    return codes


def _column_send(rows: CheckedRows, mine: Ints, queue: int | None) -> ColumnSend:
    first = mine[0]
    return ColumnSend(
        rows=mine,
        topic=rows.topics.value(first),
        bodies=_taken(rows.bodies, mine),
        keys=None if rows.keys is None else _taken(rows.keys, mine),
        tags=rows.tags.value(first),
        sharding_key=rows.sharding_keys.value(first),
        queue=queue,
        properties=rows.shared.value(first),
    )


def _message_send(rows: CheckedRows, mine: Ints, queue: int | None) -> MessageSend:
    keys, properties, shared = rows.keys, rows.properties, rows.shared.value
    topic, tags, sharding_key = rows.topics.value, rows.tags.value, rows.sharding_keys.value
    messages = []
    for row in mine.tolist():
        try:
            message = Message(
                topic(row),
                rows.bodies[row],
                keys=(keys[row] or ()) if keys is not None else (),
                tags=tags(row),
                properties=properties[row] if properties is not None else shared(row),
                sharding_key=sharding_key(row),
            )
        except InvalidMessage as error:
            raise rows.invalid_properties(row, error) from None
        messages.append(message)
    return MessageSend(mine, messages, queue)


def _taken(values: list[T], mine: Ints) -> list[T]:
    return values if len(mine) == len(values) else [values[row] for row in mine.tolist()]
