"""Sends the rows of a task, with producers that a worker process keeps."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from ...protocol.errors import FlintError
from ..arrow.message_rows import Place, checked_rows
from ..arrow.row_sends import Send, sends
from ..errors import DeliveryFailed
from ..sync.producer import Producer
from .errors import WriteFailed
from .sink_options import WriteOptions

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
