"""How written rows get from Spark's tasks to the broker, and when they count: what option ``delivery`` chooses.

A ``Delivery`` has the three steps of a write: ``write`` in each task, then ``commit`` or ``abort`` on the driver.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout, UnknownCommand
from ..core.prepared import abort_prepared, commit_prepared
from . import brokers
from .errors import InvalidOption, SparkUnavailable, WriteFailed
from .sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, WriteOptions
from .sink_sending import send_all

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of Spark's tasks."""
DROP_SECONDS = 5.0
"""How long is tried to drop what a failed task prepared: it expires anyway."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has done: how many rows it wrote."""

    rows: int


class Delivery(ABC):
    """The steps of a write. Goes to the tasks pickled, so it is values alone."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @abstractmethod
    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Written:
        """In a task: take over its rows. ``partition``: the task's, for errors."""

    @abstractmethod
    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """On the driver, when all tasks are done. ``batch_id``: of a streaming query; Spark may repeat it."""

    @abstractmethod
    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """On the driver, when the write failed; None for tasks that did."""


class AtLeastOnce(Delivery):
    """A task sends its rows and waits until they are acknowledged. One that is run again sends them again."""

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Written:
        """Send all rows; return when the broker has acknowledged them. Raises as ``send_all``."""
        return Written(send_all(self._options, batches, partition))

    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Nothing to do: what a task wrote is stored, and readers see it."""
        logger.debug("%s are stored", _counted(written))

    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Say that nothing can be taken back."""
        logger.warning(
            "%s failed; %s of finished tasks stay stored, and what other tasks had sent too: done again, it stores "
            "them again (delivery %r)",
            _what(batch_id),
            _counted(written),
            AT_LEAST_ONCE,
        )


@dataclass(frozen=True, slots=True)
class Prepared(Written):
    """What a task has prepared: the attempt that it was, for which transaction of which series."""

    attempt: str
    series: str
    number: int


class ExactlyOnce(Delivery):
    """A task prepares its rows, as an attempt of its own; the driver commits the attempts that counted, all of them or
    none, and once for each query and micro-batch.

    ``job``: the series of a batch, which has one transaction; a streaming query is a series itself, and its
    micro-batches are numbered (None).
    """

    def __init__(self, options: WriteOptions, job: str | None) -> None:
        super().__init__(options)
        self._job = job

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> Prepared:
        """Prepare all rows. Raises as ``send_all``; what was prepared is dropped then."""
        series, number = (self._job, 0) if self._job is not None else micro_batch()
        # Spark numbers its tasks anew when a driver starts again, so their numbers may have been there.
        attempt = f"{_attempts(series, number)}{partition}/{uuid.uuid4().hex}"
        try:
            rows = send_all(self._options, batches, partition, attempt)
        except BaseException:
            self._drop(attempt)
            raise
        return Prepared(rows, attempt, series, number)

    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Commit what the tasks prepared, unless the broker knows that this micro-batch is committed.

        Raises ``WriteFailed`` where it could not be; nothing is committed then, or, where the broker did not answer,
        all of it or nothing: the query is to be started again, and finds out.
        """
        prepared = [each for each in written if isinstance(each, Prepared)]
        if not prepared:
            return
        series, number = prepared[0].series, prepared[0].number
        assert batch_id is None or batch_id == number, "Spark tells its tasks the number of their micro-batch"
        attempts = {each.attempt: each.rows for each in prepared if each.rows}
        operation = commit_prepared(series, number, attempts, _attempts(series, number), self._options.flush)
        try:
            committed = brokers.call(self._options.broker, operation, self._options.timeout)
        except (ConnectionFailed, RequestTimeout) as error:
            hint = "its messages may be stored" if batch_id is None else "start the query again, and it finds out"
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
        """Drop what was prepared. What tasks prepared of which nobody has heard expires."""
        for series, number in {(each.series, each.number) for each in written if isinstance(each, Prepared)}:
            self._drop(_attempts(series, number))
        logger.warning("%s failed; nothing of it is stored", _what(batch_id))

    def _drop(self, attempts: str) -> None:
        try:
            brokers.call(self._options.broker, abort_prepared(attempts), min(self._options.timeout, DROP_SECONDS))
        except FlintError as error:
            logger.warning("what %s prepared is not dropped, and will expire: %s", attempts, error)


def micro_batch() -> tuple[str, int]:
    """In a task of a streaming query: the query's id and the number of the micro-batch.

    Both stay the same when the query goes on from its checkpoint. Spark tells its tasks, but promises to nobody that it
    does. Raises ``SparkUnavailable`` where it does not.
    """
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    query = context.getLocalProperty(QUERY_ID)
    number = context.getLocalProperty(BATCH_ID)
    if not query or number is None or not number.isdecimal():
        raise SparkUnavailable(
            f"this Spark does not tell its tasks which query and micro-batch they are of ({QUERY_ID} is {query!r}, "
            f"{BATCH_ID} is {number!r}), and delivery {EXACTLY_ONCE!r} needs to know: use {AT_LEAST_ONCE!r}, or the "
            "PySpark that flintmq[spark] installs"
        )
    return query, int(number)


def delivery_of(options: WriteOptions, *, streaming: bool) -> Delivery:
    """The way of delivery that the options choose. On the driver; made once for each batch, whose name it has then."""
    if options.delivery == EXACTLY_ONCE:
        return ExactlyOnce(options, None if streaming else f"batch-{uuid.uuid4()}")
    return AtLeastOnce(options)


def check_broker(options: WriteOptions) -> None:
    """Raise where the broker cannot do what the options choose: it has to be asked, as an older one would take what
    is to be prepared for messages."""
    if options.delivery != EXACTLY_ONCE:
        return
    try:
        brokers.call(options.broker, abort_prepared(f"nobody's {uuid.uuid4()}"), options.timeout)
    except UnknownCommand:
        raise InvalidOption(
            f"option 'delivery': the broker at {options.broker.address} is older than this client and has no "
            f"transactions of many messages: update it, or leave the option out for {AT_LEAST_ONCE!r}"
        ) from None


def _attempts(series: str, number: int) -> str:
    """What the names of all attempts at a transaction begin with."""
    return f"{series}/{number}/"


def _what(batch_id: int | None) -> str:
    return "the write" if batch_id is None else f"micro-batch {batch_id}"


def _counted(written: Sequence[Written | None]) -> str:
    return f"{sum(each.rows for each in written if each is not None)} messages"
