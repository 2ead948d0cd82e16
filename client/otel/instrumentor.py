"""The instrumentor: begins and ends the tracing of the clients of this process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # it is untyped

import flintmq

from ..core import hooks
from .tracer import Tracer

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The conventions that names of spans, attributes and metrics follow."""


class FlintMQInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # as above
    """Traces all of FlintMQ's clients of this process, those that exist and those to come.

    Options of ``instrument()``: ``tracer_provider`` and ``meter_provider``, by default the global ones;
    ``process_parent``: the span of a listener is a child of the span that sent its message, not linked to it;
    ``create_spans``: each message of a ``send`` and ``send_many`` has a span of its own; ``settle_spans``: each
    settlement has one.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages to be traced: none that could be missing, for FlintMQ comes with this class."""
        return ()

    def _instrument(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        process_parent: bool = False,
        create_spans: bool = False,
        settle_spans: bool = False,
        **_: Any,
    ) -> None:
        version = flintmq.__version__
        hooks.install(
            Tracer(
                trace.get_tracer(__name__, version, tracer_provider, SCHEMA_URL),
                metrics.get_meter(__name__, version, meter_provider, SCHEMA_URL),
                process_parent=process_parent,
                create_spans=create_spans,
                settle_spans=settle_spans,
            )
        )

    def _uninstrument(self, **_: Any) -> None:
        hooks.install(None)
