"""Pages of a topic: its messages across all queues in the order in which they were stored, with short bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from ....protocol import commands
from ....protocol.fields import decode_fields
from ....protocol.storage.record import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, decode_properties, split_keys
from ....protocol.times import from_millis
from ...errors import InvalidArgument
from ..rpc.operation import Operation, operation, unpack_rows
from ..rpc.session import Answer
from ..times import to_millis
from ..topics import ALL_QUEUES
from .batch import check_filter, parse_tags


@dataclass(frozen=True)
class MessageSummary:
    """A stored message without the rest of its body.

    ``record_bytes``: its size in the CommitLog; ``body_bytes``: the size of its body as stored, of which ``body`` is
    the beginning; a compressed body (``sys_flag``) is not decompressed. ``property_bytes``: the properties as stored.
    """

    queue: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    flag: int
    sys_flag: int
    born_ms: int
    stored_ms: int
    born_host: str
    reconsume_times: int
    body_bytes: int
    body: bytes
    property_bytes: bytes
    offset_id: str

    @cached_property
    def properties(self) -> dict[str, str]:
        """All properties as stored, by RocketMQ's names."""
        return decode_properties(self.property_bytes)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which the message can be found, in addition to its id."""
        return split_keys(self.properties.get(PROPERTY_KEYS))

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def message_id(self) -> str:
        """The unique key, or the offset id if the message has none."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_id

    @property
    def born_at(self) -> datetime:
        """Time at which the producer created the message."""
        return from_millis(self.born_ms)

    @property
    def stored_at(self) -> datetime:
        """Time at which the broker stored the message."""
        return from_millis(self.stored_ms)

    @property
    def has_whole_body(self) -> bool:
        """Predicate: is ``body`` all of the stored body?"""
        return len(self.body) == self.body_bytes


@dataclass(frozen=True, slots=True)
class TopicPage(Sequence[MessageSummary]):
    """A sequence of messages, the result of ``Consumer.browse``.

    ``next_physical``: pass it as ``physical`` for the next page in the same direction; None on the last page.
    ``examined``: number of messages that the broker looked at; ``reached_ms``, ``reached_physical``: store time and
    physical offset of the last one, or -1; ``lost``: number of messages on the way that are damaged or in
    quarantine; ``messages``: number of messages that the queues hold; ``max_offsets``: sum of their max offsets, which
    grows by one with each message.
    """

    rows: tuple[MessageSummary, ...]
    next_physical: int | None
    examined: int
    reached_ms: int
    reached_physical: int
    lost: int
    messages: int
    max_offsets: int

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MessageSummary]:
        return iter(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def] # the overloads of Sequence would say the same
        return self.rows[index]

    @property
    def reached_at(self) -> datetime | None:
        """Store time of the last message that the broker looked at, or None."""
        return from_millis(self.reached_ms) if self.reached_ms >= 0 else None


def browse(
    topic: str,
    queue: int | None = None,
    from_: datetime | int | None = None,
    *,
    newest_first: bool = True,
    physical: int | None = None,
    count: int = 50,
    body_bytes: int = 256,
    tags: str | Iterable[str] | None = None,
    filter: str | None = None,  # noqa: A002 - the name that users look for
    scan_max: int = 10_000,
    timeout: float | None = None,
) -> Operation[TopicPage]:
    """Return a page of a topic: at most ``count`` messages (1 to 200) of all queues, or of ``queue``, in the order in
    which they were stored, with the first ``body_bytes`` bytes (at most 65,536) of each body.

    ``newest_first``: messages before the position, newest first; False: messages from the position on, oldest first.
    The position is ``from_``, an aware datetime (store time) or an offset of ``queue``; or ``physical``, the
    ``next_physical`` of another page; without one, the end at which the direction begins. Pages cost the same anywhere
    in the topic. ``tags`` and ``filter`` select as in ``pull``; the broker then looks at ``scan_max`` messages (1 to
    20,000), for at most a tenth of a second, and the page may be empty although ``next_physical`` is not None.

    Raises ``TopicNotExist``, ``QueueNotExist`` and ``FilterIllegal``.
    """
    if from_ is not None and physical is not None:
        raise InvalidArgument("from_ and physical both say where the page begins; pass one of them")
    if isinstance(from_, int) and queue is None:
        raise InvalidArgument(f"from_ is {from_}, an offset, which needs the queue that it belongs to; pass queue=")
    wanted = parse_tags(tags)
    position: dict[str, Any] = {}
    if isinstance(from_, datetime):
        position["since_ms"] = to_millis("from_", from_)
    elif from_ is not None:
        position["queue_offset"] = from_
    if physical is not None:
        position["physical"] = physical

    def decode(answer: Answer) -> TopicPage:
        head = decode_fields(commands.BrowseMessagesAnswer, answer.fields)
        rows = tuple(MessageSummary(*row) for row in unpack_rows(answer, "messages"))
        if wanted.wanted:  # the broker compares hashes, which several tags may share
            rows = tuple(row for row in rows if wanted.accepts(row.tags))
        return TopicPage(
            rows,
            None if head.next_physical < 0 else head.next_physical,
            head.examined,
            head.reached_ms,
            head.reached_physical,
            head.lost,
            head.messages,
            head.max_offsets,
        )

    return operation(
        commands.BROWSE_MESSAGES,
        decode,
        timeout=timeout,
        topic=topic,
        queue=ALL_QUEUES if queue is None else queue,
        backward=newest_first,
        count=count,
        body_bytes=body_bytes,
        tags=wanted.expression,
        filter=check_filter(filter),
        scan_max=scan_max,
        **position,
    )
