"""The common part of all producers: from the arguments of a call to what ``Outbox`` takes, and back to receipts.

No sockets, no waiting: if the broker must be asked first, the result is a plan (see ``operations``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ....protocol.errors import FlintError, QueueNotExist, RequestTimeout, TopicNotExist
from ....protocol.produce_frame import ANY_QUEUE
from ....protocol.storage import ids
from ...errors import DeliveryFailed, InvalidArgument, InvalidMessageType
from ...message import Body, Message, Row, check_topic
from .. import topics as topic_operations
from ..compression import Compressor
from ..rpc.operation import Plan
from ..rpc.timeouts import check_timeout
from .accumulator import NEVER, BatchGroup, Bulk
from .delivery import Outbox
from .grouping import (
    BulkProperties,
    check_bodies,
    check_bulk_keys,
    check_flush,
    check_messages,
    check_queue,
    common_properties,
    group_messages,
    sharded_topics,
)
from .packer import ColumnSource, RowSource
from .prepared import check_attempt
from .receipts import Receipt, settle
from .route import QueueCounts, queue_of

ASK = -2
"""Stands for a queue that depends on the sharding key of a topic whose number of queues is not known yet."""

Prepared: TypeAlias = tuple[int, Row, str, float]
"""One message's queue (or ``ANY_QUEUE``, or ``ASK``), row, flush mode and deadline."""
Groups: TypeAlias = list[tuple[str, int, BatchGroup]]
"""A bulk's topics, queues and messages, as ``Outbox.add_bulk`` takes them."""


class BulkTerms(NamedTuple):
    """Arguments that ``send_many`` and ``send_bulk`` have in common, as the application passed them."""

    queue: int | None
    flush: str | None
    prepare: str | None
    timeout: float | None


class ProducerCore:
    """A producer's settings, its ``delivery`` and its knowledge of topics. The arguments are those of ``Producer``.

    ``client_name``: the producer's name for HELLO. All times are monotonic seconds that the driver passes in.
    """

    def __init__(
        self,
        client_name: str,
        *,
        delivery_timeout: float,
        compress_over: int | None,
        compression: str | None,
        in_flight_bytes_max: int,
        flush: str | None,
    ) -> None:
        if type(in_flight_bytes_max) is not int or in_flight_bytes_max <= 0:
            raise InvalidArgument(
                f"in_flight_bytes_max is {in_flight_bytes_max!r}; it must be a number of bytes above 0"
            )
        self.delivery_seconds = check_timeout("delivery_timeout", delivery_timeout)
        self.client_name = client_name
        self.flush = check_flush(flush)
        self._compressor = Compressor(compress_over, compression)
        self.compress_over = NEVER if compress_over is None else compress_over
        self._queue_counts = QueueCounts()
        counter = ids.unique_counter_start(time.time())
        self.delivery = Outbox(self.delivery_seconds, in_flight_bytes_max, "", counter)

    @property
    def record_bytes_max(self) -> int:
        """Largest record of a message that the broker accepts."""
        return self.delivery.frames.record_bytes_max

    def connected(self, local_address: bytes) -> None:
        """Handle a new connection; the local address (4 or 16 bytes) of the first one goes into the unique keys."""
        if not self.delivery.frames.unique_prefix:
            seed = f"{id(self)} {time.time_ns()} {os.urandom(8).hex()}".encode()
            self.delivery.frames.unique_prefix = ids.unique_prefix(local_address, os.getpid(), seed)

    # ---- one message

    def prepare(
        self, message: Message, queue: int | None, flush: str | None, timeout: float | None, now: float
    ) -> Prepared:
        """Check the arguments of a ``send``; raises if one is not valid."""
        if type(message) is not Message and not isinstance(message, Message):
            raise InvalidMessageType(f"the message must be a flintmq.client.Message, not {type(message).__name__}")
        deadline = now + (self.delivery_seconds if timeout is None else check_timeout("timeout", timeout))
        to = ANY_QUEUE if queue is None else check_queue(queue)
        if to == ANY_QUEUE and (sharding_key := message.sharding_key) is not None:
            count = self._queue_counts.of(message.topic, now)
            to = ASK if count is None else queue_of(sharding_key, count)
        row = message.row()
        if len(row[0]) > self.compress_over:
            body, sys_flag = self._compressor.compress(row[0])
            row = (body, row[1], sys_flag) if sys_flag else row
        return to, row, self.flush if flush is None else check_flush(flush), deadline

    def sharded_queue(self, message: Message, now: float) -> Plan[int]:
        """Return the plan that finds the queue of a message with a sharding key."""
        sharding_key = message.sharding_key
        assert sharding_key is not None
        counts = yield from self._write_queues({message.topic}, now)
        return queue_of(sharding_key, counts[message.topic])

    def no_room(self) -> RequestTimeout:
        """Return the error of a message for which there was no room in time."""
        return RequestTimeout(
            f"{self.delivery.pending_bytes} bytes are unacknowledged and none were acknowledged in time; the message "
            "was not sent. If the broker is overloaded, use a longer timeout= or a larger in_flight_bytes_max="
        )

    # ---- several messages

    def many(self, messages: Iterable[Message], terms: BulkTerms, now: float) -> Plan[tuple[Bulk, Groups]]:
        """Check the arguments of a ``send_many`` and group its messages by destination."""
        several = check_messages(messages)
        to, mode, bulk = self._new_bulk(len(several), terms, now)
        counts: Mapping[str, int] = {}
        if to == ANY_QUEUE:
            counts = yield from self._write_queues(sharded_topics(several), now)
        ways = group_messages(several, to, counts)
        return bulk, [
            (
                way.topic,
                way.queue,
                BatchGroup(bulk, RowSource(way.messages, self._compressor), way.indexes, way.common, mode),
            )
            for way in ways
        ]

    def columns(
        self,
        topic: str,
        bodies: Iterable[Body],
        keys: Iterable[str | Sequence[str] | None] | None,
        shared: BulkProperties,
        terms: BulkTerms,
        now: float,
    ) -> Plan[tuple[Bulk, Groups]]:
        """Check the arguments of a ``send_bulk``."""
        check_topic(topic)
        several = check_bodies(bodies)
        entries = check_bulk_keys(keys, len(several))
        common = common_properties(shared)
        to, mode, bulk = self._new_bulk(len(several), terms, now)
        sharding_key = shared.get("sharding_key")
        if to == ANY_QUEUE and sharding_key is not None:
            counts = yield from self._write_queues({topic}, now)
            to = queue_of(sharding_key, counts[topic])
        source = ColumnSource(several, entries, self._compressor)
        return bulk, [(topic, to, BatchGroup(bulk, source, range(len(several)), common, mode))]

    def _new_bulk(self, count: int, terms: BulkTerms, now: float) -> tuple[int, str, Bulk]:
        """Check the terms of a call; return its queue, its flush mode, and a bulk of ``count`` messages."""
        to = check_queue(terms.queue)
        mode = self.flush if terms.flush is None else check_flush(terms.flush)
        deadline = NEVER if terms.timeout is None else now + check_timeout("timeout", terms.timeout)
        return to, mode, Bulk(count, now, deadline, check_attempt(terms.prepare))

    def _write_queues(self, topics: Collection[str], now: float) -> Plan[dict[str, int]]:
        """Find the number of queues of each topic, or the number it will have after its first message creates it."""
        known = self._queue_counts
        if any(known.of(topic, now) is None for topic in topics):
            known.learned((yield [topic_operations.topics(system=True)])[0].values(), now)
        counts: dict[str, int] = {}
        for topic in topics:
            count = known.last_known(topic)
            if count is None:
                created: int = (yield [topic_operations.created_queues(self.client_name)])[0]
                count = known.will_be_created(topic, created)
            counts[topic] = count
        return counts

    # ---- outcomes

    def receipts(self, bulk: Bulk) -> Sequence[Receipt]:
        """Return the receipts of a finished bulk; raises ``DeliveryFailed`` if some of it failed."""
        return settle(bulk.parts, self._delivery_failed)

    def _delivery_failed(self, errors: Mapping[int, FlintError], receipts: Sequence[Receipt | None]) -> DeliveryFailed:
        for error in set(errors.values()):
            self.learn(error)
        return DeliveryFailed(errors, receipts)

    def learn(self, error: FlintError) -> None:
        """Expire the known queue counts if ``error`` means that topics have changed."""
        if isinstance(error, QueueNotExist | TopicNotExist):
            self._queue_counts.forget()


def raise_unseen(errors: Iterable[Any]) -> None:
    """Raise ``DeliveryFailed`` for failures that the application has not looked at, in order, if there are any."""
    numbered: dict[int, FlintError] = dict(enumerate(errors))
    if numbered:
        raise DeliveryFailed(numbered, [None] * len(numbered))
