"""Writer of the ends of transactions: their messages, their op records, and the progress of both topics.

All ends of one turn of the loop share one append: first the messages, then the op record. If the broker is killed in
between, its next start finds the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....protocol.errors import BrokerError, BrokerFailure, MessageIllegal
from ....protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from .records import TOPICS, check_destination, committed, ended_notes, ended_offsets, parked
from .table import COMMIT, PARKED

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..topic_changes import TopicChanges
    from ..writer import RecordWriter
    from .table import Ended, Ending, OpenTransactions

log = logging.getLogger(__name__)

ENDED_A_STEP_MAX = 128
"""Maximum number of transactions that one turn of the loop ends."""
BODIES_A_STEP_MAX = 4 * 1024 * 1024
"""Bytes of bodies after which a step ends."""
SAVE_AFTER_S = 1.0
"""Delay of saving the progress, which covers all ends in the meantime."""
RETRY_AFTER_S = 5.0
"""Pause before notes that could not be written are tried again."""


class EndWriter:
    """Writer of ends, which it also enters in ``table``. ``count_end`` is called with the outcome of each."""

    def __init__(
        self,
        writer: RecordWriter,
        topic_changes: TopicChanges,
        table: OpenTransactions,
        count_end: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._store = writer.store
        self._loop = writer.loop
        self._topic_changes = topic_changes
        self._table = table
        self._count_end = count_end
        self._now_ms = now_ms
        self._batch: list[Ending] = []
        self._notes: list[int] = []
        """Queue offsets of half messages that are finished without an end: other half messages replaced them."""
        self._due = False
        self._unsaved: tuple[int, int, int] | None = None
        """(end of the log, next offsets of both topics): offsets to save when the log is on disk up to that end."""
        self._save_due = False
        self.stopped = False
        """True when nothing may be written any longer."""

    def add_end(self, ending: Ending) -> None:
        """Write this end at the end of this turn of the loop. It must have its record, if its outcome needs one."""
        self._batch.append(ending)
        self._soon()

    def note_finished(self, half_queue_offset: int) -> None:
        """Write a note that a half message is finished."""
        self._notes.append(half_queue_offset)
        self._soon()

    def notes_for(self, half_queue_offsets: Sequence[int]) -> list[Record]:
        """Return op records that mark half messages as finished; after appending them, call ``enter_notes``."""
        return ended_notes(half_queue_offsets, self._now_ms(), self._store.commitlog.store_host)

    def enter_notes(self, notes: Sequence[Record]) -> None:
        """Enter appended op records in the table."""
        for note in notes:
            self._table.add_note(note.queue_offset, max(ended_offsets(note)))

    # ---- a step

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._writer.with_topics(TOPICS, self._topics_are_there)

    def _topics_are_there(self, error: BrokerError | None) -> None:
        if error is None:
            # Not at once: all other ends of this turn of the loop join the same append.
            self._loop.call_soon(self._write_step)
            return
        batch, self._batch = self._batch, []
        for ending in batch:
            ending.report_failure(error)
        # No caller waits for the notes on replaced half messages, so these are kept and written later.
        self._again_later()

    def _again_later(self) -> None:
        """Schedule another attempt to write the notes after a failure."""
        self._due = bool(self._notes)
        if self._due:
            self._loop.call_later(RETRY_AFTER_S, self._topics_are_there, None)

    def _write_step(self) -> None:
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
        self._append_ends(ready)
        if self._batch:
            self._soon()

    def _is_ready(self, ending: Ending) -> bool:
        """Return whether the message of a commit can go to its topic now."""
        if ending.outcome != COMMIT:
            return True
        half = ending.transaction.half
        # The change may be the topic's deletion, which may still fail: the commit waits for the outcome.
        if half.topic in self._topic_changes.pending:
            self._topic_changes.when_done(half.topic, lambda _: self.add_end(ending))
            return False
        try:
            check_destination(half, self._store)
        except BrokerError as error:
            ending.report_failure(error)
            return False
        return True

    def _append_ends(self, endings: list[Ending]) -> None:
        replaced, self._notes = self._notes, []
        messages = [message for ending in endings if (message := _message_of(ending)) is not None]
        notes = self.notes_for([*replaced, *(ending.transaction.half.queue_offset for ending in endings)])
        if not notes:
            return
        try:
            end_offset = self._writer.append_records([*messages, *notes])
        except MessageIllegal as error:
            self._notes = replaced
            if len(endings) == 1:
                endings[0].report_failure(error)
            for ending in endings if len(endings) > 1 else ():
                self._append_ends([ending])  # one of them cannot be stored: each alone, so that only that one fails
            return
        except Exception as error:  # noqa: BLE001 - the waiting producers must learn of any error
            self._notes = replaced
            self._not_written(endings, error)
            return
        self.enter_notes(notes)
        # In the table before the flush: a second request for the same transaction must find it ended, not open.
        ended = [(ending, self._enter_end(ending, end_offset)) for ending in endings]
        self._writer.when_acknowledged(end_offset, lambda error: self._tell(ended, error))
        self.schedule_save()

    def _tell(self, ended: Sequence[tuple[Ending, Ended]], error: BrokerError | None) -> None:
        for ending, result in ended:
            if error is None:
                self._table.confirm_end(result.transaction_id)
                ending.report_success(result)
            else:
                ending.report_failure(error)

    def _not_written(self, endings: list[Ending], error: Exception) -> None:
        if not isinstance(error, BrokerError):
            log.error("could not write the end of %d transactions", len(endings), exc_info=error)
            error = BrokerFailure(f"could not write the end of the transaction: {type(error).__name__}: {error}")
        for ending in endings:
            ending.report_failure(error)
        self._again_later()

    def _enter_end(self, ending: Ending, end_offset: int) -> Ended:
        self._count_end(ending.outcome)
        return self._table.end_transaction(ending.transaction, ending.outcome, end_offset)

    # ---- progress

    def schedule_save(self) -> None:
        """Advance the consumer offsets of both topics past everything that is finished and on disk."""
        if self._advance() and not self._save_due and not self.stopped:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self._save_later)

    def save_all(self) -> None:
        """Save all progress when the broker stops and all of the log is on disk. Any thread."""
        # The first call commits what was waiting for the disk, the second one what was finished since.
        self._advance()
        self._advance()

    def _advance(self) -> bool:
        """Commit the progress that is on disk; return whether more is waiting for the disk."""
        if self._unsaved is not None and self._store.acknowledged_offset >= self._unsaved[0]:
            _, half_offset, note_offset = self._unsaved
            offsets = self._store.consumer_offsets
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, note_offset)
            self._unsaved = None
        done = self._table.finished_offsets()
        # Not saved before the log is on disk up to here: after a power cut the ends below it could be lost, and a start
        # would not read their half messages any more.
        if self._unsaved is None and done != self._saved():
            self._unsaved = (self._store.write_offset, *done)
        return self._unsaved is not None

    def _save_later(self) -> None:
        self._save_due = False
        self.schedule_save()

    def _saved(self) -> tuple[int, int]:
        committed_offsets = self._store.consumer_offsets.committed
        half_offset = committed_offsets(TRANSACTION_GROUP, HALF_TOPIC).get(0, 0)
        return half_offset, committed_offsets(TRANSACTION_GROUP, OP_HALF_TOPIC).get(0, 0)


def _message_of(ending: Ending) -> Record | None:
    """Return the message that the end of the transaction appends; None for a rollback."""
    if ending.outcome not in (COMMIT, PARKED):
        return None
    assert ending.record is not None, "read before"
    return committed(ending.transaction.half, ending.record) if ending.outcome == COMMIT else parked(ending.record)
