"""A message to be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..protocol.errors import InvalidParameter
from ..protocol.names import check_name
from ..protocol.storage.delivery import PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_SECONDS, PROPERTY_TIMER_DELIVER_MS
from ..protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX
from ..protocol.storage.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    encode_properties,
    split_keys,
)
from .delay import delay_of, delay_properties
from .errors import InvalidMessage, InvalidMessageType

if TYPE_CHECKING:
    from .core.consume.batch import StoredMessage

Body: TypeAlias = bytes | bytearray | memoryview
Row: TypeAlias = tuple[Any, ...]
"""``(body, properties)`` or ``(body, properties, sys_flag)``: one message in the rows of a PRODUCE request."""

_OWN_PROPERTIES = {
    PROPERTY_KEYS: "use keys=[…]",
    PROPERTY_TAGS: "use tags=…",
    PROPERTY_SHARDING_KEY: "use sharding_key=…",
    PROPERTY_UNIQ_KEY: "the producer generates it",
    PROPERTY_DELAY: "use delay_level=…",
    PROPERTY_TIMER_DELIVER_MS: "use deliver_at=…",
    PROPERTY_TIMER_DELAY_MS: "use delay=…",
    PROPERTY_TIMER_DELAY_SECONDS: "use delay=…",
}
_FORBIDDEN = frozenset(FORBIDDEN_PROPERTIES)
_NOTED_OF_TRIES = frozenset({"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"})
"""Properties in which clients record retries and dead letters. (Properties that brokers set are not user
properties.)"""
_TAG_OR = "||"
_ANY = "*"
_RECORD_OVERHEAD_BYTES = 512
"""More than a record has besides the body and the properties of its message: head, topic, unique key, delay."""
_KEYS_OVERHEAD_BYTES = _RECORD_OVERHEAD_BYTES + 4 * (len(PROPERTY_KEYS) + 2)
"""The same, if the message may have keys."""
_body_of = attrgetter("_body")
wire_of: Callable[[Message], Mapping[str, str] | None] = attrgetter("_wire")
"""Returns the properties of a message as PRODUCE takes them; None if it has no property but its keys."""
_KNOWN_TOPICS_MAX = 10_000
_known_topics: set[str] = set()
"""Topic names that have already been checked."""


class Message:
    """A message to send to ``topic``. It is immutable.

    ``body``: bytes, or a bytearray or memoryview, which is copied. ``keys``: the keys by which the message can be
    found; one ``str`` or several, none of them empty or containing a space. ``tags``: one tag, by which consumers
    filter; not ``*``, with which they ask for all. ``properties``: names and values, all ``str`` and none empty;
    RocketMQ's own names are refused.
    ``sharding_key``: messages with the same sharding key go to the same queue, in order.

    To delay delivery, pass at most one of ``delay_level`` (1 to 18: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min,
    1 h, 2 h), ``deliver_at`` (an aware datetime) and ``delay`` (a timedelta). The last two have a resolution of one
    second: a message is never delivered early.

    Raises ``InvalidMessage`` (a ``ValueError``), or ``InvalidMessageType`` (also a ``TypeError``) if a type is wrong.
    """

    # _keys is the KEYS property. _wire holds all properties in the form PRODUCE takes, or None if KEYS is the only one:
    # one object less per message is less work for the garbage collector, and there are millions of messages.
    __slots__ = ("_body", "_delay", "_keys", "_sharding_key", "_tags", "_topic", "_wire")

    topic: str = property(attrgetter("_topic"), doc="The destination topic.")  # type: ignore[assignment]  # a property
    body: bytes = property(attrgetter("_body"), doc="The body.")  # type: ignore[assignment]  # a property
    tags: str | None = property(attrgetter("_tags"), doc="The tag, or None.")  # type: ignore[assignment]  # a property
    sharding_key: str | None = property(  # type: ignore[assignment]  # a property
        attrgetter("_sharding_key"), doc="The key that selects the queue, or None."
    )
    common: str = property(  # type: ignore[assignment]  # a property
        attrgetter("_delay"), doc="The delay in PRODUCE's form; all messages of one frame share it."
    )

    def __init__(
        self,
        topic: str,
        body: Body,
        *,
        keys: Iterable[str] | str = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> None:
        if topic not in _known_topics:
            check_topic(topic)
        self._topic = topic
        self._body: bytes = body if type(body) is bytes else copy_body(body)
        joined: Any = ""
        if keys:
            joined = keys[0] if (type(keys) is tuple or type(keys) is list) and len(keys) == 1 else keys
            if type(joined) is not str or not joined or not joined.isprintable() or KEY_SEPARATOR in joined:
                joined = join_keys(keys)
        self._keys: str = joined
        self._tags = tags
        self._sharding_key = sharding_key
        self._wire: dict[str, str] | None = None
        if tags is not None or properties or sharding_key is not None or not joined:
            self._wire = _wire_properties(joined, tags, properties, sharding_key)
        self._delay = ""
        if delay_level is not None or deliver_at is not None or delay is not None:
            self._delay = delay_properties(delay_level, deliver_at, delay)

    @classmethod
    def again(cls, stored: StoredMessage, topic: str | None = None, **changed: Any) -> Message:
        """Return a new message with the body, keys, tag, sharding key and properties of a stored one.

        ``topic``: the destination, by default the stored message's topic. A dead letter's topic is the group's
        ``%DLQ%…``, so pass the original one. ``changed``: arguments of ``Message`` that replace what was stored. The
        properties that brokers and clients added on the way (id, attempts, delay and transaction) and the
        application's ``flag`` are left out. A stored tag is kept even if ``Message`` would refuse it. Raises
        ``CorruptMessage`` if the stored message is damaged, and ``InvalidMessage`` if another client stored something
        that FlintMQ's client does not send, such as an empty property.
        """
        kept: dict[str, Any] = {"keys": stored.keys, "sharding_key": stored.sharding_key}
        if "body" not in changed:
            kept["body"] = stored.body
        if "properties" not in changed:
            pairs = stored.user_properties.items()
            kept["properties"] = {name: value for name, value in pairs if not _is_noted_by_broker(name)}
        message = cls(stored.topic if topic is None else topic, **(kept | changed))
        return message if "tags" in changed else message._tagged(stored.tags)

    def _tagged(self, tag: str | None) -> Message:
        """Set a tag that another message has, without a check; return the message."""
        if tag is not None:
            self._tags = tag
            wire = {PROPERTY_KEYS: self._keys} if self._wire is None else self._wire
            self._wire = {**wire, PROPERTY_TAGS: tag}
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return split_keys(self._keys)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties as they were passed: without keys, tag and sharding key."""
        wire = self._wire or {}
        return MappingProxyType({name: value for name, value in wire.items() if name not in _OWN_PROPERTIES})

    @property
    def delay_level(self) -> int | None:
        """The delay level, or None."""
        return delay_of(self._delay)[0]

    @property
    def deliver_at(self) -> datetime | None:
        """Earliest time of delivery, rounded up to a whole second, or None."""
        return delay_of(self._delay)[1]

    @property
    def delay(self) -> timedelta | None:
        """Minimum delay between storage and delivery, or None."""
        return delay_of(self._delay)[2]

    def row(self) -> Row:
        """Return the message as a row of a PRODUCE request."""
        wire = self._wire
        return self._body, {PROPERTY_KEYS: self._keys} if wire is None else wire

    def __eq__(self, other: object) -> bool:
        if type(other) is not Message:
            return NotImplemented
        return self._topic == other._topic and self._delay == other._delay and self.row() == other.row()

    def __hash__(self) -> int:
        return hash((self._topic, self._body, self._keys))

    def __repr__(self) -> str:
        body = self._body if len(self._body) <= 40 else self._body[:37] + b"..."
        parts = [repr(self._topic), repr(body)]
        if self._keys:
            parts.append(f"keys={list(self.keys)!r}")
        if self._tags is not None:
            parts.append(f"tags={self._tags!r}")
        if self.properties:
            parts.append(f"properties={dict(self.properties)!r}")
        if self._sharding_key is not None:
            parts.append(f"sharding_key={self._sharding_key!r}")
        for name in ("delay_level", "deliver_at", "delay") if self._delay else ():
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name}={value!r}")
        return f"Message({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self._topic, self._body, self.keys, self._tags, dict(self.properties), self._sharding_key)
        return _rebuild, (*parts, *delay_of(self._delay))


def bodies_of(messages: Sequence[Message]) -> list[bytes]:
    """Return the body of each message."""
    return list(map(_body_of, messages))


def rows_of(messages: Sequence[Message]) -> list[Row]:
    """Return ``Message.row`` of each message, in a third of the time."""
    wires = [message._wire if message._wire is not None else {PROPERTY_KEYS: message._keys} for message in messages]
    return list(zip(map(_body_of, messages), wires, strict=True))


def with_properties(message: Message, properties: Mapping[str, str], record_bytes_max: int) -> Message | None:
    """Return the message with additional properties, which ``check_properties`` has passed; its own take precedence.
    None if it has no room for them in a record of at most ``record_bytes_max`` bytes."""
    keys, body, wire = message._keys, message._body, message._wire
    if wire is None:
        merged = {**properties, PROPERTY_KEYS: keys}
        chars = len(keys)
        for name, value in properties.items():
            chars += len(name) + len(value) + 2
        size = chars * 4 + _KEYS_OVERHEAD_BYTES  # a character has at most 4 bytes
        fits = size <= PRODUCED_PROPERTIES_BYTES_MAX and size + len(body) <= record_bytes_max
    else:
        merged = {**properties, **wire}
        fits = False
    if not fits and not _has_room(merged, len(body), record_bytes_max):
        return None
    copy = object.__new__(Message)
    copy._topic = message._topic
    copy._body = body
    copy._keys = keys
    copy._tags = message._tags
    copy._sharding_key = message._sharding_key
    copy._delay = message._delay
    copy._wire = merged
    return copy


def have_room(
    properties: Mapping[str, str], added: Mapping[str, str], bodies: Iterable[bytes], record_bytes_max: int
) -> bool:
    """Return whether all messages of a ``send_bulk`` have room for ``added`` among their ``properties``."""
    merged = {**added, **properties}
    return all(_has_room(merged, length, record_bytes_max) for length in set(map(len, bodies)))


def _has_room(merged: Mapping[str, str], body_bytes: int, record_bytes_max: int) -> bool:
    """Return whether a message that can be stored can also be stored with all of its ``merged`` properties."""
    size = len("".join(merged)) + len("".join(merged.values())) + 2 * len(merged)
    size = size * 4 + _RECORD_OVERHEAD_BYTES  # a character has at most 4 bytes
    if size <= PRODUCED_PROPERTIES_BYTES_MAX and size + body_bytes <= record_bytes_max:
        return True
    size = len(encode_properties(merged)) + _RECORD_OVERHEAD_BYTES
    if size > PRODUCED_PROPERTIES_BYTES_MAX:
        return False
    # A body that is longer than the limit can only be sent compressed, and is shorter then.
    return not record_bytes_max - size < body_bytes <= record_bytes_max


def _wire_properties(
    keys: str, tags: str | None, properties: Mapping[str, str] | None, sharding_key: str | None
) -> dict[str, str]:
    wire = check_properties(properties) if properties else {}
    if keys:
        wire[PROPERTY_KEYS] = keys
    if tags is not None:
        wire[PROPERTY_TAGS] = check_tag(tags)
    if sharding_key is not None:
        wire[PROPERTY_SHARDING_KEY] = check_text("the sharding key", sharding_key)
    return wire


def _rebuild(
    topic: str,
    body: bytes,
    keys: tuple[str, ...],
    tags: str | None,
    properties: dict[str, str],
    sharding_key: str | None,
    delay_level: int | None = None,
    deliver_at: datetime | None = None,
    delay: timedelta | None = None,
) -> Message:
    return Message(
        topic,
        body,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay_level=delay_level,
        deliver_at=deliver_at,
        delay=delay,
    )._tagged(tags)


def check_topic(topic: Any) -> None:
    """Raise ``InvalidMessage`` unless ``topic`` is a valid topic name."""
    if type(topic) is not str:
        raise InvalidMessageType(f"the topic must be a str, not {type(topic).__name__}")
    try:
        check_name("topic", topic)
    except InvalidParameter as error:
        raise InvalidMessage(str(error)) from None
    if len(_known_topics) >= _KNOWN_TOPICS_MAX:
        _known_topics.clear()
    _known_topics.add(topic)


def copy_body(body: Any) -> bytes:
    """Return ``body`` as bytes; refuse a ``str``, because only the sender knows its encoding."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = "; encode it first: body.encode()" if isinstance(body, str) else ""
    raise InvalidMessageType(f"the body must be bytes, bytearray or memoryview, not {type(body).__name__}{hint}")


def join_keys(keys: Iterable[str]) -> str:
    """Check one key or several and join them into the KEYS property; empty if there are none."""
    if type(keys) is tuple and len(keys) == 1:
        keys = keys[0]
    if type(keys) is str and keys and keys.isprintable() and KEY_SEPARATOR not in keys:
        return keys
    several = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in several:
        check_text("a key", key)
        if KEY_SEPARATOR in key:
            raise InvalidMessage(
                f"the key {key!r} has a space, which separates keys in the store; replace it, or give several keys"
            )
    return KEY_SEPARATOR.join(several)


def check_tag(tag: Any) -> str:
    """Return ``tag`` if a message can have it and a consumer can filter by it; else raise ``InvalidMessage``."""
    is_plain = type(tag) is str and tag and tag.isprintable() and tag[0] != " " and tag[-1] != " "
    if not is_plain or tag == _ANY or _TAG_OR in tag:
        check_text("the tag", tag)
        if tag == _ANY or _TAG_OR in tag or tag.strip() != tag:
            raise InvalidMessage(
                f"no consumer could filter by the tag {tag!r}: a message has one tag, without '||' and without spaces "
                "around it, and not '*', which asks for all"
            )
    return str(tag)


def check_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of ``properties`` as a dict; refuse names that have a meaning of their own."""
    if not isinstance(properties, Mapping):
        raise InvalidMessageType(f"properties must be a mapping of str to str, not {type(properties).__name__}")
    for name, value in properties.items():
        if type(name) is not str or not name or not name.isprintable():
            check_text("a property's name", name)
        if name in _OWN_PROPERTIES:
            raise InvalidMessage(f"the property {name} cannot be set directly: {_OWN_PROPERTIES[name]}")
        if _is_forbidden(name):
            raise InvalidMessage(f"the property {name} belongs to the broker; choose another name")
        if type(value) is not str or not value or not value.isprintable():
            check_text(f"the property {name!r}", value)
    return dict(properties)


def _is_forbidden(name: str) -> bool:
    return name in _FORBIDDEN or name.startswith(FORBIDDEN_PROPERTY_PREFIX)


def _is_noted_by_broker(name: str) -> bool:
    return name in _NOTED_OF_TRIES or _is_forbidden(name)


def check_text(what: str, text: Any) -> str:
    """Return ``text`` if it is a ``str`` that a property can hold; else raise ``InvalidMessage`` beginning with
    ``what``."""
    if not isinstance(text, str):
        raise InvalidMessageType(f"{what} must be a str, not {type(text).__name__} ({text!r:.60})")
    if not text:
        raise InvalidMessage(f"{what} is empty; the store cannot hold an empty one: leave it out")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(f"{what} {text!r:.60} contains \\x01 or \\x02, which separate properties in the store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{what} {text!r:.60} is not valid Unicode: {error.reason}") from None
    return text
