"""Producer runs, read back from the end of the log, and the places of a run's messages."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....protocol.errors import MessageNotFound
from ....protocol.storage.delivery import PREPARED_TOPIC, PROPERTY_REAL_QUEUE, SCHEDULE_TOPIC, TIMER_TOPIC
from ....protocol.storage.layout import RECORD_HEAD_BYTES_MAX, UNIT_BYTES
from ....protocol.storage.record import decode_record, unpack_head
from ...kernels import dispatch
from ...kernels import sequences as kernel
from ..queue.queue_check import UNIT_DTYPE, is_filling

if TYPE_CHECKING:
    from ..files.mapped_file import MappedFile
    from ..index.index_file import IndexService
    from ..log.commitlog import CommitLog
    from ..queue.queue_table import ConsumeQueueTable
    from ..tables.store_state import StoreState
    from ..tables.topic_table import TopicTable

RUNS_A_CALL = 8192
"""Maximum number of runs that one kernel call finds."""

log = logging.getLogger(__name__)


class StoredRun(NamedTuple):
    """Messages of one producer that are consecutive both by its counter and in the queue.

    The producer sent them to ``asked_topic``; they are stored in ``queue`` of ``topic``, a different topic if they wait
    for their delivery. ``first``, ``queue_offset``: counter and queue offset of the first of ``messages`` messages.
    """

    prefix: str
    asked_topic: str
    first: int
    messages: int
    topic: str
    queue: int
    queue_offset: int


@dataclass(slots=True)
class Places:
    """Places of consecutive messages of a queue.

    ``physical_offsets``: count × i64; ``store_ms``: store time of the first message; ``end_offset``: where the last
    record ends; ``queue``: the queue in the producer's acknowledgement. Waiting messages name the queue that they will
    be delivered to.
    """

    physical_offsets: bytes
    store_ms: int
    end_offset: int
    queue: int


class ProducerRuns:
    """Reads of a recovered store. ``tail`` runs at the start; any thread may call ``places``."""

    def __init__(
        self,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService,
        topics: TopicTable,
        state: StoreState,
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._topics = topics
        self._state = state

    def places(self, topic: str, queue_id: int, queue_offset: int, count: int, *, hot: bool) -> Places:
        """Return the places of ``count`` messages from ``queue_offset`` on, all of which were stored and dispatched.

        Raises ``MessageNotFound`` if retention deleted the first, and ``WouldBlock`` with ``hot``.
        """
        queue = self._queues.get(topic, queue_id)
        blob = queue.read_units(queue_offset, count, hot=hot) if queue is not None else b""
        units = np.frombuffer(blob, UNIT_DTYPE)
        offsets = units["physical_offset"]
        if (
            len(blob) < count * UNIT_BYTES
            or (units["size"] <= 0).any()
            or is_filling(units).any()
            or offsets[0] < self._commitlog.start_offset
        ):
            raise MessageNotFound(
                f"message {queue_offset} of queue {queue_id} of topic {topic} was stored before, and retention has "
                "taken it away since; it was not stored again"
            )
        # The head holds the store time; a waiting message's target queue is in its properties.
        waits = topic in (SCHEDULE_TOPIC, TIMER_TOPIC, PREPARED_TOPIC)
        size = int(units["size"][0])
        blob = bytearray(size if waits else min(size, RECORD_HEAD_BYTES_MAX))
        self._commitlog.queue.read(int(offsets[0]), memoryview(blob), hot=hot)
        if waits:
            queue_id = int(decode_record(blob).property_map()[PROPERTY_REAL_QUEUE])
        end_offset = int(offsets[-1] + units["size"][-1])
        return Places(offsets.tobytes(), unpack_head(blob).store_timestamp, end_offset, queue_id)

    def tail(self, tail_bytes: int, runs_max: int) -> list[StoredRun]:
        """Return the runs in the last ``tail_bytes`` of the log, oldest first, and at most the newest ``runs_max``.

        Leaves out deleted topics. Blocks.
        """
        end = self._commitlog.write_offset
        # An offset inside a record is not a place to begin. Every producer's record has a key, so the index knows the
        # first boundary.
        begin = self._index.first_record_at(max(end - tail_bytes, self._commitlog.start_offset))
        if begin is None or begin >= end:
            return []
        blocks: deque[tuple[MappedFile, np.ndarray]] = deque()
        held = 0
        for block in self._blocks(begin, end):
            blocks.append(block)
            held += len(block[1])
            while held - len(blocks[0][1]) >= runs_max and len(blocks) > 1:
                held -= len(blocks.popleft()[1])
        return self._newest(blocks, runs_max)

    def _newest(self, blocks: Sequence[tuple[MappedFile, np.ndarray]], runs_max: int) -> list[StoredRun]:
        left = runs_max
        runs: list[StoredRun] = []
        for file, rows in reversed(blocks):
            newest = rows[-left:] if left else rows[:0]
            left -= len(newest)
            runs[:0] = self._named(file, newest)
        return runs

    def _blocks(self, begin: int, end: int) -> Iterator[tuple[MappedFile, np.ndarray]]:
        """Yield the rows that the kernel finds, each block with its file."""
        rows = np.zeros(RUNS_A_CALL * kernel.RUN_ROW, np.int64)
        scratch = np.zeros(kernel.SCRATCH, np.int64)
        # A run must not extend across a topic's deletion, because the records before it do not count.
        deletions = {row.physical_offset for row in self._state.deleted.values()}
        stops = sorted(offset for offset in deletions if begin < offset < end)
        at = begin
        for stop in [*stops, end]:
            while at < stop and (file := self._commitlog.queue.find(at)) is not None:
                base = file.start_offset
                status, position, count = kernel.stored_runs(
                    file.array(), at - base, min(stop - base, file.size), base, rows, scratch
                )
                yield file, rows[: count * kernel.RUN_ROW].reshape(-1, kernel.RUN_ROW).copy()
                at = file.end_offset if status == dispatch.BLANK else base + position
                if at >= file.end_offset:
                    file.release()
                if status not in (dispatch.DONE, dispatch.BLANK, dispatch.FULL):
                    log.warning(
                        "%s has %s at byte %d: producers' messages after it are not recognised when they are sent "
                        "again",
                        file.path,
                        dispatch.BAD_NAMES[status],
                        position,
                    )
                    return

    def _named(self, file: MappedFile, rows: np.ndarray) -> list[StoredRun]:
        """Return the rows as runs, without those of topics that no longer exist."""
        view = file.array().data
        runs = []
        texts: dict[bytes, str] = {}
        for at, prefix_at, first, count, asked_at, asked, topic_at, topic, queue, queue_offset in rows.tolist():
            asked_topic = _text(texts, view[asked_at : asked_at + asked])
            if self._topics.get(asked_topic) is None:
                continue
            if file.start_offset + at < self._state.deleted_below(asked_topic):
                continue
            prefix = _text(texts, view[prefix_at : prefix_at + kernel.PREFIX_DIGITS])
            stored_in = asked_topic if topic_at == asked_at else _text(texts, view[topic_at : topic_at + topic])
            runs.append(StoredRun(prefix, asked_topic, first, count, stored_in, queue, queue_offset))
        return runs


def _text(texts: dict[bytes, str], view: memoryview) -> str:
    """Return a prefix or a topic's name, the same object each time, because thousands of runs refer to it."""
    blob = bytes(view)
    text = texts.get(blob)
    if text is None:
        text = texts[blob] = blob.decode("utf-8", "replace")
    return text
