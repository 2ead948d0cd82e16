"""The deliveries that option ``delivery`` chooses: how tasks send rows to the broker, and when the rows count.

A ``SinkDelivery`` has the three steps of a write: ``write`` in each task, then ``commit`` or ``abort`` on the driver.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from ..arrow.rows import Place, Send, checked_rows, sends
from ..core.produce.producer_core import abort_prepared, commit_prepared
from ..core.produce.receipts import DeliveryFailed
from ..sync.producer import Producer
from . import brokers
from .errors import SparkUnavailable, WriteFailed
from .sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, WriteOptions

# ---- Sends the rows of a task, with producers that a worker process keeps.

_SHOWN_ROWS = 3


def send_all(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], partition: int, prepare: str | None = None
) -> int:
    """Send all rows of a task; return their number after the broker has acknowledged them. ``prepare``: the attempt
    that they are prepared for.

    A thread sends one batch while the next is fetched and checked. Raises ``InvalidMessage`` for a row that cannot be
    sent, before it sends any row of that batch, and ``WriteFailed`` if the broker did not acknowledge some rows.
    """
    producer = producer_of(options)
    rows_before = 0
    with ThreadPoolExecutor(1, "flintmq-sink") as sender:
        sending: Future[None] | None = None
        for batch in batches:
            if not len(batch):
                continue
            place = Place(partition, rows_before)
            calls = sends(checked_rows(batch, options.topic, place))
            if sending is not None:
                sending.result()
            sending = sender.submit(_send, producer, calls, place, prepare)
            rows_before += len(batch)
        if sending is not None:
            sending.result()
    return rows_before


def _send(producer: Producer, calls: Sequence[Send], place: Place, prepare: str | None) -> None:
    for call in calls:
        try:
            call.run(producer, prepare)
        except DeliveryFailed as error:
            raise _failed(error, call, place, prepare) from None
        except FlintError as error:
            raise WriteFailed(f"{place.row(int(call.rows[0]))} and those after it: {_described(error)}") from error


def _failed(failure: DeliveryFailed, call: Send, place: Place, prepare: str | None) -> WriteFailed:
    rows_by_reason: dict[str, list[int]] = {}
    for index, error in sorted(failure.errors.items()):
        rows_by_reason.setdefault(_described(error), []).append(int(call.rows[index]) + place.rows_before)
    shown = "; ".join(f"{_rows(rows)}: {reason}" for reason, rows in list(rows_by_reason.items())[:_SHOWN_ROWS])
    more = f"; and {len(rows_by_reason) - _SHOWN_ROWS} more reasons" if len(rows_by_reason) > _SHOWN_ROWS else ""
    stays = "Rows sent before stay stored" if prepare is None else "Nothing of the partition is committed"
    return WriteFailed(
        f"partition {place.partition}: {len(failure.errors)} rows were not acknowledged: {shown}{more}. {stays}"
    )


def _rows(rows: Sequence[int]) -> str:
    names = ", ".join(map(str, rows[:_SHOWN_ROWS]))
    more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    return f"row {names}" if len(rows) == 1 else f"rows {names}{more}"


def _described(error: FlintError) -> str:
    return f"{type(error).__name__}: {error}"


# ---- producers ----

_producers: dict[tuple[object, ...], Producer] = {}
_lock = threading.Lock()


def producer_of(options: WriteOptions) -> Producer:
    """Return this process's producer for a broker. Spark reuses its workers for many tasks and topics."""
    key = os.getpid(), options.broker, options.timeout, options.compress_over, options.flush
    with _lock:
        producer = _producers.get(key)
        if producer is None:
            # A forked process inherits this table, but the connections in it belong to the parent.
            for other in [other for other in _producers if other[0] != key[0]]:
                del _producers[other]
            producer = _producers[key] = Producer(
                options.broker.address,
                delivery_timeout=options.timeout,
                compress_over=options.compress_over,
                flush=options.flush,
                **options.broker.access.options,
            )
        return producer


logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of Spark's tasks."""
DROP_SECONDS = 5.0
"""Time limit for dropping a failed task's prepared messages; they expire anyway."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's result: the number of rows that it wrote."""

    rows: int


class SinkDelivery(ABC):
    """The steps of a write. Spark pickles it for the tasks, so it contains only plain values."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @abstractmethod
    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Written:
        """Send the rows of a task, in the task's process. ``partition``: the task's number, for errors."""

    @abstractmethod
    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Finish the write, on the driver, after all tasks have finished. ``batch_id``: number of a streaming query's
        micro-batch; Spark may repeat the call for it."""

    @abstractmethod
    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Undo what can be undone, on the driver, after the write failed. ``written`` has None for failed tasks."""


class AtLeastOnce(SinkDelivery):
    """Sends a task's rows and waits until they are acknowledged. A task that runs again sends them again."""

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Written:
        """Send all rows; return when the broker has acknowledged them. Raises the errors of ``send_all``."""
        return Written(send_all(self._options, batches, partition))

    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Log the count: the rows are already stored and visible to readers."""
        logger.debug("%s are stored", _counted(written))

    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Warn that stored rows cannot be taken back."""
        logger.warning(
            "%s failed; %s of finished tasks stay stored, and so does what other tasks had sent: a retry stores "
            "them again (delivery %r)",
            _what(batch_id),
            _counted(written),
            AT_LEAST_ONCE,
        )


@dataclass(frozen=True, slots=True)
class Prepared(Written):
    """A task's result: its attempt's name, and the transaction's series and number."""

    attempt: str
    series: str
    number: int


class ExactlyOnce(SinkDelivery):
    """Prepares each task's rows as an attempt of its own; the driver commits the attempts that counted, all or none of
    them, and once for each query and micro-batch.

    ``job``: the series of a batch, which has one transaction. A streaming query is a series of its own, and its
    micro-batches are numbered (None).
    """

    def __init__(self, options: WriteOptions, job: str | None) -> None:
        super().__init__(options)
        self._job = job

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Prepared:
        """Prepare all rows. Raises the errors of ``send_all`` after dropping the prepared rows."""
        series, number = (self._job, 0) if self._job is not None else micro_batch()
        # A restarted driver numbers its tasks from 0 again, so their numbers alone could repeat an attempt's name.
        attempt = f"{_attempts(series, number)}{partition}/{uuid.uuid4().hex}"
        try:
            rows = send_all(self._options, batches, partition, attempt)
        except BaseException:
            self._drop(attempt)
            raise
        return Prepared(rows, attempt, series, number)

    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Commit the prepared rows of all tasks, unless the broker knows that this micro-batch is committed.

        Raises ``WriteFailed`` if the commit failed; then nothing is committed. If the broker did not respond, all or
        nothing is committed: the query must be started again, and finds out which.
        """
        prepared = [each for each in written if isinstance(each, Prepared)]
        if not prepared:
            return
        series, number = prepared[0].series, prepared[0].number
        assert batch_id is None or batch_id == number, "Spark tells its tasks the number of their micro-batch"
        attempts = {each.attempt: each.rows for each in prepared if each.rows}
        operation = commit_prepared(series, number, attempts, drop=_attempts(series, number), flush=self._options.flush)
        try:
            committed = brokers.call(self._options.broker, operation, self._options.timeout)
        except (ConnectionFailed, RequestTimeout) as error:
            hint = "its messages may be stored" if batch_id is None else "start the query again; it finds out"
            raise WriteFailed(
                f"the broker did not say whether {_what(batch_id)} is committed ({_counted(written)}); {hint}: "
                f"{type(error).__name__}: {error}"
            ) from error
        except FlintError as error:
            raise WriteFailed(
                f"{_what(batch_id)} was not committed ({_counted(written)}): {type(error).__name__}: {error}"
            ) from error
        if committed.already:
            logger.info("%s had been committed before; nothing was stored again", _what(batch_id))

    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Drop the prepared rows; those of tasks that did not report their attempt expire."""
        for series, number in {(each.series, each.number) for each in written if isinstance(each, Prepared)}:
            self._drop(_attempts(series, number))
        logger.warning("%s failed; nothing of it is stored", _what(batch_id))

    def _drop(self, attempts: str) -> None:
        try:
            brokers.call(self._options.broker, abort_prepared(attempts), min(self._options.timeout, DROP_SECONDS))
        except FlintError as error:
            logger.warning("the messages prepared by %s are not dropped and will expire: %s", attempts, error)


def micro_batch() -> tuple[str, int]:
    """Return, in a task of a streaming query, the query's id and the number of the micro-batch.

    Both stay the same when the query continues from its checkpoint. Spark passes them to its tasks, but does not
    document it. Raises ``SparkUnavailable`` if it does not pass them.
    """
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    query = context.getLocalProperty(QUERY_ID)
    number = context.getLocalProperty(BATCH_ID)
    if not query or number is None or not number.isdecimal():
        raise SparkUnavailable(
            f"this Spark does not tell its tasks which query and micro-batch they belong to ({QUERY_ID} is {query!r}, "
            f"{BATCH_ID} is {number!r}), and delivery {EXACTLY_ONCE!r} requires it: use {AT_LEAST_ONCE!r}, or the "
            "PySpark that flintmq[spark] installs"
        )
    return query, int(number)


def delivery_of(options: WriteOptions, *, streaming: bool) -> SinkDelivery:
    """Return the delivery that the options choose. Called on the driver, once for each batch, and names the batch."""
    if options.delivery == EXACTLY_ONCE:
        return ExactlyOnce(options, None if streaming else f"batch-{uuid.uuid4()}")
    return AtLeastOnce(options)


def _attempts(series: str, number: int) -> str:
    """Return the common prefix of the names of all attempts at a transaction."""
    return f"{series}/{number}/"


def _what(batch_id: int | None) -> str:
    return "the write" if batch_id is None else f"micro-batch {batch_id}"


def _counted(written: Sequence[Written | None]) -> str:
    return f"{sum(each.rows for each in written if each is not None)} messages"
