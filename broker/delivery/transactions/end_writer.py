"""Writing the ends of transactions: their messages, the op records that note them, and how far both topics are done.

What is ended in one turn of the loop shares one append: first the messages, behind them the op record. A broker that is
killed in between finds the messages when it starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ....protocol.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ....protocol.errors import BrokerError, BrokerFailure, MessageIllegal
from ....protocol.record import Record
from ..topic_changes import TopicChanges
from ..writer import RecordWriter
from .records import TOPICS, check_destination, committed, ended_notes, ended_offsets, parked
from .table import COMMIT, PARKED, Ended, Ending, Table

log = logging.getLogger(__name__)

ENDED_A_STEP_MAX = 128
"""As many are ended before others get their turn."""
BODIES_A_STEP_MAX = 4 * 1024 * 1024
SAVE_AFTER_S = 1.0
RETRY_AFTER_S = 5.0


class EndWriter:
    """Writes ends, and enters them in ``table``. ``over`` is called with the outcome of each."""

    def __init__(
        self,
        writer: RecordWriter,
        topic_changes: TopicChanges,
        table: Table,
        over: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._store = writer.store
        self._loop = writer.loop
        self._topic_changes = topic_changes
        self._table = table
        self._over = over
        self._now_ms = now_ms
        self._batch: list[Ending] = []
        self._notes: list[int] = []
        """Queue offsets of half messages that are done without an end: others have taken their place."""
        self._due = False
        self._unsaved: tuple[int, int, int] | None = None
        """The log's end, and next offsets of both topics that may be saved once the log is on disk below it."""
        self._save_due = False
        self.stopped = False
        """Nothing may be written any more."""

    def add(self, ending: Ending) -> None:
        """Write this end at the end of this turn of the loop; its record is there where it needs one."""
        self._batch.append(ending)
        self._soon()

    def note(self, half_queue_offset: int) -> None:
        """Note that a half message is done."""
        self._notes.append(half_queue_offset)
        self._soon()

    def notes_for(self, half_queue_offsets: Sequence[int]) -> list[Record]:
        """Op records that say that half messages are done; to be entered with ``noted`` once they are appended."""
        return ended_notes(half_queue_offsets, self._now_ms(), self._store.store_host)

    def noted(self, notes: Sequence[Record]) -> None:
        """These op records were appended."""
        for note in notes:
            self._table.noted(note.queue_offset, max(ended_offsets(note)))

    # ---- a step

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._writer.with_topics(TOPICS, self._topics_are_there)

    def _topics_are_there(self, error: BrokerError | None) -> None:
        if error is None:
            self._loop.call_soon(self._write)
            return
        batch, self._batch = self._batch, []
        for ending in batch:
            ending.failed(error)
        self._again_later()

    def _again_later(self) -> None:
        """Notes could not be written: they are when it is possible again."""
        self._due = bool(self._notes)
        if self._due:
            self._loop.call_later(RETRY_AFTER_S, self._topics_are_there, None)

    def _write(self) -> None:
        if self.stopped:
            return
        self._due = False
        step, size = [], 0
        for ending in self._batch[:ENDED_A_STEP_MAX]:
            step.append(ending)
            size += len(ending.record.body) if ending.record is not None else 0
            if size > BODIES_A_STEP_MAX:
                break
        del self._batch[: len(step)]
        ready = [ending for ending in step if self._is_ready(ending)]
        self._append(ready)
        if self._batch:
            self._soon()

    def _is_ready(self, ending: Ending) -> bool:
        """Whether the message of a commit can go to its topic now."""
        if ending.outcome != COMMIT:
            return True
        half = ending.transaction.half
        if half.topic in self._topic_changes.pending:
            self._topic_changes.when_done(half.topic, lambda _: self.add(ending))
            return False
        try:
            check_destination(half, self._store.topics.get(half.topic))
        except BrokerError as error:
            ending.failed(error)
            return False
        return True

    def _append(self, endings: list[Ending]) -> None:
        replaced, self._notes = self._notes, []
        messages = [message for ending in endings if (message := _message_of(ending)) is not None]
        notes = self.notes_for([*replaced, *(ending.transaction.half.queue_offset for ending in endings)])
        if not notes:
            return
        try:
            end_offset = self._writer.append([*messages, *notes])
        except MessageIllegal as error:
            self._notes = replaced
            if len(endings) == 1:
                endings[0].failed(error)
            for ending in endings if len(endings) > 1 else ():
                self._append([ending])  # one of them cannot be stored: the others can
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must learn it
            self._notes = replaced
            self._not_written(endings, error)
            return
        self.noted(notes)
        ended = [(ending, self._end(ending, end_offset)) for ending in endings]
        self._writer.when_acknowledged(end_offset, lambda error: _tell(ended, error))
        self.save()

    def _not_written(self, endings: list[Ending], error: Exception) -> None:
        if not isinstance(error, BrokerError):
            log.error("the end of %d transactions could not be written", len(endings), exc_info=error)
            error = BrokerFailure(f"the transaction's end could not be written: {type(error).__name__}: {error}")
        for ending in endings:
            ending.failed(error)
        self._again_later()

    def _end(self, ending: Ending, end_offset: int) -> Ended:
        self._over(ending.outcome)
        return self._table.end(ending.transaction, ending.outcome, end_offset)

    # ---- progress

    def save(self) -> None:
        """Let the consumer offsets of both topics follow what is done and on disk."""
        if self._advance() and not self._save_due and not self.stopped:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self._save_later)

    def save_all(self) -> None:
        """The broker stops, and all of the log is on disk: what is done may be saved. From any thread."""
        self._advance()
        self._advance()

    def _advance(self) -> bool:
        """Commit what is on disk by now; whether there is more."""
        if self._unsaved is not None and self._store.flushed_offset >= self._unsaved[0]:
            _, half_offset, note_offset = self._unsaved
            offsets = self._store.consumer_offsets
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, note_offset)
            self._unsaved = None
        done = self._table.done()
        if self._unsaved is None and done != self._saved():
            self._unsaved = (self._store.write_offset, *done)
        return self._unsaved is not None

    def _save_later(self) -> None:
        self._save_due = False
        self.save()

    def _saved(self) -> tuple[int, int]:
        committed_offsets = self._store.consumer_offsets.committed
        half_offset = committed_offsets(TRANSACTION_GROUP, HALF_TOPIC).get(0, 0)
        return half_offset, committed_offsets(TRANSACTION_GROUP, OP_HALF_TOPIC).get(0, 0)


def _message_of(ending: Ending) -> Record | None:
    """The message that comes of the transaction."""
    if ending.outcome not in (COMMIT, PARKED):
        return None
    assert ending.record is not None, "read before"
    return committed(ending.transaction.half, ending.record) if ending.outcome == COMMIT else parked(ending.record)


def _tell(ended: Sequence[tuple[Ending, Ended]], error: BrokerError | None) -> None:
    for ending, result in ended:
        if error is None:
            ending.succeeded(result)
        else:
            ending.failed(error)
