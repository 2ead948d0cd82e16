"""Delivery of produced messages, without sockets, threads or a clock.

Callers use ``add_single`` and ``add_bulk``. A driver sends what ``next_request`` returns, reports events (``answered``,
``connection_lost``, ``expire``) and checks ``done`` of what was added. All times are monotonic seconds that the driver
passes in. Nothing here is thread-safe: the driver serializes access.

A message that fails with a retriable error is resent, after a pause, until its deadline; frames keep their order within
a lane. The broker recognizes a frame that it has already stored by its unique keys, but remembers only a limited number
of frames. So the number in flight is limited, and frames whose response was lost are resent before all others. If the
broker refuses a frame as illegal, it is halved until the offending message is alone; a frame that is stored in part is
cut there.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable

from ....protocol.commands import PHYSICAL_OFFSET_STRUCT, HelloAnswer
from ....protocol.errors import (
    SUCCESS,
    FlintError,
    MessageIllegal,
    PartlyStored,
    RemoteProtocolError,
    RequestTimeout,
    error_from_answer,
)
from ....protocol.frames import ANY_QUEUE
from ...message import Row
from ..rpc.operation import Backoff, is_retriable
from ..rpc.session import Answer
from .accumulator import (
    BULK_WINDOW,
    NEVER,
    PINNED_WINDOW,
    SINGLES_WINDOW,
    BatchGroup,
    Bulk,
    FrameMaker,
    Lane,
    ProduceFrame,
    SentSingle,
    Single,
    first_deadline,
)
from .packer import ROW_OVERHEAD_BYTES, new_packer
from .receipts import Acknowledged

IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
IN_FLIGHT_FRAMES_MAX = 256
"""Brokers remember more frames of each producer than this (``PRODUCER_RUNS_MAX`` of the broker)."""
_LANES_KEPT = 1024


class Outbox:
    """All messages that a producer has accepted and not yet settled.

    ``delivery_seconds``: how long to try a message; ``in_flight_bytes_max``: maximum number of bytes to accept before
    the first of them are acknowledged; ``unique_prefix``, ``unique_first``: prefix and first counter of the unique
    keys.
    """

    def __init__(
        self, delivery_seconds: float, in_flight_bytes_max: int, unique_prefix: str, unique_first: int
    ) -> None:
        self.delivery_seconds = delivery_seconds
        self.in_flight_bytes_max = in_flight_bytes_max
        self.frames = FrameMaker(delivery_seconds, unique_prefix, unique_first)
        self.pending_bytes = 0
        self.settled: list[Single] = []
        """Settled singles that have a future; the driver removes them."""
        self.offered: deque[Lane] = deque()
        """Lanes that can send. While it is empty, only a response or a caller can change that."""
        self.in_flight: dict[int, ProduceFrame] = {}
        """Frames that were sent and not answered, by request id."""
        self.on_retry: Callable[[FlintError], object] = bool
        """Called with the broker's error when a refused frame is going to be resent."""
        self._packer = new_packer()
        self._lanes: dict[tuple[str, int, bool], Lane] = {}
        self._backoff = Backoff()
        self._progressed_at = 0.0
        self._wake_at = NEVER

    # ---- what callers add

    def add_single(
        self, topic: str, queue: int, row: Row, flush: str, deadline: float, future: object = None, common: str = ""
    ) -> Single:
        """Accept one message for a queue of a topic, or for any queue (-1). ``row``: as in ``Rows``; ``flush`` and
        ``common``: as in PRODUCE."""
        single = Single(row, len(row[0]) + ROW_OVERHEAD_BYTES, flush, deadline, future, common)
        self.pending_bytes += single.size
        lane = self._lanes.get((topic, queue, False)) or self._lane(topic, queue, bulk=False)
        lane.waiting.append(single)
        if not lane.offered and lane.in_flight < lane.window:
            lane.offered = True
            self.offered.append(lane)
        if deadline < self._wake_at:
            self._wake_at = deadline
        return single

    @property
    def is_quiet(self) -> bool:
        """True if nothing waits, nothing is in flight, and the last response was not an error."""
        return not (self.in_flight or self.offered or self.pending_bytes) and self._backoff.trouble is None

    def adopt(self, sent: SentSingle, request_id: int) -> Single:
        """Accept a single message that was already sent, as the only one in flight."""
        lane = self._lane(sent.topic, sent.queue, bulk=False)
        lane.in_flight += 1
        frame = self.in_flight[request_id] = sent.frame(lane)
        self.pending_bytes += frame.singles[0].size
        self._wake_at = min(self._wake_at, sent.deadline)
        return frame.singles[0]

    def add_bulk(self, bulk: Bulk, topic: str, queue: int, group: BatchGroup) -> None:
        """Accept the messages of one group of a bulk."""
        lane = self._lane(topic, queue, bulk=True)
        lane.waiting.append(group)
        self._offer(lane)
        self._wake_at = min(self._wake_at, self._given_up_at(bulk))

    def has_room(self, body_bytes: int) -> bool:
        """Return whether a message of this size may be added now; if not, a driver makes its caller wait."""
        return not self.pending_bytes or self.pending_bytes + body_bytes <= self.in_flight_bytes_max

    def abandon(self, waited_for: Single | Bulk, error: FlintError) -> None:
        """Drop what was not sent yet, because its caller no longer waits for it."""
        if waited_for.done:
            return
        if isinstance(waited_for, Single):
            self._fail_single(waited_for, error)
            return
        for lane in self._lanes.values():
            for source in lane.waiting:
                if isinstance(source, BatchGroup) and source.bulk is waited_for:
                    source.give_up(error)

    # ---- what a driver does

    def connected(self, limits: HelloAnswer) -> None:
        """Start sending on a new connection; ``limits`` is the broker's response to HELLO."""
        self.frames.limit(limits)
        self._backoff.end_pause()

    def next_request(self, now: float, request_id: int) -> tuple[bytes, bytes | memoryview] | None:
        """Return the head and body of the next frame, with this request id; None if nothing can be sent now."""
        if now < self._backoff.until or len(self.in_flight) >= IN_FLIGHT_FRAMES_MAX:
            return None
        offered = self.offered
        while offered:
            lane = offered.popleft()
            lane.offered = False
            frame = lane.retries.popleft() if lane.retries else self._new_frame(lane, now)
            if frame is None:
                if lane.waiting:  # there is no room for its next frame
                    self._offer(lane)
                    return None
                continue
            if not self._packed(frame):
                self._offer(lane)
                continue
            lane.in_flight += 1
            if lane.waiting or lane.retries:
                self._offer(lane)
            self.in_flight[request_id] = frame
            body = frame.body
            assert body is not None
            return frame.head.encode(request_id, frame.count, frame.first, frame.born_ms, len(body)), body
        return None

    def answered(self, answer: Answer, now: float) -> None:
        """Handle a response of the broker. Raises ``RemoteProtocolError`` for one that cannot be right."""
        frame = self.in_flight.get(answer.request_id)
        if frame is None:
            return  # the frame expired before its response arrived
        if answer.code == SUCCESS:
            self._acknowledge(frame, answer)
            self._progressed_at = now
            self._backoff.record_success()
        else:
            self._refused(frame, error_from_answer(answer.code, answer.fields), now)
        del self.in_flight[answer.request_id]
        lane = frame.lane
        lane.in_flight -= 1
        if lane.waiting or lane.retries:
            self._offer(lane)

    def connection_lost(self, error: FlintError, now: float) -> None:
        """Schedule everything in flight for resending, after a lost connection or a failed attempt to connect."""
        # Backwards, because each frame goes to the front of its lane: so they keep their order.
        for frame in reversed(self.in_flight.values()):
            frame.error = error
            frame.lane.in_flight -= 1
            frame.lane.retries.appendleft(frame)
            self._offer(frame.lane)
        self.in_flight.clear()
        # Frames that may already be stored go first, while the broker still remembers their unique keys.
        self.offered = deque(sorted(self.offered, key=lambda lane: not lane.retries))
        self._backoff.record_failure(error, now)

    def fail_all(self, error: FlintError) -> None:
        """Fail everything that was added."""
        for lane in self._lanes.values():
            for frame in lane.retries:
                self._fail_frame(frame, error)
            for source in lane.waiting:
                if isinstance(source, BatchGroup):
                    source.give_up(error)
                elif not source.done:
                    self._fail_single(source, copy.copy(error))
            lane.retries.clear()
            lane.waiting.clear()
            lane.in_flight = 0
            lane.offered = False
        for frame in self.in_flight.values():
            self._fail_frame(frame, error)
        self.in_flight.clear()
        self.offered.clear()

    def expire(self, now: float) -> None:
        """Fail everything whose deadline is over."""
        for lane in self._lanes.values():
            if lane.retries:
                lane.retries = deque(frame for frame in lane.retries if not self._expire_frame(frame, now))
            if lane.waiting:
                lane.waiting = deque(source for source in lane.waiting if not self._expire_source(source, now))
        for request_id, frame in list(self.in_flight.items()):
            if self._expire_frame(frame, now):
                del self.in_flight[request_id]
                frame.lane.in_flight -= 1
        # Windows may have opened and lanes may be empty now: offer the lanes again from scratch.
        for lane in self._lanes.values():
            lane.offered = False
        self.offered.clear()
        for lane in self._lanes.values():
            self._offer(lane)
        self._wake_at = self._earliest_deadline()

    def hold_seconds(self, now: float) -> float:
        """Return how long to pause before the next connection attempt or frame."""
        return self._backoff.seconds(now)

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is in flight. (What waits for a full window has frames in flight.)"""
        return not self.in_flight and not self.offered

    def expire_due(self, now: float) -> bool:
        """Return whether ``expire`` may have something to do."""
        return now >= self._wake_at

    def seconds_to_wait(self, now: float) -> float:
        """Return how long nothing needs to be done unless a response arrives; infinite if only a response matters."""
        seconds = self._wake_at - now
        if now < self._backoff.until and (self.offered or not self.in_flight):
            seconds = min(seconds, self._backoff.until - now)
        return seconds if seconds > 0.0 else 0.0

    # ---- frames

    def _lane(self, topic: str, queue: int, *, bulk: bool) -> Lane:
        key = (topic, queue, bulk and queue == ANY_QUEUE)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= _LANES_KEPT:  # bounds the memory of a producer that sends to many topics
                self._lanes = {known: lane for known, lane in self._lanes.items() if not lane.idle}
            window = PINNED_WINDOW if queue != ANY_QUEUE else BULK_WINDOW if bulk else SINGLES_WINDOW
            lane = self._lanes[key] = Lane(topic, queue, window)
        return lane

    def _offer(self, lane: Lane) -> None:
        if not lane.offered and lane.in_flight < lane.window and (lane.retries or lane.waiting):
            lane.offered = True
            if lane.retries:
                self.offered.appendleft(lane)
            else:
                self.offered.append(lane)

    def _packed(self, frame: ProduceFrame) -> bool:
        """Pack the frame unless it is packed. Returns False if it is too long and was therefore halved or failed."""
        body = frame.body
        if body is None:
            body = frame.body = frame.content.pack(self._packer)
            if frame.group is not None:
                self.pending_bytes += len(body)
        if len(body) + frame.head.size <= self.frames.frame_bytes_max:
            return True
        self._too_long(frame)
        return False

    def _new_frame(self, lane: Lane, now: float) -> ProduceFrame | None:
        """Return a frame of the lane's waiting messages; None if there are none, or no room for them."""
        while waiting := lane.waiting:
            source = waiting[0]
            if type(source) is Single:
                waiting.popleft()
                if not source.done:
                    return self.frames.of_singles(lane, source)
                continue
            assert isinstance(source, BatchGroup)
            if source.exhausted:
                waiting.popleft()
            elif self.in_flight and self.pending_bytes + self.frames.frame_bytes_max > self.in_flight_bytes_max:
                return None
            else:
                frame = self.frames.of_group(lane, source, now)
                self._wake_at = min(self._wake_at, frame.deadline)
                return frame
        return None

    def _too_long(self, frame: ProduceFrame) -> None:
        """Halve a packed frame that is longer than the broker accepts, or fail its only message."""
        assert frame.body is not None
        if frame.count > 1:
            self._cut(frame, frame.count // 2)
            return
        self._fail_frame(frame, self.frames.too_long(frame, len(frame.body)))

    def _cut(self, frame: ProduceFrame, at: int) -> None:
        """Replace the frame by two: the messages before message ``at``, and the others."""
        self._forget_bytes(frame)
        frame.lane.retries.extendleft(reversed(frame.cut(at)))

    # ---- outcomes

    def _acknowledge(self, frame: ProduceFrame, answer: Answer) -> None:
        fields, physical_offsets = answer.fields, answer.body
        queue, queue_offset, stored_ms = fields.get("queue"), fields.get("queue_offset"), fields.get("store_ms")
        count = frame.count
        if (
            type(queue) is not int
            or type(queue_offset) is not int
            or type(stored_ms) is not int
            or len(physical_offsets) != PHYSICAL_OFFSET_STRUCT.size * count
        ):
            raise RemoteProtocolError(f"the response to PRODUCE does not match its {count} messages: {fields!r:.200}")
        acknowledged = Acknowledged(
            frame.lane.topic,
            queue,
            queue_offset,
            stored_ms,
            self.frames.unique_prefix,
            frame.first,
            bytes(physical_offsets),
            frame.head.common,
        )
        frame.lane.stored_in(queue)
        group = frame.group
        if group is None:
            for position, single in enumerate(frame.singles):
                if not single.done:
                    self.pending_bytes -= single.size
                    single.acknowledge(acknowledged, position)
                    if single.future is not None:
                        self.settled.append(single)
        else:
            self._forget_bytes(frame)
            group.bulk.settle(frame.indexes, acknowledged)

    def _refused(self, frame: ProduceFrame, error: FlintError, now: float) -> None:
        frame.error = error
        if is_retriable(error) and now < frame.deadline:
            if frame.lane.window == PINNED_WINDOW:
                frame.lane.retries.appendleft(frame)  # before the part that was cut off after it
            else:
                frame.lane.retries.append(frame)
            self._backoff.record_failure(error, now)
            self.on_retry(error)
        elif isinstance(error, MessageIllegal) and frame.count > 1:
            self._cut(frame, frame.count // 2)
        elif isinstance(error, PartlyStored) and 0 < error.cut_at < frame.count:
            self._cut(frame, error.cut_at)
        else:
            self._fail_frame(frame, error)

    def _fail_frame(self, frame: ProduceFrame, error: FlintError) -> None:
        if (group := frame.group) is None:
            several = len(frame.singles) > 1
            for single in frame.singles:
                if not single.done:
                    self._fail_single(single, copy.copy(error) if several else error)
            return
        self._forget_bytes(frame)
        group.bulk.settle(frame.indexes, error)
        if not isinstance(error, MessageIllegal):
            group.give_up(error)

    def _fail_single(self, single: Single, error: FlintError) -> None:
        self.pending_bytes -= single.size
        single.fail(error)
        if single.future is not None:
            self.settled.append(single)

    def _forget_bytes(self, frame: ProduceFrame) -> None:
        if frame.group is not None and frame.body is not None:
            self.pending_bytes -= len(frame.body)
        frame.body = None

    # ---- deadlines

    def _expire_source(self, source: Single | BatchGroup, now: float) -> bool:
        """Fail an overdue source; returns whether nothing is left of it."""
        if isinstance(source, Single):
            if not source.done and source.deadline <= now:
                self._fail_single(source, self._timeout(None))
            return source.done
        if self._given_up_at(source.bulk) <= now:
            source.give_up(self._timeout(None))
        return source.exhausted

    def _expire_frame(self, frame: ProduceFrame, now: float) -> bool:
        """Fail the overdue messages of a frame; returns whether no caller waits for it any longer."""
        if frame.deadline > now:
            return False
        if frame.group is not None:
            self._fail_frame(frame, self._timeout(frame.error))
            return True
        for single in frame.singles:
            if not single.done and single.deadline <= now:
                self._fail_single(single, self._timeout(frame.error))
        frame.deadline = min((single.deadline for single in frame.singles if not single.done), default=NEVER)
        return frame.deadline == NEVER

    def _timeout(self, error: FlintError | None) -> FlintError:
        """Return the error of a message whose time is over: the error that kept it from being stored, if any."""
        error = error or self._backoff.trouble
        if error is not None:
            return copy.copy(error)
        return RequestTimeout(
            "the broker did not acknowledge in time; the message may still be stored. If the broker is overloaded or "
            "its disk is slow, use a longer timeout= or delivery_timeout="
        )

    def _earliest_deadline(self) -> float:
        earliest = first_deadline(self.in_flight.values())
        for lane in self._lanes.values():
            earliest = min(earliest, first_deadline(lane.retries))
            for source in lane.waiting:
                if isinstance(source, Single):
                    earliest = min(earliest, source.deadline)
                else:
                    earliest = min(earliest, self._given_up_at(source.bulk))
        return earliest

    def _given_up_at(self, bulk: Bulk) -> float:
        """Return when a bulk fails unless something is acknowledged before: waiting for others is not a failure."""
        return min(bulk.deadline, max(bulk.added_at, self._progressed_at) + self.delivery_seconds)
