"""Ways to trace the clients of this process, and what OpenTelemetry's SDK costs by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from flintmq.client.core import hooks
from flintmq.client.otel.tracer import Tracer

PARENT = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
_WAITING_SPANS_MAX = 1_000_000
_BARE_LOOPS = 5_000
_ATTRIBUTES = {f"messaging.attribute.{number}": "value" for number in range(8)}
_FEW_ATTRIBUTES = dict(list(_ATTRIBUTES.items())[:5])


class _Dropped(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class _Recorded(trace.NonRecordingSpan):
    """A span that lets its users do all that they do for one that is recorded."""

    def is_recording(self) -> bool:
        return True


class _Recorder(trace.NoOpTracer):
    """Begins spans that read their links, as the SDK's do."""

    def start_span(self, name: str, context: context.Context | None = None, *rest: Any, **more: Any) -> trace.Span:
        for link in more.get("links") or (rest[2:] and rest[2]) or ():
            link.context  # noqa: B018
        return _Recorded(trace.get_current_span(context).get_span_context())


class TimedSends(hooks.SendingOne):
    """Times the calls of the hooks ``inner`` for single sends: their beginning and their end, without the send itself.
    It is the hooks and the call at once, because one send is under way at a time. ``taken_ns``: of each send."""

    def __init__(self, inner: hooks.Hooks) -> None:
        self.taken_ns: list[int] = []
        self._inner = inner

    def send(self, *arguments: Any) -> tuple[Any, Self]:
        began = time.perf_counter_ns()
        message, self._call = self._inner.send(*arguments)
        self._began_ns = time.perf_counter_ns() - began
        return message, self

    def end(self, error: BaseException | None, receipt: Any = None) -> None:
        began = time.perf_counter_ns()
        self._call.end(error, receipt)
        self.taken_ns.append(self._began_ns + time.perf_counter_ns() - began)


class _Interface(hooks.Hooks):
    """Hooks that call what every instrumentation must call: a span and its end, a current span for a listener, and two
    metrics."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        meter = metrics.NoOpMeterProvider().get_meter("bench")
        self.instruments = meter.create_histogram("seconds"), meter.create_counter("messages")

    def _begin(self, kind: trace.SpanKind, parent: context.Context) -> trace.Span:
        return self._tracer.start_span("send bench", parent, kind, _ATTRIBUTES)

    def send(self, side: hooks.Side, message: Any, record_bytes_max: int) -> tuple[Any, _Span]:
        return message, self.send_many(side, [message], record_bytes_max)

    def send_many(self, side: hooks.Side, messages: Any, record_bytes_max: int) -> _Span:
        return _Span(self, self._begin(trace.SpanKind.PRODUCER, context.get_current()), messages)

    def send_bulk(self, side: hooks.Side, topic: str, bodies: Any, shared: Any, record_bytes_max: int) -> _Span:
        return _Span(self, self._begin(trace.SpanKind.PRODUCER, context.get_current()), (), shared)

    def process(self, side: hooks.Side, messages: Any, *, several: bool, pushed: bool) -> _Span:
        return _Handling(self, self._begin(trace.SpanKind.CONSUMER, context.Context()), messages)


class _Span(hooks.Sending):
    """A span, which ends with two metrics."""

    def __init__(self, owner: _Interface, span: trace.Span, messages: Any, shared: Any = None) -> None:
        self.owner = owner
        self.span = span
        self.messages = messages
        self.shared = shared

    def end(self, error: BaseException | None, receipt: Any = None) -> None:
        self.span.end()
        histogram, counter = self.owner.instruments
        histogram.record(0.001, _FEW_ATTRIBUTES)
        counter.add(1, _FEW_ATTRIBUTES)


class _Handling(_Span):
    """A span in which code runs."""

    def __enter__(self) -> Self:
        self.token = context.attach(trace.set_span_in_context(self.span, context.Context()))
        return self

    def __exit__(self, *raised: Any) -> None:
        context.detach(self.token)
        self.end(None)


@contextmanager
def _in_a_span() -> Iterator[None]:
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(PARENT)))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def ways() -> Iterator[dict[str, hooks.Hooks | None]]:
    """Yield the hooks to compare: ``off``, none; ``nothing`` and ``interface``, see above; ``all``: those of
    ``flintmq.client.otel`` without an SDK, so that a span is the context of its parent, which travels with the
    messages; ``recorded_interface`` and ``recorded``: the same two with spans that are recorded, in no time and to
    nowhere; ``sdk``: with the SDK, which records every span, exports them to nowhere, and keeps the metrics in memory.
    """
    no_tracer = trace.NoOpTracerProvider().get_tracer("bench")
    no_meter = metrics.NoOpMeterProvider().get_meter("bench")
    with _sdk() as (tracers, meters), _in_a_span():
        yield {
            "off": None,
            "nothing": hooks.Hooks(),
            "interface": _Interface(no_tracer),
            "all": Tracer(no_tracer, no_meter),
            "recorded_interface": _Interface(_Recorder()),
            "recorded": Tracer(_Recorder(), no_meter),
            "sdk": Tracer(tracers.get_tracer("bench"), meters.get_meter("bench")),
        }


def bare_seconds() -> float:
    """Return the time that the SDK takes for a span with the usual number of attributes, and for two metrics."""
    with _sdk() as (tracers, meters):
        tracer, meter = tracers.get_tracer("bench"), meters.get_meter("bench")
        histogram, counter = meter.create_histogram("seconds"), meter.create_counter("messages")
        began = time.perf_counter()
        for _ in range(_BARE_LOOPS):
            tracer.start_span("send bench", kind=trace.SpanKind.PRODUCER, attributes=_ATTRIBUTES).end()
            histogram.record(0.001, _FEW_ATTRIBUTES)
            counter.add(1, _FEW_ATTRIBUTES)
        return (time.perf_counter() - began) / _BARE_LOOPS


@contextmanager
def _sdk() -> Iterator[tuple[TracerProvider, MeterProvider]]:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(_Dropped(), max_queue_size=_WAITING_SPANS_MAX))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    try:
        yield tracers, meters
    finally:
        tracers.shutdown()
        meters.shutdown()
