"""The common part of all producers: from the arguments of a call to what ``Outbox`` takes, and back to receipts.

No sockets, no waiting: if the broker must be asked first, the result is a plan (see ``operations``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ....protocol import commands
from ....protocol.commands import AttemptInfo, CopyingInfo
from ....protocol.errors import FlintError, QueueNotExist, RemoteProtocolError, RequestTimeout, TopicNotExist
from ....protocol.fields import decode_fields
from ....protocol.frames import ANY_QUEUE
from ....protocol.rows import decode_rows
from ....protocol.storage import record
from ...errors import InvalidArgument, InvalidArgumentType
from ...message import Message, Row, check_topic
from .. import topics as topic_operations
from ..compression import Compressor
from ..rpc.operation import Operation, Plan, operation, pack_body, unpack_body
from ..rpc.session import Answer
from ..rpc.timeouts import check_timeout
from .accumulator import NEVER, BatchGroup, Bulk
from .delivery import Outbox
from .packer import (
    BulkProperties,
    ColumnSource,
    Flush,
    QueueCounts,
    RowSource,
    check_bulk_keys,
    check_flush,
    check_queue,
    common_properties,
    group_messages,
    queue_of,
    sharded_topics,
)
from .receipts import DeliveryFailed, Receipt, settle

# ---- Operations on prepared messages (staged transactions): commit, drop and list attempts.


@dataclass(frozen=True, slots=True)
class PreparedInfo:
    """``attempts``: the requested ones; ``open``: total number of attempts; ``copying``: committed transactions whose
    messages are being copied."""

    attempts: Sequence[AttemptInfo]
    open: int
    copying: Sequence[CopyingInfo]


COPIED_A_SECOND_MIN = 50_000
"""The broker responds to a commit after copying all messages: allow it as much additional time as this rate gives."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit. ``already``: an earlier request had committed the transaction, so this one did nothing;
    ``messages``: number of messages that this request committed."""

    already: bool
    messages: int


def check_attempt(prepare: Any) -> str:
    """Return ``prepare=`` in PRODUCE's form: empty for None, which sends messages instead of preparing them."""
    if prepare is None:
        return ""
    if type(prepare) is not str:
        raise InvalidArgumentType(f"prepare must be a str, not {type(prepare).__name__}")
    if not 0 < len(prepare) <= commands.PREPARED_NAME_CHARS_MAX or not (prepare.isascii() and prepare.isprintable()):
        raise InvalidArgument(
            f"prepare is {prepare[:40]!r}; an attempt's name must be 1 to {commands.PREPARED_NAME_CHARS_MAX} printable "
            "ASCII characters"
        )
    return prepare


def commit_prepared(
    series: str,
    number: int,
    attempts: Mapping[str, int],
    *,
    drop: str | None = None,
    flush: Flush | None = None,
    timeout: float | None = None,
) -> Operation[Committed]:
    """Commit messages that were sent with ``prepare=``, all or none, as transaction ``number`` of ``series``.

    ``attempts``: number of prepared messages by the attempt's name; ``drop``: also drop the other attempts whose
    names begin with this. A transaction is committed only once, however often this is called: a number that is not
    above the last committed one of its series counts as already committed. Raises ``PreparedIncomplete`` if an
    attempt is not complete, and ``TopicNotExist`` or ``QueueNotExist`` if the destination of some messages is
    missing; nothing is committed then.
    """
    for name, messages in attempts.items():
        check_attempt(name)
        if type(messages) is not int or messages < 0:
            raise InvalidArgument(f"attempts[{name!r}] is {messages!r}; it must be the number of its messages")

    def decode(answer: Answer) -> Committed:
        fields = decode_fields(commands.CommitPreparedAnswer, answer.fields)
        return Committed(fields.already, fields.messages)

    return operation(
        commands.COMMIT_PREPARED,
        decode,
        pack_body(list(attempts.items())),
        hold_seconds=sum(attempts.values()) / COPIED_A_SECOND_MIN,
        timeout=timeout,
        series=series,
        number=number,
        count=len(attempts),
        drop=drop or "",
        flush=check_flush(flush),
    )


def prepared(prefix: str = "", *, max_count: int = 100, timeout: float | None = None) -> Operation[PreparedInfo]:
    """Return the uncommitted attempts whose names begin with ``prefix``, those that have been idle longest first,
    and the committed transactions that are still being copied."""

    def decode(answer: Answer) -> PreparedInfo:
        head = decode_fields(commands.PreparedAnswer, answer.fields)
        tables = unpack_body(answer)
        if not isinstance(tables, dict):
            raise RemoteProtocolError(f"expected prepared messages as a map, got {type(tables).__name__}")
        return PreparedInfo(
            decode_rows(AttemptInfo, tables["attempts"]), head.attempts, decode_rows(CopyingInfo, tables["copying"])
        )

    return operation(commands.GET_PREPARED, decode, timeout=timeout, prefix=prefix, max_count=max_count)


def abort_prepared(drop: str, *, timeout: float | None = None) -> Operation[int]:
    """Drop the attempts whose names begin with ``drop``; returns how many there were."""

    def decode(answer: Answer) -> int:
        return decode_fields(commands.AbortPreparedAnswer, answer.fields).count

    return operation(commands.ABORT_PREPARED, decode, timeout=timeout, drop=drop)


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
        counter = record.unique_counter_start(time.time())
        self.delivery = Outbox(self.delivery_seconds, in_flight_bytes_max, "", counter)

    @property
    def record_bytes_max(self) -> int:
        """Largest record of a message that the broker accepts."""
        return self.delivery.frames.record_bytes_max

    def connected(self, local_address: bytes) -> None:
        """Handle a new connection; the local address (4 or 16 bytes) of the first one goes into the unique keys."""
        if not self.delivery.frames.unique_prefix:
            seed = f"{id(self)} {time.time_ns()} {os.urandom(8).hex()}".encode()
            self.delivery.frames.unique_prefix = record.unique_prefix(local_address, os.getpid(), seed)

    # ---- one message

    def prepare(
        self, message: Message, queue: int | None, flush: str | None, timeout: float | None, now: float
    ) -> Prepared:
        """Check the other arguments of a ``send``; raises if one is not valid."""
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

    def many(self, several: list[Message], terms: BulkTerms, now: float) -> Plan[tuple[Bulk, Groups]]:
        """Check the other arguments of a ``send_many`` and group its messages by destination."""
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
        several: list[bytes],
        keys: Iterable[str | Sequence[str] | None] | None,
        shared: BulkProperties,
        terms: BulkTerms,
        now: float,
    ) -> Plan[tuple[Bulk, Groups]]:
        """Check the other arguments of a ``send_bulk``."""
        check_topic(topic)
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
