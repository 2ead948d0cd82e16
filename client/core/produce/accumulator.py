"""Messages waiting for delivery: single messages, bulks, the frames made of them, and the lanes in which they queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

from ....protocol.commands import LAYOUT_ROWS, HelloAnswer
from ....protocol.errors import FlintError, MessageIllegal
from ....protocol.frames import ANY_QUEUE, ProduceHead
from ....protocol.storage.record import UNIQUE_COUNTER_MAX
from ...message import Row
from ..times import now_millis
from .packer import (
    FRAME_BYTES_TARGET,
    FRAME_COUNT_MAX,
    HEAD_BYTES_RESERVED,
    ROW_OVERHEAD_BYTES,
    ColumnSource,
    Content,
    Rows,
    RowSource,
)
from .receipts import Acknowledged, FrameOutcome, Receipt

NEVER = inf

PINNED_WINDOW = 1
"""Frames in flight to a pinned queue: with more than one, a retry could reorder messages."""
SINGLES_WINDOW = 1
"""Frames of single messages in flight: messages sent meanwhile accumulate and go together in the next frame."""
HEADS_KEPT = 64
"""Maximum number of heads kept for a lane: a head contains the delivery time, of which there can be many."""
BULK_WINDOW = 16
"""Frames of bulks in flight: enough to keep the broker busy while the next ones are packed."""
SPREAD_FIRST = 16
"""Number of frames into which a bulk is split, to reach as many queues, until responses show the topic's queue
count."""
SPREAD_OVER_COUNT = 4
"""Bulks of more messages than this are spread over the queues; shorter ones go to one queue, round-robin."""


class Single:
    """One message of a ``send`` or ``send_async``. ``deadline``: monotonic seconds.

    ``flush`` and ``common`` apply to the whole frame. Once ``done``, either ``error`` is set or ``receipt()`` can be
    called. ``future`` belongs to the driver: if it is set, the driver is told when the message is settled.
    """

    __slots__ = ("_acknowledged", "_position", "common", "deadline", "done", "error", "flush", "future", "row", "size")

    def __init__(self, row: Row, size: int, flush: str, deadline: float, future: Any = None, common: str = "") -> None:
        self.common = common
        self.row = row
        self.size = size
        self.flush = flush
        self.deadline = deadline
        self.future = future
        self.done = False
        self.error: FlintError | None = None
        self._acknowledged: Acknowledged | None = None
        self._position = 0

    def acknowledge(self, acknowledged: Acknowledged, position: int) -> None:
        """Settle the message as stored, as message ``position`` of a frame."""
        self._acknowledged = acknowledged
        self._position = position
        self.done = True

    def fail(self, error: FlintError) -> None:
        """Settle the message as failed: it will not be retried."""
        self.error = error
        self.done = True

    def receipt(self) -> Receipt:
        """Return the receipt of an acknowledged message, or raise the error of a failed one."""
        if self.error is not None:
            raise self.error
        assert self._acknowledged is not None, "neither acknowledged nor failed"
        return self._acknowledged.receipt(self._position)


class SentSingle(NamedTuple):
    """A single message that was sent before an ``Outbox`` knew of it. ``queue``: its queue, or ``ANY_QUEUE``;
    ``deadline``: monotonic seconds."""

    topic: str
    queue: int
    row: Row
    head: ProduceHead
    body: bytes
    first: int
    born_ms: int
    flush: str
    deadline: float

    def frame(self, lane: Lane) -> ProduceFrame:
        """Return the frame of the message, as if the lane had sent it."""
        single = Single(self.row, len(self.row[0]) + ROW_OVERHEAD_BYTES, self.flush, self.deadline)
        frame = ProduceFrame(lane, self.head, Rows((self.row,)), 1, self.first, self.deadline, (single,))
        frame.born_ms, frame.body = self.born_ms, self.body
        return frame


class Bulk:
    """The messages of one ``send_many`` or ``send_bulk``.

    ``added_at``: time of the call, ``deadline``: its end, both in monotonic seconds. Once ``done``, ``parts`` has the
    outcome of every message. ``prepare``: the attempt that the messages are prepared for; empty: they are sent
    normally.
    """

    __slots__ = ("added_at", "deadline", "done", "left", "parts", "prepare")

    def __init__(self, count: int, added_at: float, deadline: float = NEVER, prepare: str = "") -> None:
        self.prepare = prepare
        self.left = count
        self.done = count == 0
        self.added_at = added_at
        self.deadline = deadline
        self.parts: list[FrameOutcome] = []

    def settle(self, indexes: Sequence[int], outcome: Acknowledged | FlintError) -> None:
        """Record the outcome of the messages at these indexes of the call."""
        self.parts.append(FrameOutcome(indexes, outcome))
        self.left -= len(indexes)
        if not self.left:
            self.done = True


class BatchGroup:
    """The messages of a bulk for the same destination. ``indexes``: their indexes in the call, ascending."""

    __slots__ = ("_frames", "_taken", "bulk", "common", "flush", "heads", "indexes", "source")

    def __init__(
        self, bulk: Bulk, source: RowSource | ColumnSource, indexes: Sequence[int], common: str, flush: str
    ) -> None:
        self.bulk = bulk
        self.source = source
        self.indexes = indexes
        self.common = common
        self.flush = flush
        self.heads: dict[int, ProduceHead] = {}
        """Heads of its frames, by layout."""
        self._taken = 0
        self._frames = 0

    @property
    def exhausted(self) -> bool:
        """True if all of its messages are in frames or were given up."""
        return self._taken == len(self.indexes)

    def take(self, bytes_target: int, spread: int = 1) -> tuple[Content, Sequence[int]]:
        """Return the next frame's messages and their indexes in the call. ``spread``: minimum number of frames to
        divide all messages into, in equal shares."""
        left = len(self.indexes) - self._taken
        frames_left = spread - self._frames if len(self.indexes) > SPREAD_OVER_COUNT else 1
        content = self.source.take(bytes_target, -(-left // frames_left) if frames_left > 1 else left)
        indexes = self.indexes[self._taken : self._taken + len(content)]
        self._taken += len(content)
        self._frames += 1
        return content, indexes

    def give_up(self, error: FlintError) -> None:
        """Fail all messages that are in no frame yet."""
        rest = self.indexes[self._taken :]
        self._taken = len(self.indexes)
        if rest:
            self.bulk.settle(rest, error)


class ProduceFrame:
    """One PRODUCE request and its origin: either ``singles``, or ``group`` with the ``indexes`` of its messages.

    ``first`` is the unique counter of its first message; a resent frame keeps it, so that the broker can detect a
    duplicate. ``body`` is packed when the frame is first sent.
    """

    __slots__ = tuple("body born_ms content count deadline error first group head indexes lane singles".split())

    def __init__(
        self,
        lane: Lane,
        head: ProduceHead,
        content: Content,
        count: int,
        first: int,
        deadline: float,
        singles: Sequence[Single] = (),
        group: BatchGroup | None = None,
        indexes: Sequence[int] = (),
    ) -> None:
        self.lane = lane
        self.head = head
        self.content = content
        self.count = count
        self.first = first
        self.deadline = deadline
        self.singles = singles
        self.group = group
        self.indexes = indexes
        self.born_ms = now_millis()
        self.body: bytes | memoryview | None = None
        self.error: FlintError | None = None

    def cut(self, at: int) -> tuple[ProduceFrame, ProduceFrame]:
        """Return two frames, the messages before message ``at`` and the others; each message keeps its unique key."""
        first, second = self.content.cut(at)
        return self._part(first, 0), self._part(second, at)

    def _part(self, content: Content, start: int) -> ProduceFrame:
        end = start + len(content)
        part = ProduceFrame(
            self.lane,
            self.head,
            content,
            len(content),
            (self.first + start) % UNIQUE_COUNTER_MAX,
            self.deadline,
            self.singles[start:end],
            self.group,
            self.indexes[start:end],
        )
        part.born_ms = self.born_ms
        return part


def first_deadline(frames: Iterable[ProduceFrame]) -> float:
    """Return the earliest deadline of frames; infinite without any."""
    return min((frame.deadline for frame in frames), default=NEVER)


Source: TypeAlias = Single | BatchGroup


class Lane:
    """Messages to one queue of one topic (or to any queue), in order.

    At most ``window`` of its frames are in flight. ``retries``: frames to resend, before anything in ``waiting``.
    """

    __slots__ = tuple("_answers _queues_seen heads in_flight offered queue retries topic waiting window".split())

    def __init__(self, topic: str, queue: int, window: int) -> None:
        self.topic = topic
        self.queue = queue
        self.window = window
        self.heads: dict[tuple[str, str], ProduceHead] = {}
        """Heads of frames of single messages, by flush mode and common properties."""
        self.in_flight = 0
        self.offered = False
        self.waiting: deque[Source] = deque()
        self.retries: deque[ProduceFrame] = deque()
        self._answers = 0
        self._queues_seen = 1

    def stored_in(self, queue: int) -> None:
        self._answers += 1
        if queue >= self._queues_seen:
            self._queues_seen = queue + 1

    @property
    def spread(self) -> int:
        """Number of frames that gives each queue its share of a bulk: the number of the topic's queues, as far as the
        broker's round-robin choices have shown."""
        if self.queue >= 0:
            return 1
        return self._queues_seen if self._answers >= SPREAD_FIRST else max(SPREAD_FIRST, self._queues_seen)

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is in flight."""
        return not (self.waiting or self.retries or self.in_flight)

    def take_singles(self, first: Single, bytes_target: int, count_max: int) -> list[Single]:
        """Return ``first``, which is already removed, and the singles right after it that fit into the same frame."""
        waiting = self.waiting
        singles = [first]
        size = first.size
        while waiting and len(singles) < count_max:
            following = waiting[0]
            if type(following) is not Single or following.flush != first.flush or following.common != first.common:
                break
            if size + following.size > bytes_target:
                break
            waiting.popleft()
            # A message that has expired, or that its caller gave up, is done already.
            if not following.done:
                singles.append(following)
                size += following.size
        return singles


# ---- Makes PRODUCE frames of the messages that wait in a lane, and numbers their messages.

RECORD_BYTES_MAX = 512 * 1024
"""Largest record that a broker accepts by default: a guess until the first connection."""


class FrameMaker:
    """The frames of one producer. ``unique_prefix``, ``unique_next``: prefix and next counter of the unique keys."""

    __slots__ = ("common", "delivery_seconds", "frame_bytes_max", "record_bytes_max", "unique_next", "unique_prefix")

    def __init__(self, delivery_seconds: float, unique_prefix: str, unique_first: int) -> None:
        self.delivery_seconds = delivery_seconds
        self.unique_prefix = unique_prefix
        self.unique_next = unique_first
        self.common = ""
        """Properties of every single message, in PRODUCE's form."""
        self.frame_bytes_max = 0
        """Longest frame that the connected broker accepts."""
        self.record_bytes_max = RECORD_BYTES_MAX
        """Largest record of a message that it accepts."""

    def limit(self, limits: HelloAnswer) -> None:
        """Keep to the limits of a broker from now on."""
        self.frame_bytes_max = limits.produce_frame_bytes_max
        self.record_bytes_max = limits.message_bytes_max

    def of_singles(self, lane: Lane, first: Single) -> ProduceFrame:
        """Return a frame of ``first``, which is already removed, and the singles after it that fit."""
        if lane.waiting:
            singles: Sequence[Single] = lane.take_singles(first, FRAME_BYTES_TARGET, FRAME_COUNT_MAX)
            content = Rows([single.row for single in singles])
            deadline = min([single.deadline for single in singles])
        else:
            singles, content, deadline = (first,), Rows((first.row,)), first.deadline
        head = lane.heads.get((first.flush, first.common))
        if head is None:
            if len(lane.heads) >= HEADS_KEPT:
                lane.heads.clear()
            head = self._head(lane, LAYOUT_ROWS, first.flush, self.common + first.common)
            lane.heads[first.flush, first.common] = head
        return ProduceFrame(lane, head, content, len(singles), self.take_counters(len(singles)), deadline, singles)

    def of_group(self, lane: Lane, group: BatchGroup, now: float) -> ProduceFrame:
        """Return the next frame of a bulk's group, the first that waits in the lane."""
        bytes_target = min(FRAME_BYTES_TARGET, self.frame_bytes_max - HEAD_BYTES_RESERVED)
        content, indexes = group.take(bytes_target, lane.spread)
        if group.exhausted:
            lane.waiting.popleft()
        elif lane.queue == ANY_QUEUE:
            lane.waiting.rotate(-1)  # bulks take turns; bulks to a pinned queue keep their order
        deadline = min(now + self.delivery_seconds, group.bulk.deadline)
        head = group.heads.get(content.layout)
        if head is None:
            head = self._head(lane, content.layout, group.flush, group.common, group.bulk.prepare)
            group.heads[content.layout] = head
        count = len(content)
        return ProduceFrame(lane, head, content, count, self.take_counters(count), deadline, (), group, indexes)

    def too_long(self, frame: ProduceFrame, body_bytes: int) -> MessageIllegal:
        """Return the error of a message whose frame is longer than the broker accepts."""
        return MessageIllegal(
            f"a message to topic {frame.lane.topic!r} needs a frame of {frame.head.size + body_bytes} bytes; "
            f"the broker accepts at most {self.frame_bytes_max}: split the message, or store its content "
            "elsewhere and send a reference"
        )

    def _head(self, lane: Lane, layout: int, flush: str, common: str, prepare: str = "") -> ProduceHead:
        return ProduceHead(lane.topic, lane.queue, layout, flush, common, self.unique_prefix, prepare)

    def take_counters(self, count: int) -> int:
        """Return the first of the next ``count`` counters for unique keys."""
        first = self.unique_next
        self.unique_next = (first + count) % UNIQUE_COUNTER_MAX
        return first
