"""Spans that are under way: they end with an outcome, and with metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach

from ...protocol.storage.delivery import DEAD_LETTER_LEVEL
from ..core import hooks
from ..errors import DeliveryLost
from ..groups.push.delivery import Delivery
from ..groups.push.outcome import TryLater
from .attributes import ERROR_TYPE, TracedOperation, error_type_of, of_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.produce.grouping import BulkProperties
    from ..message import Message


class Instruments:
    """The metrics of a process, as the conventions name them."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.operation_duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of the operations of a client."
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of the handling of a message or of a batch."
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that the application sent, or tried to send."
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that the application got."
        )


class _Timed(hooks.Observation):
    """The span of an operation, and the time at which it began."""

    __slots__ = ()

    # Each subclass sets all attributes in one call: after a wait, it runs with cold caches.
    _began: float
    _ended: bool
    _instruments: Instruments
    _operation: TracedOperation
    _span: trace.Span


_TIMED = ("_began", "_ended", "_instruments", "_operation", "_span")
_NOTHING_SHARED: BulkProperties = {}


class SendSpan(_Timed, hooks.Sending):
    """A call that sends ``count`` messages. ``only``: the message of a call that sends one."""

    __slots__ = (*_TIMED, "_count", "_only")

    def __init__(
        self,
        instruments: Instruments,
        operation: TracedOperation,
        span: trace.Span,
        messages: Sequence[Message],
        count: int,
        only: Message | None = None,
        shared: BulkProperties = _NOTHING_SHARED,
    ) -> None:
        self._instruments = instruments
        self._operation = operation
        self._span = span
        self._ended = False
        self.messages = messages
        self.shared = shared
        self.receipt = None
        self._count = count
        self._only = only
        self._began = time.perf_counter()

    def end(self, error: BaseException | None) -> None:
        """Note the end; only the first one counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.perf_counter() - self._began
        span = self._span
        if span.is_recording():
            if self._only is not None:
                span.set_attributes(of_sent(self._only, self.receipt))
            if error is not None:
                note_error(span, error)
        span.end()
        of_metrics = self._operation.of_metrics if error is None else self._operation.of_failure(error)
        self._instruments.operation_duration.record(seconds, of_metrics)
        self._instruments.sent.add(self._count, of_metrics)


class ProcessSpan(_Timed):
    """The handling of one message, or of a batch. ``context``: in which its code runs, with the span; ``settled``:
    called at the end with the name of the settlement."""

    __slots__ = (*_TIMED, "_settled", "_token", "context")
    _token: Token[Context]

    def __init__(
        self,
        instruments: Instruments,
        operation: TracedOperation,
        span: trace.Span,
        context: Context,
        settled: Callable[[str], None] | None,
    ) -> None:
        self._instruments = instruments
        self._operation = operation
        self._span = span
        self._ended = False
        self.context = context
        self._settled = settled
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        self._token = attach(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        detach(self._token)
        self.end(raised)

    def end(self, error: BaseException | None) -> None:
        """Note the end; only the first one counts."""
        if self._ended:
            return
        self._ended = True
        seconds = time.perf_counter() - self._began
        span = self._span
        if error is not None and span.is_recording():
            note_error(span, error)
        span.end()
        of_metrics = self._operation.of_metrics if error is None else self._operation.of_failure(error)
        self._instruments.process_duration.record(seconds, of_metrics)
        if self._settled is not None and not isinstance(error, DeliveryLost):
            self._settled(settlement_of(error))


def note_error(span: trace.Span, error: BaseException) -> None:
    """Note the error with which an operation ended."""
    span.set_attribute(ERROR_TYPE, error_type_of(error))
    span.set_status(trace.StatusCode.ERROR, str(error))
    if not isinstance(error, TryLater):  # with it, a listener asks for something
        span.record_exception(error)


def settlement_of(error: BaseException | None) -> str:
    """Return the name of the settlement that an outcome leads to."""
    if error is None:
        return "ack"
    if isinstance(error, TryLater) and error.delay_level == DEAD_LETTER_LEVEL:
        return "dead"
    return "retry"


@contextmanager
def handling(delivery: Delivery) -> Iterator[None]:
    """Let the code of a ``with`` block run in the span of a delivery, so that spans that it begins are part of it.

    Does nothing if the delivery was received without a span.
    """
    span = delivery.handling
    if not isinstance(span, ProcessSpan):
        yield
        return
    token = attach(span.context)
    try:
        yield
    finally:
        detach(token)
