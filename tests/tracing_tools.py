"""Spans and metrics of tests, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flintmq.client.otel import FlintMQInstrumentor
from tests.group_tools import until


class Traces:
    """The spans and metrics of this process while its clients are traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider(metric_readers=[self._reader])
        self.tracer = self.tracer_provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        """Return the spans that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait until exactly so many spans of this name have ended."""
        until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        spans = self.named(name)
        assert len(spans) == count
        return spans

    def points(self, metric: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@contextmanager
def traced(**options: Any) -> Iterator[Traces]:
    """Trace the clients of this process within a ``with`` block. ``options``: those of ``instrument``."""
    traces = Traces()
    instrumentor = FlintMQInstrumentor()
    instrumentor.instrument(tracer_provider=traces.tracer_provider, meter_provider=traces.meter_provider, **options)
    try:
        yield traces
    finally:
        instrumentor.uninstrument()


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent(span: ReadableSpan) -> str:
    """Return the context of a span as the property of a message."""
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def ids(*spans: ReadableSpan) -> list[int]:
    return [context_of(span).span_id for span in spans]
