"""Traces and metrics of FlintMQ's clients, by OpenTelemetry. See ``docs/tracing.md``.

    from flintmq.client.otel import FlintMQInstrumentor

    FlintMQInstrumentor().instrument()

Needs ``flintmq[otel]``. ``opentelemetry-instrument`` finds the instrumentor by itself.

================  ==============================================================================
``instrumentor``  ``FlintMQInstrumentor``: installs the hooks, with the options of the application
``tracer``        the hooks: begins the spans
``spans``         the spans: end them, with metrics
``attributes``    names and values of attributes
``context``       the context of a span in the properties of messages, and back
================  ==============================================================================
"""

from __future__ import annotations

try:
    from .context import context_of as context_of
    from .context import link_to as link_to
    from .instrumentor import FlintMQInstrumentor as FlintMQInstrumentor
    from .spans import handling as handling
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{__name__} needs {missing.name}: pip install 'flintmq[otel]'", name=missing.name
    ) from missing
