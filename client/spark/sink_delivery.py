"""How written rows get from Spark's tasks to the broker, and when they count: what option ``delivery`` chooses.

A ``Delivery`` has the three steps of a write: ``write`` in each task, then ``commit`` or ``abort`` on the driver. One
that stores exactly once is another of these: it prepares in ``write`` and makes one transaction of what all tasks
prepared in ``commit``, once for each query and micro-batch. Nothing else in the sink would have to change.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ...protocol.errors import FlintError
from ..errors import DeliveryFailed
from ..sync.producer import Producer
from .errors import WriteFailed
from .sink_batches import Send, sends
from .sink_options import AT_LEAST_ONCE, WriteOptions
from .sink_rows import Place, checked_rows

logger = logging.getLogger(__name__)

_SHOWN_ROWS = 3


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
        """Send all rows; return when the broker has acknowledged them.

        A thread sends one batch while the next is fetched and checked. Raises ``InvalidMessage`` for a row that cannot
        be sent, before any row of its batch is, and ``WriteFailed`` where the broker did not acknowledge some.
        """
        producer = producer_of(self._options)
        rows_before = 0
        with ThreadPoolExecutor(1, "flintmq-sink") as sender:
            sending: Future[None] | None = None
            for batch in batches:
                if not len(batch):
                    continue
                place = Place(partition, rows_before)
                calls = sends(checked_rows(batch, self._options.topic, place))
                if sending is not None:
                    sending.result()
                sending = sender.submit(_send, producer, calls, place)
                rows_before += len(batch)
            if sending is not None:
                sending.result()
        return Written(rows_before)

    def commit(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Nothing to do: what a task wrote is stored, and readers see it."""
        logger.debug("%s are stored", _counted(written))

    def abort(self, written: Sequence[Written | None], batch_id: int | None) -> None:
        """Say that nothing can be taken back."""
        what = "the write" if batch_id is None else f"micro-batch {batch_id}"
        logger.warning(
            "%s failed; %s of finished tasks stay stored, and what other tasks had sent too: done again, it stores "
            "them again (delivery %r)",
            what,
            _counted(written),
            AT_LEAST_ONCE,
        )


_DELIVERIES: dict[str, type[Delivery]] = {AT_LEAST_ONCE: AtLeastOnce}


def delivery_of(options: WriteOptions) -> Delivery:
    """The way of delivery that the options choose."""
    return _DELIVERIES[options.delivery](options)


def _counted(written: Sequence[Written | None]) -> str:
    return f"{sum(each.rows for each in written if each is not None)} messages"


# ---- sending ----


def _send(producer: Producer, calls: Sequence[Send], place: Place) -> None:
    for call in calls:
        try:
            call.run(producer)
        except DeliveryFailed as error:
            raise _failed(error, call, place) from None
        except FlintError as error:
            raise WriteFailed(f"{place.row(int(call.rows[0]))} and those after it: {_described(error)}") from error


def _failed(failure: DeliveryFailed, call: Send, place: Place) -> WriteFailed:
    rows_by_reason: dict[str, list[int]] = {}
    for index, error in sorted(failure.errors.items()):
        rows_by_reason.setdefault(_described(error), []).append(int(call.rows[index]) + place.rows_before)
    shown = "; ".join(f"{_rows(rows)}: {reason}" for reason, rows in list(rows_by_reason.items())[:_SHOWN_ROWS])
    more = f"; and {len(rows_by_reason) - _SHOWN_ROWS} more reasons" if len(rows_by_reason) > _SHOWN_ROWS else ""
    return WriteFailed(
        f"partition {place.partition}: {len(failure.errors)} rows were not acknowledged: {shown}{more}. What was sent "
        "before stays stored"
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
    """The producer of this process for a broker: Spark's workers are used again, for many tasks and topics."""
    key = os.getpid(), options.broker.address, options.timeout, options.compress_over, options.flush
    with _lock:
        producer = _producers.get(key)
        if producer is None:
            # A fork copies the table, but the connections in it are the parent's.
            for other in [other for other in _producers if other[0] != key[0]]:
                del _producers[other]
            producer = _producers[key] = Producer(
                options.broker.address,
                delivery_timeout=options.timeout,
                compress_over=options.compress_over,
                flush=options.flush,
            )
        return producer
