"""Reads all queues of a topic, without sockets: decides which pulls to send and which message comes next.

Each queue has at most one outstanding pull and two waiting batches. The queues take turns of a few messages, so that a
long queue does not delay the others. At the end of a queue the broker holds the pull (long polling), so that a new
message in any queue arrives at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import Any

from ....protocol.commands import QueueStats
from ....protocol.errors import FlintError, OffsetOutOfRange
from .. import topics as topic_operations
from ..rpc.connection_errors import Probed, SilenceLimit, share_seconds
from ..rpc.operation import Operation, Plan, backoff_seconds, is_retriable
from ..rpc.session import Answer
from .batch import Batch, StoredMessage, TagFilter
from .positions import Span, ends_at
from .requests import pull

TURN = 32
"""Number of messages of one queue before another queue has its turn."""
HOLD_MS = 20_000
"""Maximum time for which the broker may hold a pull at the end of a queue."""
PULL_COUNT = 8192
_PULL_BYTES_TOTAL = 16 << 20
"""Bytes that the pulls of all queues may return together; each gets an equal share, within the two limits below."""
_PULL_BYTES_MAX = 1 << 20
_PULL_BYTES_MIN = 64 << 10


class QueueReader:
    """The reading state of one queue.

    ``position``: offset of the next pull; ``end``: where reading stops, or None; ``caught_up``: the last response
    reached the end of the queue; ``may_move``: an expired start is not an error.
    """

    __slots__ = ("asked", "caught_up", "end", "may_move", "messages", "position", "queue")

    def __init__(self, queue: int, position: int, end: int | None, *, may_move: bool) -> None:
        self.queue = queue
        self.position = position
        self.end = end
        self.may_move = may_move
        self.asked = False
        self.caught_up = False
        self.messages: list[Iterator[StoredMessage]] = []

    @property
    def wants_more(self) -> bool:
        """True if a pull should be sent."""
        return not self.asked and len(self.messages) < 2 and (self.end is None or self.position < self.end)

    @property
    def finished(self) -> bool:
        """True if all messages up to the end were taken."""
        return not self.messages and self.end is not None and self.position >= self.end


class TopicReader:
    """Reads ``span`` of ``topic``; a driver sends ``pulls`` and reports with ``take_batch``, ``pull_refused`` and
    ``forget_pulls``."""

    def __init__(self, topic: str, span: Span, tags: TagFilter, condition: str = "") -> None:
        self.topic = topic
        self.follows = span.ends is None
        """True if new queues and new messages are to be read too."""
        self._tags = tags
        self._condition = condition
        self._from_ms = span.from_ms
        self._until_ms = span.until_ms
        self._queues: dict[int, QueueReader] = {}
        self._turns: list[QueueReader] = []
        ends = span.ends or {}
        for queue, start in span.starts.items():
            end = ends.get(queue, start) if span.ends is not None else None
            self._add(QueueReader(queue, start, end, may_move=not span.explicit))

    def _add(self, queue: QueueReader) -> None:
        self._queues[queue.queue] = queue
        self._turns.append(queue)

    @property
    def finished(self) -> bool:
        """True if every message up to the ends was taken."""
        return not self.follows and all(queue.finished for queue in self._turns)

    @property
    def has_messages(self) -> bool:
        """True if ``turn`` would return messages."""
        return any(queue.messages for queue in self._turns)

    @property
    def someone_waits(self) -> bool:
        """True if a queue has an outstanding pull and no messages, so that it is worth looking for its response."""
        return any(queue.asked and not queue.messages for queue in self._turns)

    def pulls(self) -> list[tuple[int, Operation[Batch]]]:
        """Return the pulls that are due as ``(queue, operation)``; the driver must send them."""
        pulls = []
        for queue in self._turns:
            if queue.wants_more:
                queue.asked = True
                pulls.append((queue.queue, self._pull(queue)))
        return pulls

    def _pull(self, queue: QueueReader) -> Operation[Batch]:
        bytes_max = min(_PULL_BYTES_MAX, max(_PULL_BYTES_MIN, _PULL_BYTES_TOTAL // len(self._turns)))
        count = PULL_COUNT if queue.end is None else min(PULL_COUNT, queue.end - queue.position)
        # Do not let the broker hold a pull for an existing range: a filter may let none of the rest through.
        hold_ms = HOLD_MS if queue.end is None or queue.caught_up else 0
        return pull(self.topic, queue.queue, queue.position, count, bytes_max, hold_ms, self._tags, self._condition)

    def take_batch(self, number: int, batch: Batch) -> None:
        """Take the response to a queue's pull."""
        queue = self._queues[number]
        queue.asked = False
        # Only the start may be moved: after it, an expired offset means that messages were missed.
        queue.may_move = False
        queue.position = max(queue.position, batch.next_offset)
        queue.caught_up = queue.position >= batch.max_offset
        is_timed = self._from_ms is not None or self._until_ms is not None
        if is_timed or (queue.end is not None and batch.next_offset > queue.end):
            messages = [message for message in batch.messages if self._is_within(message, queue.end)]
            if messages:
                queue.messages.append(iter(messages))
        elif batch:
            queue.messages.append(batch.stream())

    def _is_within(self, message: StoredMessage, end: int | None) -> bool:
        # Store times of a queue never decrease, and those of what the broker stores from a time on are not before it.
        since = self._from_ms is None or message.stored_ms >= self._from_ms
        # A message may arrive before this client learns that the time has come at which the reading ends.
        until = self._until_ms is None or message.stored_ms < self._until_ms
        return since and until and (end is None or message.queue_offset < end)

    def pull_refused(self, number: int, error: FlintError) -> bool:
        """Handle a refused pull. Returns whether reading can continue: if the start was not explicit and has
        expired."""
        queue = self._queues[number]
        queue.asked = False
        if isinstance(error, OffsetOutOfRange) and queue.may_move and queue.position < error.min_offset:
            queue.position = error.min_offset
            return True
        return False

    def forget_pulls(self) -> None:
        """Mark all pulls as not outstanding, because the connection was lost."""
        for queue in self._turns:
            queue.asked = False

    def turn(self) -> list[StoredMessage]:
        """Return the next messages, from the queue whose turn it is. Empty if no queue has any."""
        turns = self._turns
        for place, queue in enumerate(turns):
            if queue.messages:
                taken = list(islice(queue.messages[0], TURN))
                if len(taken) < TURN:
                    queue.messages.pop(0)
                if not taken:
                    return self.turn()
                # The queues before this one have no messages; the one that had its turn goes to the end.
                turns.append(turns.pop(place))
                return taken
        return []

    def end_at(self, ends: dict[int, int]) -> None:
        """Stop following: only messages below ``ends`` are still read."""
        self.follows = False
        for queue in self._turns:
            queue.end = ends.get(queue.queue, queue.position)

    def found_queues(self, stats: list[QueueStats]) -> None:
        """Add the topic's new queues, which are read from their beginning."""
        for queue in stats:
            if queue.queue not in self._queues:
                self._add(QueueReader(queue.queue, queue.min_offset, None, may_move=True))


# ---- One iteration over a topic, without its connection: what to request, how to handle responses, and when
# to retry.
#
# A driver sends what ``requests`` returns on a connection that belongs to the iteration, reports ``asked``
# and ``answered``, takes the messages from ``reading``, and calls ``disconnected`` and ``pause_after`` when
# the connection is lost. All times are monotonic seconds that the driver passes in.

QUEUES_ASKED_SECONDS = 5.0
"""Interval at which a followed topic is checked for new queues."""
_STATS = -1
"""Key of the request for the list of queues, among the pulls, whose keys are queues."""


class TopicIterator:
    """Sends the requests for one ``reading`` of ``span``. ``timeout``: seconds for which the broker may be away before
    the iteration fails; ``now``: when it begins."""

    def __init__(self, reading: TopicReader, span: Span, timeout: float, now: float) -> None:
        self.reading = reading
        self._until_ms = span.until_ms
        self._until_due = now + span.until_left_ms / 1000
        self._timeout = timeout
        self._asked: dict[int, tuple[int, Operation[Any]]] = {}
        self._queues_due = now + QUEUES_ASKED_SECONDS
        self._heard_at = now
        self._silence = SilenceLimit(timeout, now)
        self._look_at = now
        self._failures = 0

    @property
    def outstanding(self) -> bool:
        """True if responses are outstanding."""
        return bool(self._asked)

    @property
    def waits_for_answers(self) -> bool:
        """True if there is a reason to wait on the connection."""
        return bool(self._asked) or self.reading.follows

    def end_due(self, now: float) -> Plan[tuple[dict[int, int], int]] | None:
        """Return a plan that finds the end offsets, for ``end_found``, when the time should have come at which the
        iteration ends; None before that time, and when the end is known."""
        if self._until_ms is None or now < self._until_due:
            return None
        return ends_at(self.reading.topic, self._until_ms)

    def end_found(self, ends: dict[int, int], left_ms: int, now: float) -> None:
        """Take the result of the plan of ``end_due``: the end, or that the broker's clock has not reached it."""
        if left_ms:
            self._until_due = now + left_ms / 1000
            return
        self._until_ms = None
        self.reading.end_at(ends)

    def requests(self, now: float) -> list[tuple[int, Operation[Any]]]:
        """Return the requests that are due: the driver must send all of them, and report each with ``asked``."""
        if not self._asked:
            self._silence = SilenceLimit(self._timeout, now)
            self._look_at = now + share_seconds(self._timeout)
        requests: list[tuple[int, Operation[Any]]] = list(self.reading.pulls())
        if self.reading.follows and now >= self._queues_due:
            self._queues_due = now + QUEUES_ASKED_SECONDS
            requests.append((_STATS, topic_operations.topic_stats(self.reading.topic)))
        return requests

    def asked(self, request_id: int, queue: int, operation: Operation[Any]) -> None:
        """Record that one of ``requests`` was sent with this id."""
        self._asked[request_id] = (queue, operation)

    def connected(self, now: float) -> None:
        self._heard_at = now

    def answered(self, answer: Answer, now: float) -> None:
        """Handle a response. Raises its error if the iteration cannot continue or must retry."""
        self._heard_at = now
        self._failures = 0
        queue, operation = self._asked.pop(answer.request_id)
        try:
            result = operation.result(answer)
        except FlintError as error:
            if queue != _STATS and self.reading.pull_refused(queue, error):
                return
            raise
        if queue == _STATS:
            self.reading.found_queues(result)
        else:
            self.reading.take_batch(queue, result)

    def check_silence(self, connection: Probed, now: float) -> None:
        """Raise ``ConnectionFailed`` if nothing comes from a connection that was read to its end."""
        if self._asked:
            self._heard_at = max(self._heard_at, connection.active_at)
            self._look_at = now + self._silence.check(connection, now)

    def seconds_to_wait(self, now: float) -> float:
        """Return how long nothing needs to be done unless a response arrives."""
        seconds = self._look_at - now + 0.001 if self._asked else inf
        if self.reading.follows:
            seconds = min(seconds, self._queues_due - now)
        if self._until_ms is not None:
            seconds = min(seconds, self._until_due - now + 0.001)
        return max(0.0, seconds)

    def seconds_to_connect(self, now: float) -> float:
        """Return how long connecting may take."""
        return max(0.001, self._heard_at + self._timeout - now)

    def disconnected(self) -> None:
        """Forget the outstanding requests: the connection was lost or given back."""
        self._asked.clear()
        self.reading.forget_pulls()

    def pause_after(self, error: FlintError, now: float) -> float:
        """Return the seconds to wait before retrying after ``error``; raise ``error`` if retrying cannot help."""
        if not is_retriable(error):
            raise error
        self._failures += 1
        pause = backoff_seconds(self._failures, error)
        if now + pause > self._heard_at + self._timeout:
            raise error
        return pause
