"""Spans that are under way: they end with an outcome, and with metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach

from ...protocol.errors import BrokerError
from ...protocol.storage.delivery import DEAD_LETTER_LEVEL
from ...protocol.storage.record import CorruptRecord
from ..core import hooks
from ..core.consume.batch import StoredMessage
from ..core.hooks import Side
from ..core.produce.receipts import DeliveryFailed, Receipt
from ..errors import DeliveryLost
from ..groups.push.delivery import Delivery
from ..groups.push.outcome import TryLater
from ..message import Message

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from ..core.produce.packer import BulkProperties


# ---- Names and values of attributes, by OpenTelemetry's conventions for messaging 1.44. Their own package has
# these names only in a part that may change with each release.

Attributes = dict[str, "AttributeValue"]

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
GROUP = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
_OF_MESSAGE = "messaging.flintmq.message."
KEYS = _OF_MESSAGE + "keys"
TAG = _OF_MESSAGE + "tag"
QUEUE_OFFSET = _OF_MESSAGE + "queue_offset"
RECONSUME_TIMES = _OF_MESSAGE + "reconsume_times"
DELAY_LEVEL = _OF_MESSAGE + "delay_level"

_OPERATIONS_MAX = 256
"""Maximum number of operations that are kept for a client: it may use any number of topics."""


class TracedOperation:
    """An operation of a client with a topic (empty: with several): the name of its spans, and the attributes that all
    of them have. ``of_metrics``: those of its metrics, none of which has many values."""

    __slots__ = ("attributes", "name", "of_metrics", "server")

    def __init__(self, side: Side, name: str, kind: str, topic: str) -> None:
        server = self.server = side.addresses.first
        self.name = f"{name} {topic}" if topic else name
        self.of_metrics: Attributes = {
            SYSTEM: "flintmq",
            OPERATION_NAME: name,
            SERVER_ADDRESS: server.host,
            SERVER_PORT: server.port,
        }
        if topic:
            self.of_metrics[DESTINATION] = topic
        if side.group:
            self.of_metrics[GROUP] = side.group
        self.attributes: Attributes = {**self.of_metrics, OPERATION_TYPE: kind, CLIENT_ID: side.client_id}

    def of_failure(self, error: BaseException) -> Attributes:
        """Return the attributes of the metrics of an operation that failed."""
        return {**self.of_metrics, ERROR_TYPE: error_type_of(error)}


def operation_of(side: Side, name: str, topic: str, kind: str | None = None) -> TracedOperation:
    """Return the operation of a client. ``kind``: its type, by default its name."""
    operation: TracedOperation | None = side.kept.get((name, topic))
    if operation is None or operation.server is not side.addresses.first:
        if len(side.kept) >= _OPERATIONS_MAX:
            side.kept.clear()
        operation = side.kept[name, topic] = TracedOperation(side, name, kind or name, topic)
    return operation


def of_sent(message: Message, receipt: Receipt | None) -> Attributes:
    """Return the attributes of one message that is sent. ``receipt``: if it is stored."""
    attributes: Attributes = {}
    if receipt is not None:
        attributes[MESSAGE_ID] = receipt.message_id
        attributes[PARTITION] = str(receipt.queue)
    if keys := message.keys:
        attributes[KEYS] = keys
    if message.tags is not None:
        attributes[TAG] = message.tags
    if message.common and (level := message.delay_level) is not None:
        attributes[DELAY_LEVEL] = level
    return attributes


def of_stored(message: StoredMessage) -> Attributes:
    """Return the attributes of one message that is handled; none, if it is damaged."""
    try:
        times = message.reconsume_times
        attributes: Attributes = {MESSAGE_ID: message.message_id, RECONSUME_TIMES: times}
        if keys := message.keys:
            attributes[KEYS] = keys
        if (tag := message.tags) is not None:
            attributes[TAG] = tag
    except CorruptRecord:
        return {}
    if not times:  # a redelivered message is in another queue than it was sent to
        attributes[PARTITION] = str(message.queue)
        attributes[QUEUE_OFFSET] = message.queue_offset
    return attributes


def common_topic(messages: Sequence[Message] | Sequence[StoredMessage]) -> str:
    """Return the topic of all messages; empty if they have several."""
    if len(messages) == 1:
        return messages[0].topic
    topics = {message.topic for message in messages}
    return topics.pop() if len(topics) == 1 else ""


def error_type_of(error: BaseException) -> str:
    """Return the kind of an error, of which there are few: the broker's name of a result, or the name of a class."""
    if isinstance(error, DeliveryFailed):
        kinds = {error_type_of(each) for each in error.errors.values()}
        if len(kinds) == 1:
            return kinds.pop()
    if isinstance(error, BrokerError):
        return error.name
    return type(error).__qualname__


class Instruments:
    """The metrics of a process, as the conventions name them."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.operation_duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of the operations of a client."
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of the handling of a message or of a batch."
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that the application sent, or tried to send."
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that the application got."
        )


class _Timed(hooks.Observation):
    """The span of an operation, and the time at which it began."""

    __slots__ = ()

    # Each subclass sets all attributes in one call: after a wait, it runs with cold caches.
    _began: float
    _ended: bool
    _instruments: Instruments
    _operation: TracedOperation
    _span: trace.Span


_TIMED = ("_began", "_ended", "_instruments", "_operation", "_span")
_NOTHING_SHARED: BulkProperties = {}


class SendSpan(_Timed, hooks.Sending):
    """A call that sends ``count`` messages. ``only``: the message of a call that sends one."""

    __slots__ = (*_TIMED, "_count", "_only")

    def __init__(
        self,
        instruments: Instruments,
        operation: TracedOperation,
        span: trace.Span,
        messages: list[Message],
        count: int,
        only: Message | None = None,
        shared: BulkProperties = _NOTHING_SHARED,
    ) -> None:
        self._instruments = instruments
        self._operation = operation
        self._span = span
        self._ended = False
        self.messages = messages
        self.shared = shared
        self._count = count
        self._only = only
        self._began = time.perf_counter()

    def end(self, error: BaseException | None, receipt: Receipt | None = None) -> None:
        """Note the end; only the first one counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.perf_counter() - self._began
        span = self._span
        if span.is_recording():
            if self._only is not None:
                span.set_attributes(of_sent(self._only, receipt))
            if error is not None:
                note_error(span, error)
        span.end()
        of_metrics = self._operation.of_metrics if error is None else self._operation.of_failure(error)
        self._instruments.operation_duration.record(seconds, of_metrics)
        self._instruments.sent.add(self._count, of_metrics)


class ProcessSpan(_Timed):
    """The handling of one message, or of a batch. ``context``: in which its code runs, with the span; ``settled``:
    called at the end with the name of the settlement."""

    __slots__ = (*_TIMED, "_settled", "_token", "context")
    _token: Token[Context]

    def __init__(
        self,
        instruments: Instruments,
        operation: TracedOperation,
        span: trace.Span,
        context: Context,
        settled: Callable[[str], None] | None,
    ) -> None:
        self._instruments = instruments
        self._operation = operation
        self._span = span
        self._ended = False
        self.context = context
        self._settled = settled
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        self._token = attach(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        detach(self._token)
        self.end(raised)

    def end(self, error: BaseException | None) -> None:
        """Note the end; only the first one counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.perf_counter() - self._began
        span = self._span
        if error is not None and span.is_recording():
            note_error(span, error)
        span.end()
        of_metrics = self._operation.of_metrics if error is None else self._operation.of_failure(error)
        self._instruments.process_duration.record(seconds, of_metrics)
        if self._settled is not None and not isinstance(error, DeliveryLost):
            self._settled(settlement_of(error))


def note_error(span: trace.Span, error: BaseException) -> None:
    """Note the error with which an operation ended."""
    span.set_attribute(ERROR_TYPE, error_type_of(error))
    span.set_status(trace.StatusCode.ERROR, str(error))
    if not isinstance(error, TryLater):  # with it, a listener asks for something
        span.record_exception(error)


def settlement_of(error: BaseException | None) -> str:
    """Return the name of the settlement that an outcome leads to."""
    if error is None:
        return "ack"
    if isinstance(error, TryLater) and error.delay_level == DEAD_LETTER_LEVEL:
        return "dead"
    return "retry"


@contextmanager
def handling(delivery: Delivery) -> Iterator[None]:
    """Let the code of a ``with`` block run in the span of a delivery, so that spans that it begins are part of it.

    Does nothing if the delivery was received without a span.
    """
    span = delivery.handling
    if not isinstance(span, ProcessSpan):
        yield
        return
    token = attach(span.context)
    try:
        yield
    finally:
        detach(token)
