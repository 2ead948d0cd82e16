"""Ways to trace the clients of this process, and what OpenTelemetry's SDK costs by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from flintmq.client.otel import FlintMQInstrumentor

PARENT = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
_WAITING_SPANS_MAX = 1_000_000
_BARE_LOOPS = 5_000


class _Dropped(SpanExporter):
    """Exports nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop the spans."""
        return SpanExportResult.SUCCESS


@contextmanager
def without_sdk() -> Iterator[None]:
    """Trace with the interface alone: a span is the context of its parent, which travels with the messages."""
    with _traced(trace.NoOpTracerProvider(), metrics.NoOpMeterProvider()):
        token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(PARENT)))
        try:
            yield
        finally:
            context.detach(token)


@contextmanager
def with_sdk() -> Iterator[None]:
    """Trace with the SDK: every span is recorded and exported to nowhere, and the metrics are kept in memory."""
    with _sdk() as (tracers, meters), _traced(tracers, meters):
        yield


def bare_seconds() -> float:
    """Return the time that the SDK takes for a span with the usual number of attributes, and for two metrics."""
    with _sdk() as (tracers, meters):
        tracer, meter = tracers.get_tracer("bench"), meters.get_meter("bench")
        histogram, counter = meter.create_histogram("seconds"), meter.create_counter("messages")
        attributes = {f"messaging.attribute.{number}": "value" for number in range(8)}
        few = dict(list(attributes.items())[:5])
        began = time.perf_counter()
        for _ in range(_BARE_LOOPS):
            tracer.start_span("send bench", kind=trace.SpanKind.PRODUCER, attributes=attributes).end()
            histogram.record(0.001, few)
            counter.add(1, few)
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


@contextmanager
def _traced(tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> Iterator[None]:
    instrumentor = FlintMQInstrumentor()
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        yield
    finally:
        instrumentor.uninstrument()
