"""Names and values of attributes, by OpenTelemetry's conventions for messaging 1.44. Their own package has these names
only in a part that may change with each release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocol.errors import BrokerError
from ...protocol.storage.record import CorruptRecord
from ..core.consume.stored import StoredMessage
from ..core.hooks import Side
from ..core.produce.receipts import Receipt
from ..errors import DeliveryFailed
from ..message import Message

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

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
