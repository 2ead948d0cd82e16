"""Names and values of attributes, by OpenTelemetry's conventions for messaging 1.44. Their own package has these names
only in a part that may change with each release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...protocol.errors import BrokerError
from ...protocol.storage.record import CorruptRecord
from ..core.consume.stored import StoredMessage
from ..core.hooks import Side
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

_OF_METRICS = (SYSTEM, OPERATION_NAME, DESTINATION, GROUP, SERVER_ADDRESS, SERVER_PORT)
"""The attributes of a span that its metrics have too; none of them has many values."""


def of_operation(side: Side, name: str, kind: str, topic: str) -> Attributes:
    """Return the attributes of every operation. ``topic``: empty if there are several."""
    server = side.addresses.first
    attributes: Attributes = {
        SYSTEM: "flintmq",
        OPERATION_NAME: name,
        OPERATION_TYPE: kind,
        CLIENT_ID: side.client_id,
        SERVER_ADDRESS: server.host,
        SERVER_PORT: server.port,
    }
    if topic:
        attributes[DESTINATION] = topic
    if side.group:
        attributes[GROUP] = side.group
    return attributes


def of_metrics(attributes: Mapping[str, AttributeValue], error_type: str) -> Attributes:
    """Return the attributes of an operation's metrics, from those of its span."""
    chosen = {name: attributes[name] for name in _OF_METRICS if name in attributes}
    if error_type:
        chosen[ERROR_TYPE] = error_type
    return chosen


def add_sent(attributes: Attributes, message: Message) -> None:
    """Add the attributes of one message that is sent."""
    if message.keys:
        attributes[KEYS] = message.keys
    if message.tags is not None:
        attributes[TAG] = message.tags
    if message.common and (level := message.delay_level) is not None:
        attributes[DELAY_LEVEL] = level


def add_stored(attributes: Attributes, message: StoredMessage) -> None:
    """Add the attributes of one message that is handled; none, if it is damaged."""
    try:
        keys, tags, message_id, times = message.keys, message.tags, message.message_id, message.reconsume_times
    except CorruptRecord:
        return
    attributes[MESSAGE_ID] = message_id
    attributes[RECONSUME_TIMES] = times
    if keys:
        attributes[KEYS] = keys
    if tags is not None:
        attributes[TAG] = tags
    if not times:  # a redelivered message is in another queue than it was sent to
        attributes[PARTITION] = str(message.queue)
        attributes[QUEUE_OFFSET] = message.queue_offset


def common_topic(messages: Sequence[Message] | Sequence[StoredMessage]) -> str:
    """Return the topic of all messages; empty if they have several."""
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
