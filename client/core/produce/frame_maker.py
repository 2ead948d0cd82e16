"""Makes PRODUCE frames of the messages that wait in a lane, and numbers their messages."""

from __future__ import annotations

from collections.abc import Sequence

from ....protocol.commands import LAYOUT_ROWS, HelloAnswer
from ....protocol.errors import MessageIllegal
from ....protocol.produce_frame import ANY_QUEUE, ProduceHead
from ....protocol.storage.ids import UNIQUE_COUNTER_MAX
from .accumulator import HEADS_KEPT, BatchGroup, Lane, ProduceFrame, Single
from .packer import FRAME_BYTES_TARGET, FRAME_COUNT_MAX, HEAD_BYTES_RESERVED, Rows

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
