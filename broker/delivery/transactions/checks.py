"""TransactionalMessageCheckService: asks producers about transactions that they did not end in time.

The first check is ``transactions.timeout_ms`` after the half message was stored, the next ones follow every
``transactions.check_interval_ms``. As in RocketMQ, each check appends the half message again with the number of checks,
even if no producer is alive to be asked; after ``transactions.check_times_max`` checks the message is parked, unless a
producer answers that it has the transaction open. So the
half messages of open transactions are always near the end of the log, and a forgotten transaction delays retention
only for a while.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ....protocol.commands import CHECK_TRANSACTION_STATE, CheckTransactionStateAnswer, CheckTransactionStateRequest
from ....protocol.errors import SUCCESS, FlintError, InvalidParameter, TransactionEnded
from ....protocol.fields import decode_fields
from .records import Half, checked_again
from .service import COMMIT, PARKED, ROLLBACK, OpenTransaction

if TYPE_CHECKING:
    from ....protocol.errors import BrokerError
    from ....protocol.frames import Frame
    from ....protocol.storage.record import Record
    from ...background.loop_work import CallAt, LoopTimer
    from ..groups.clients import ProducerGroups
    from .service import TransactionalMessageService

log = logging.getLogger(__name__)

CHECKED_A_STEP_MAX = 32
"""Maximum number of half messages that one step appends again."""
BODIES_A_STEP_MAX = 1024 * 1024
"""Bytes of bodies after which a step ends."""
READS_AGAIN_S = 0.02
"""Interval at which the broker looks whether producers that did not read take more checks."""
GROUPS_A_STEP_MAX = 32
"""Maximum number of producer groups that one such look covers."""

Due = tuple[float, OpenTransaction]


class TransactionalMessageCheckService:
    """The checks of one broker. Runs on the event loop. ``clock``: monotonic, in seconds; ``call_at``: calls a function
    at a time of that clock."""

    def __init__(
        self,
        transactions: TransactionalMessageService,
        producers: ProducerGroups,
        *,
        timeout_ms: int,
        check_interval_ms: int,
        check_times_max: int,
        clock: Callable[[], float],
        call_at: CallAt,
    ) -> None:
        self.asked = 0
        """Number of requests to producers since the start."""
        self.unasked = 0
        """Number of checks since the start without a live producer of the group."""
        self._transactions = transactions
        self._producers = producers
        self._timeout_s = timeout_ms / 1000
        self._interval_s = check_interval_ms / 1000
        self._times_max = check_times_max
        self._clock = clock
        self._call_at = call_at
        # Both are in the order of time, because all entries of one wait equally long.
        self._first: deque[Due] = deque()
        self._again: deque[Due] = deque()
        self._timer: LoopTimer | None = None
        self._timer_at = 0.0
        self._read: list[tuple[OpenTransaction, Half, Record]] = []
        """Half messages that were read, to be appended again at the end of this turn of the loop."""
        # Without the messages, which are read again. Entries leave with the transaction's next check at the latest.
        self._to_ask: dict[tuple[str, str], deque[tuple[float, OpenTransaction, Half]]] = {}
        """By producer group and topic: checks that no producer takes yet, each with the time until which it waits."""
        self._ask_timer: LoopTimer | None = None
        self._stopped = False

    def opened(self, transaction: OpenTransaction) -> None:
        """Schedule the first check of a transaction that has opened, or that was open at the start."""
        self._first.append((self._clock() + self._timeout_s, transaction))
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        for timer in (self._timer, self._ask_timer):
            if timer is not None:
                timer.cancel()

    def _arm(self) -> None:
        due_times = [checks[0][0] for checks in (self._first, self._again) if checks]
        if not due_times or self._stopped:
            return
        due = min(due_times)
        # A first check may be due long before the repetitions for which the timer was set.
        if self._timer is not None and due < self._timer_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer, self._timer_at = self._call_at(due, self._step), due

    def _step(self) -> None:
        self._timer = None
        if self._stopped:
            return
        now, count, size = self._clock(), 0, 0
        for checks in (self._first, self._again):
            # Transactions that ended leave the queue before their time, so they do not take memory until then.
            while checks and (checks[0][0] <= now or self._is_over(checks[0][1])):
                if count == CHECKED_A_STEP_MAX or size > BODIES_A_STEP_MAX:
                    # The others are due already, so ``_arm`` schedules the next step for the next turn of the loop.
                    break
                transaction = checks.popleft()[1]
                if self._is_over(transaction):
                    continue
                # Scheduled before it is known whether the check succeeds: a failed one is repeated after the interval.
                self._again.append((now + self._interval_s, transaction))
                if transaction.ending is None:
                    count += 1
                    size += self._check(transaction)
        self._arm()

    def _is_over(self, transaction: OpenTransaction) -> bool:
        return not self._transactions.table.is_open(transaction)

    # ---- one round

    def _check(self, transaction: OpenTransaction) -> int:
        """Park the transaction after its last check, or else have its half message appended again. Return the size of
        its body; 0 if it has to be read from disk first."""
        half = transaction.half
        if half.check_times >= self._times_max and transaction.runs_in is None:
            self._park(transaction)
            return 0

        def read(record: Record) -> None:
            if not self._read:
                self._transactions.loop.call_soon(self._append_again)
            self._read.append((transaction, half, record))

        return self._transactions.with_half(half, read, _log_error)

    def _park(self, transaction: OpenTransaction) -> None:
        half = transaction.half

        def parked(error: BrokerError | None) -> None:
            if error is None:
                log.warning(
                    "parked transaction %s of producer group %s, topic %s: %d checks got no decision",
                    half.transaction_id,
                    half.group,
                    half.topic,
                    half.check_times,
                )
            else:
                log.error("could not park transaction %s: %s", half.transaction_id, error.message)

        self._transactions.finish_transaction(transaction, PARKED, parked)

    def _append_again(self) -> None:
        read, self._read = self._read, []
        # A transaction may have been ended or replaced during the read.
        checked = [
            (transaction, record)
            for transaction, half, record in read
            if transaction.half is half and transaction.ending is None and not self._is_over(transaction)
        ]
        if not checked or self._stopped:
            return
        # As long as the producer has it open, only this check counts.
        records = [
            checked_again(record, 1 if transaction.runs_in is not None else transaction.half.check_times + 1)
            for transaction, record in checked
        ]
        # If the broker is killed between the copies and the notes on the originals, the next start finds both, and the
        # newer one replaces the older (``OpenTransactions.add_half``).
        originals = [transaction.half.queue_offset for transaction, _ in checked]
        try:
            self._transactions.append_finished(records, originals)
        except FlintError as error:
            # Nothing was written, and each of them is in ``_again`` already.
            log.warning("postponed the check of %d transactions: %s", len(checked), error)
            return
        # The append has set the offsets of the records.
        for (transaction, _), record in zip(checked, records, strict=True):
            half = Half.of(record)
            assert half is not None, "the record is a copy of a half message"
            self._transactions.table.move_half(transaction, half)
            self._ask(transaction, half, record)
        self._transactions.schedule_save()

    # ---- asking

    def _ask(self, transaction: OpenTransaction, half: Half, record: Record) -> None:
        """Ask a producer of the group, the one that had the transaction open if it lives; and another one if its
        connection is lost before it responds.

        If none of them reads what it is sent, the check waits until one does.
        """
        producer = self._producers.one_of(half.group, half.topic, transaction.runs_in)
        transaction.runs_in = None
        if producer is None:
            self.unasked += 1
            log.info(
                "no live producer of group %s to ask about transaction %s (check %d of %d)",
                half.group,
                half.transaction_id,
                half.check_times,
                self._times_max,
            )
            return
        if not producer.may_be_sent():
            self._ask_later(transaction, half)
            return
        self.asked += 1
        request = CheckTransactionStateRequest(
            group=half.group, transaction_id=half.transaction_id, topic=half.topic, check_times=half.check_times
        )

        def answered(frame: Frame | None) -> None:
            if self._is_over(transaction):
                return
            if frame is not None:
                if self._answered(transaction, half, frame):
                    transaction.runs_in = producer
            elif producer.lost:
                self._ask_later(transaction, half)
            # Otherwise too many requests to this producer are pending; the next check asks again.

        # As its producer sent it: with its own topic and queue.
        message = replace(record, topic=half.topic.encode(), queue_id=half.queue)
        producer.ask(CHECK_TRANSACTION_STATE, request, message.encode(), answered)

    def _ask_later(self, transaction: OpenTransaction, half: Half) -> None:
        waiting = self._to_ask.setdefault((half.group, half.topic), deque())
        waiting.append((self._clock() + self._interval_s, transaction, half))
        self._arm_asking()

    def _arm_asking(self) -> None:
        if self._ask_timer is None and self._to_ask and not self._stopped:
            self._ask_timer = self._call_at(self._clock() + READS_AGAIN_S, self._ask_those_that_read)

    def _ask_those_that_read(self) -> None:
        """Send the checks that wait to the producers that take more now."""
        self._ask_timer = None
        now, count, size = self._clock(), 0, 0
        for key in list(islice(self._to_ask, GROUPS_A_STEP_MAX)):
            waiting = self._to_ask[key]
            while waiting and count < CHECKED_A_STEP_MAX and size < BODIES_A_STEP_MAX:
                until, transaction, half = waiting[0]
                wanted = until > now and transaction.half is half and not self._is_over(transaction)
                if wanted and (producer := self._producers.one_of(*key)) is not None and not producer.may_be_sent():
                    break
                waiting.popleft()
                if wanted:
                    count += 1
                    size += self._read_and_ask(transaction, half)
            del self._to_ask[key]
            if waiting:
                self._to_ask[key] = waiting  # behind those of other groups
        self._arm_asking()

    def _read_and_ask(self, transaction: OpenTransaction, half: Half) -> int:
        """Ask about a transaction whose half message has to be read again; return the size of its body, 0 if it has to
        be read from disk."""

        def read(record: Record) -> None:
            if transaction.half is half and not self._is_over(transaction):
                self._ask(transaction, half, record)

        return self._transactions.with_half(half, read, _log_error)

    def _answered(self, transaction: OpenTransaction, half: Half, frame: Frame) -> bool:
        """End the transaction as the producer decided; return whether the producer has it open."""
        try:
            if frame.code != SUCCESS:
                raise InvalidParameter(str(frame.fields.get("message", f"result {frame.code}"))[:500])
            answer = decode_fields(CheckTransactionStateAnswer, frame.fields)
            outcome = answer.outcome
            if outcome not in (COMMIT, ROLLBACK, "unknown"):
                raise InvalidParameter(f"outcome must be commit, rollback or unknown, got {outcome!r}")
        except InvalidParameter as error:
            log.warning(
                "a producer of group %s failed to answer a check of transaction %s: %s",
                half.group,
                half.transaction_id,
                error.message,
            )
            return False
        if outcome == "unknown":
            return answer.running

        def finished(error: BrokerError | None) -> None:
            if error is not None and not isinstance(error, TransactionEnded):  # the producer may have ended it since
                log.warning("could not end transaction %s after a check: %s", half.transaction_id, error.message)

        self._transactions.finish_transaction(transaction, outcome, finished)
        return False


def _log_error(error: BrokerError) -> None:
    log.error("%s", error.message)
