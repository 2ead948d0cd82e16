"""Conversion of a caller's messages to what ``Outbox`` takes: checked, grouped by topic and queue, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from ....protocol.commands import QUEUES_MAX
from ....protocol.produce_frame import ANY_QUEUE
from ....protocol.storage.layout import PROPERTIES_BYTES_MAX
from ....protocol.storage.record import KEY_SEPARATOR, PROPERTY_SHARDING_KEY, PROPERTY_TAGS, encode_properties
from ...delay import delay_properties
from ...errors import InvalidArgument, InvalidArgumentType, InvalidMessage, InvalidMessageType
from ...message import Message, check_properties, check_tag, check_text, copy_body, join_keys
from .route import queue_of

Flush: TypeAlias = Literal["sync", "async"]
FLUSH_MODES = ("", "sync", "async")

_topic_of = attrgetter("_topic")
_sharding_key_of = attrgetter("_sharding_key")
_common_of = attrgetter("_delay")


class Way(NamedTuple):
    """Messages of one call for the same queue of the same topic, with the same delay (``common``); ``indexes``: their
    indexes in the call."""

    topic: str
    queue: int
    messages: list[Message]
    indexes: Sequence[int]
    common: str = ""


def check_queue(queue: Any) -> int:
    """Return ``queue=`` as a number: -1 for None, which leaves the choice to the sharding key or the broker."""
    if queue is None:
        return ANY_QUEUE
    if type(queue) is not int:
        raise InvalidArgumentType(f"queue must be an int, not {type(queue).__name__}")
    if not 0 <= queue < QUEUES_MAX:
        raise InvalidArgument(f"queue is {queue}; it must be 0 to {QUEUES_MAX - 1}")
    return queue


def check_flush(flush: Any) -> str:
    """Return ``flush=`` in PRODUCE's form: empty for None, the broker's own mode."""
    mode = "" if flush is None else flush
    if mode not in FLUSH_MODES:
        raise InvalidArgument(f"flush is {flush!r}; it must be 'sync', 'async' or None (the broker's mode)")
    return str(mode)


def check_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a ``send_many`` as a list, after checking that each is a ``Message``."""
    if isinstance(messages, Message):
        raise InvalidMessageType("send_many takes several messages; use send for one")
    checked = list(messages)
    for kind in set(map(type, checked)):
        if not issubclass(kind, Message):
            index = next(place for place, message in enumerate(checked) if type(message) is kind)
            raise InvalidMessageType(f"messages[{index}] must be a flintmq.client.Message, not {kind.__name__}")
    return checked


def sharded_topics(messages: Sequence[Message]) -> set[str]:
    """Return the topics whose number of queues must be known before the messages can be grouped."""
    if not any(map(_sharding_key_of, messages)):
        return set()
    return {message.topic for message in messages if message.sharding_key}


def group_messages(messages: list[Message], queue: int, write_queues: Mapping[str, int]) -> list[Way]:
    """Group messages by destination. ``queue``: the destination of all, or -1; ``write_queues``: number of queues of
    each of the ``sharded_topics``."""
    topics = set(map(_topic_of, messages))
    delays = set(map(_common_of, messages))
    if len(topics) == len(delays) == 1 and (queue != ANY_QUEUE or not any(map(_sharding_key_of, messages))):
        return [Way(topics.pop(), queue, messages, range(len(messages)), delays.pop())]
    ways: dict[tuple[str, int, str], tuple[list[Message], list[int]]] = {}
    for index, message in enumerate(messages):
        sharding_key = message.sharding_key
        to = queue_of(sharding_key, write_queues[message.topic]) if sharding_key and queue == ANY_QUEUE else queue
        key = (message.topic, to, message.common)
        way = ways.get(key)
        if way is None:
            way = ways[key] = ([], [])
        way[0].append(message)
        way[1].append(index)
    return [Way(topic, to, mine, indexes, common) for (topic, to, common), (mine, indexes) in ways.items()]


def check_bodies(bodies: Iterable[Any]) -> list[bytes]:
    """Return the bodies of a ``send_bulk``: bytes, or copies of bytearrays and memoryviews."""
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise InvalidMessageType(f"bodies must be several bodies, not one {type(bodies).__name__}: give a list")
    checked = bodies if type(bodies) is list else list(bodies)
    if set(map(type, checked)) <= {bytes}:
        return checked
    for index, body in enumerate(checked):
        if not isinstance(body, bytes | bytearray | memoryview):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise InvalidMessageType(f"bodies[{index}] must be bytes, not {type(body).__name__}{hint}")
    return list(map(copy_body, checked))


def check_bulk_keys(keys: Iterable[Any] | None, count: int) -> list[str | None] | None:
    """Return the keys of a ``send_bulk`` as KEYS values, one entry for each body: a key, several, or None."""
    if keys is None:
        return None
    if isinstance(keys, str):
        raise InvalidMessageType("keys must be a list with an entry for each body, not one str")
    entries: list[Any] = keys if type(keys) is list else list(keys)
    if len(entries) != count:
        raise InvalidArgument(f"{len(entries)} keys for {count} bodies; pass one entry (or None) for each body")
    if set(map(type, entries)) == {str}:
        joined = "".join(entries)
        if joined.isprintable() and KEY_SEPARATOR not in joined and all(entries):
            return entries
    checked: list[str | None] = []
    for index, entry in enumerate(entries):
        if entry is None:
            checked.append(None)
            continue
        if not isinstance(entry, str | list | tuple):
            raise InvalidMessageType(f"keys[{index}] must be a str, several, or None, not {type(entry).__name__}")
        try:
            checked.append(join_keys(entry) or None)
        except InvalidMessage as error:
            raise type(error)(f"keys[{index}]: {error}") from None
    return checked


class BulkProperties(TypedDict, total=False):
    """Keyword arguments of ``send_bulk`` that apply to all of its bodies; each means what it means in ``Message``."""

    tags: str | None
    properties: Mapping[str, str] | None
    sharding_key: str | None
    delay_level: int | None
    deliver_at: datetime | None
    delay: timedelta | None


def common_properties(shared: BulkProperties) -> str:
    """Return the properties that all messages of a ``send_bulk`` share, in PRODUCE's form."""
    for name in shared.keys() - BulkProperties.__annotations__.keys():
        raise InvalidArgumentType(f"send_bulk() has no argument {name!r}")
    properties, tags, sharding_key = shared.get("properties"), shared.get("tags"), shared.get("sharding_key")
    common = check_properties(properties) if properties else {}
    if tags is not None:
        common[PROPERTY_TAGS] = check_tag(tags)
    if sharding_key is not None:
        common[PROPERTY_SHARDING_KEY] = check_text("the sharding key", sharding_key)
    encoded = encode_properties(common)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties have {len(encoded)} bytes; a record holds at most {PROPERTIES_BYTES_MAX}")
    delayed = delay_properties(shared.get("delay_level"), shared.get("deliver_at"), shared.get("delay"))
    return encoded.decode() + delayed
