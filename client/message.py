"""A message to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..protocol.delivery import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
)
from ..protocol.errors import InvalidParameter
from ..protocol.names import check_name
from ..protocol.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    split_keys,
)
from .delay import delay_of, delay_properties
from .errors import InvalidMessage, InvalidMessageType

if TYPE_CHECKING:
    from .core.stored import StoredMessage

Body: TypeAlias = bytes | bytearray | memoryview
Row: TypeAlias = tuple[Any, ...]
"""``(body, properties)`` or ``(body, properties, sys_flag)``, as PRODUCE takes a message among rows."""

_OWN_PROPERTIES = {
    PROPERTY_KEYS: "give keys with keys=[…]",
    PROPERTY_TAGS: "give the tag with tags=…",
    PROPERTY_SHARDING_KEY: "give it with sharding_key=…",
    PROPERTY_UNIQ_KEY: "the producer makes it",
    PROPERTY_DELAY: "give delay_level=…",
    PROPERTY_TIMER_DELIVER_MS: "give deliver_at=…",
    PROPERTY_TIMER_DELAY_MS: "give delay=…",
    PROPERTY_TIMER_DELAY_SECONDS: "give delay=…",
}
_FORBIDDEN = frozenset(FORBIDDEN_PROPERTIES)
_NOTED_OF_TRIES = frozenset({
    "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
})  # fmt: skip
"""What clients note of tries and dead letters. What brokers note is no user property."""
_TAG_OR = "||"
_body_of = attrgetter("_body")
_KNOWN_TOPICS_MAX = 10_000
_known_topics: set[str] = set()
"""Topic names that were checked before."""


class Message:
    """A message to be sent to ``topic``. It cannot be changed afterwards.

    ``body``: bytes, or a bytearray or memoryview, of which a copy is taken. ``keys``: what the message can be found by;
    one ``str`` or several, none empty or with a space in it. ``tags``: one tag, by which consumers filter.
    ``properties``: names and values, all ``str`` and none empty; RocketMQ's own names are refused. ``sharding_key``:
    messages with the same one go to the same queue, in order.

    At most one of ``delay_level`` (1 to 18: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h),
    ``deliver_at`` (an aware datetime) and ``delay`` (a timedelta) says that consumers are to get it later. The last two
    are to the second: never early.

    Raises ``InvalidMessage`` (a ``ValueError``), or ``InvalidMessageType`` (a ``TypeError`` too) where a type is wrong.
    """

    # _keys is the KEYS property; _wire all properties as PRODUCE takes them, or None where KEYS is the only one: a
    # message that costs one object less costs the garbage collector less, and there are millions of them.
    __slots__ = ("_body", "_delay", "_keys", "_sharding_key", "_tags", "_topic", "_wire")

    topic: str = property(attrgetter("_topic"), doc="The topic it goes to.")  # type: ignore[assignment]
    body: bytes = property(attrgetter("_body"), doc="The body.")  # type: ignore[assignment]
    tags: str | None = property(attrgetter("_tags"), doc="The tag, or None.")  # type: ignore[assignment]
    sharding_key: str | None = property(  # type: ignore[assignment]
        attrgetter("_sharding_key"), doc="What decides its queue, or None."
    )
    common: str = property(  # type: ignore[assignment]
        attrgetter("_delay"), doc="Its delay, as PRODUCE takes it: messages of one frame have the same."
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
            joined = keys[0] if type(keys) is list and len(keys) == 1 else keys
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
    def again(cls, stored: StoredMessage, topic: str | None = None) -> Message:
        """Return a message to be sent that has the body, keys, tag, sharding key and properties of a stored one.

        ``topic``: where it is to go instead; of a dead letter the topic is the group's ``%DLQ%…``, so name it. Left out
        are what a broker noted of the stored message on its way (its id, tries, delay and transaction) and the
        application's ``flag``. Raises ``CorruptMessage`` if it is damaged, and ``InvalidMessage`` if another client
        stored what FlintMQ's does not send, such as an empty property.
        """
        properties = {name: value for name, value in stored.user_properties.items() if not _is_noted_by_broker(name)}
        return cls(
            stored.topic if topic is None else topic, stored.body, keys=stored.keys, tags=stored.tags,
            properties=properties, sharding_key=stored.sharding_key,
        )  # fmt: skip

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys."""
        return split_keys(self._keys)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties as they were given: without keys, tag and sharding key."""
        wire = self._wire or {}
        return MappingProxyType({name: value for name, value in wire.items() if name not in _OWN_PROPERTIES})

    @property
    def delay_level(self) -> int | None:
        """The delay level, or None."""
        return delay_of(self._delay)[0]

    @property
    def deliver_at(self) -> datetime | None:
        """When consumers get it at the earliest, at a whole second, or None."""
        return delay_of(self._delay)[1]

    @property
    def delay(self) -> timedelta | None:
        """How long after it was stored consumers get it at the earliest, or None."""
        return delay_of(self._delay)[2]

    def row(self) -> Row:
        """The message as PRODUCE takes it among rows."""
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
    """The body of each."""
    return list(map(_body_of, messages))


def rows_of(messages: Sequence[Message]) -> list[Row]:
    """``Message.row`` of each, in a third of the time."""
    wires = [message._wire if message._wire is not None else {PROPERTY_KEYS: message._keys} for message in messages]
    return list(zip(map(_body_of, messages), wires, strict=True))


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
        topic, body, keys=keys, tags=tags, properties=properties, sharding_key=sharding_key, delay_level=delay_level,
        deliver_at=deliver_at, delay=delay,
    )  # fmt: skip


def check_topic(topic: Any) -> None:
    """Raise where ``topic`` cannot be a topic's name."""
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
    """``body`` as bytes; a ``str`` is refused, because only its sender knows the encoding."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = "; encode it first: body.encode()" if isinstance(body, str) else ""
    raise InvalidMessageType(f"the body must be bytes, bytearray or memoryview, not {type(body).__name__}{hint}")


def join_keys(keys: Iterable[str]) -> str:
    """The KEYS property of one key or several, empty for none; each is checked."""
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
    """``tag`` if a message can have it and a consumer can ask for it."""
    if type(tag) is not str or not tag or not tag.isprintable() or tag[0] == " " or tag[-1] == " " or _TAG_OR in tag:
        check_text("the tag", tag)
        if _TAG_OR in tag or tag.strip() != tag:
            raise InvalidMessage(
                f"the tag {tag!r} could never be asked for: a message has one tag, without '||' and without spaces "
                "around it"
            )
    return str(tag)


def check_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``properties`` as a dict; names that have a meaning of their own are refused."""
    if not isinstance(properties, Mapping):
        raise InvalidMessageType(f"properties must map str to str, not be {type(properties).__name__}")
    for name, value in properties.items():
        if type(name) is not str or not name or not name.isprintable():
            check_text("a property's name", name)
        if name in _OWN_PROPERTIES:
            raise InvalidMessage(f"the property {name} is not to be set directly: {_OWN_PROPERTIES[name]}")
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
    """``text`` if it is a ``str`` that a property can hold; else ``InvalidMessage``, beginning with ``what``."""
    if not isinstance(text, str):
        raise InvalidMessageType(f"{what} must be a str, not {type(text).__name__} ({text!r:.60})")
    if not text:
        raise InvalidMessage(f"{what} is empty; the store cannot keep an empty one: leave it out")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessage(f"{what} {text!r:.60} has \\x01 or \\x02, which separate properties in the store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{what} {text!r:.60} is not valid Unicode: {error.reason}") from None
    return text
