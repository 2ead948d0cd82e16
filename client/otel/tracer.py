"""The hooks of OpenTelemetry: they begin a span for each call that sends or receives, and for each handling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current

from ..core import hooks
from ..core.consume.stored import StoredMessage
from ..core.hooks import Side
from ..errors import InvalidMessage
from ..message import Message, check_properties, have_room
from . import attributes as names
from .attributes import Attributes
from .context import (
    BAGGAGE,
    LINKS_MAX,
    carrying,
    extracted,
    injected,
    links_to,
    stored_properties,
    trace_fields,
    variants,
)
from .spans import Instruments, ProcessSpan, SendSpan, note_error

if TYPE_CHECKING:
    from ..core.produce.grouping import BulkProperties


class Tracer(hooks.Hooks):
    """The spans and metrics of the clients of this process. The switches are those of ``FlintMQInstrumentor``."""

    def __init__(
        self,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        *,
        process_parent: bool = False,
        create_spans: bool = False,
        settle_spans: bool = False,
    ) -> None:
        self._tracer = tracer
        self._instruments = Instruments(meter)
        self._process_parent = process_parent
        self._create_spans = create_spans
        self._settle_spans = settle_spans

    # ---- sending

    def send(self, side: Side, messages: Sequence[Message], record_bytes_max: int, *, several: bool) -> SendSpan:
        """Begin a call that sends messages, each of which gets the context of a span, unless it has one."""
        topic = names.common_topic(messages)
        attributes = names.of_operation(side, "send", "send", topic)
        if several:
            attributes[names.BATCH_COUNT] = len(messages)
        else:
            names.add_sent(attributes, messages[0])
        fields = trace_fields()
        links = links_to([message.row()[1] for message in messages], fields)
        current = get_current()
        if self._create_spans:
            messages = [self._created(side, message, record_bytes_max, links) for message in messages]
            span = self._begin(attributes, trace.SpanKind.CLIENT, current, links)
        else:
            span = self._begin(attributes, trace.SpanKind.PRODUCER, current, links)
            if added := injected(trace.set_span_in_context(span, current)):
                messages = [
                    carrying(message, added, record_bytes_max) if fields.isdisjoint(message.row()[1]) else message
                    for message in messages
                ]
        return SendSpan(self._instruments, span, attributes, messages, len(messages), {})

    def send_bulk(
        self, side: Side, topic: str, bodies: Sequence[bytes], shared: BulkProperties, record_bytes_max: int
    ) -> SendSpan:
        """Begin a ``send_bulk``, whose messages all get the context of its span, unless they have one."""
        attributes = names.of_operation(side, "send", "send", topic if isinstance(topic, str) else "")
        attributes[names.BATCH_COUNT] = len(bodies)
        current, fields = get_current(), trace_fields()
        own: Mapping[str, str] | None = None
        with suppress(InvalidMessage):  # the call is about to raise it
            own = check_properties(shared.get("properties") or {})
        span = self._begin(attributes, trace.SpanKind.PRODUCER, current, links_to([own or {}], fields))
        if own is not None and fields.isdisjoint(own):
            for added in variants(injected(trace.set_span_in_context(span, current))):
                if have_room(own, added, bodies, record_bytes_max):
                    shared = {**shared, "properties": {**added, **own}}
                    break
        return SendSpan(self._instruments, span, attributes, (), len(bodies), shared)

    def _created(self, side: Side, message: Message, record_bytes_max: int, links: list[trace.Link]) -> Message:
        """Return a message with the context of a span of its own, to which the span of the call gets a link."""
        if not trace_fields().isdisjoint(message.row()[1]):
            return message
        attributes = names.of_operation(side, "create", "create", message.topic)
        names.add_sent(attributes, message)
        current = get_current()
        span = self._begin(attributes, trace.SpanKind.PRODUCER, current, [])
        message = carrying(message, injected(trace.set_span_in_context(span, current)), record_bytes_max)
        span.end()
        if len(links) < LINKS_MAX:
            links.append(trace.Link(span.get_span_context()))
        return message

    # ---- receiving

    def received(self, side: Side, topic: str, messages: hooks.Messages, times_ns: tuple[int, int]) -> None:
        """Note messages that the application gets now."""
        attributes = self._of_receive(side, topic or names.common_topic(messages))
        attributes[names.BATCH_COUNT] = len(messages)
        links = links_to(stored_properties(messages), trace_fields())
        began_ns, ended_ns = times_ns
        self._begin(attributes, trace.SpanKind.CLIENT, None, links, began_ns).end(ended_ns)
        of_metrics = names.of_metrics(attributes, "")
        self._instruments.operation_duration.record((ended_ns - began_ns) / 1e9, of_metrics)
        self._instruments.consumed.add(len(messages), of_metrics)

    def not_received(self, side: Side, topic: str, error: BaseException, times_ns: tuple[int, int]) -> None:
        """Note a call that failed to receive messages."""
        attributes = self._of_receive(side, topic)
        began_ns, ended_ns = times_ns
        span = self._begin(attributes, trace.SpanKind.CLIENT, None, [], began_ns)
        error_type = names.error_type_of(error)
        note_error(span, error, error_type)
        span.end(ended_ns)
        of_metrics = names.of_metrics(attributes, error_type)
        self._instruments.operation_duration.record((ended_ns - began_ns) / 1e9, of_metrics)

    @staticmethod
    def _of_receive(side: Side, topic: str) -> Attributes:
        return names.of_operation(side, "receive", "receive", topic)

    # ---- handling

    def process(self, side: Side, messages: hooks.Messages, *, several: bool, pushed: bool) -> ProcessSpan:
        """Begin the handling of messages, linked to the spans with which they were sent."""
        topic = messages[0].topic
        attributes = names.of_operation(side, "process", "process", topic)
        # A listener's thread or task is the client's own; what called it is no part of the trace.
        parent, context = Context() if pushed else get_current(), None
        if several:
            attributes[names.BATCH_COUNT] = len(messages)
            links = links_to(stored_properties(messages), trace_fields())
        else:
            names.add_stored(attributes, messages[0])
            links, context = self._origin(messages[0])
        if context is None:
            context = parent
        elif self._process_parent and links:
            parent, links = context, []
        span = self._begin(attributes, trace.SpanKind.CONSUMER, parent, links)
        if pushed:
            self._instruments.consumed.add(len(messages), names.of_metrics(attributes, ""))
        settled = partial(self._settled, side, topic, links) if self._settle_spans else None
        return ProcessSpan(self._instruments, span, attributes, trace.set_span_in_context(span, context), settled)

    @staticmethod
    def _origin(message: StoredMessage) -> tuple[list[trace.Link], Context | None]:
        """Return a link to the span with which a message was sent, and its context; without one, neither."""
        (properties,) = stored_properties((message,))
        if trace_fields().isdisjoint(properties) and BAGGAGE not in properties:
            return [], None
        context = extracted(properties)
        sent_by = trace.get_current_span(context).get_span_context()
        return [trace.Link(sent_by)] if sent_by.is_valid else [], context

    def _settled(self, side: Side, topic: str, links: list[trace.Link], name: str) -> None:
        """Note the settlement of messages, which the client tells the broker later, with others."""
        attributes = names.of_operation(side, name, "settle", topic)
        self._begin(attributes, trace.SpanKind.CLIENT, None, links).end()

    def _begin(
        self,
        attributes: Attributes,
        kind: trace.SpanKind,
        context: Context | None,
        links: Sequence[trace.Link],
        began_ns: int | None = None,
    ) -> trace.Span:
        operation, topic = attributes[names.OPERATION_NAME], attributes.get(names.DESTINATION)
        name = f"{operation!s} {topic!s}" if topic else str(operation)
        return self._tracer.start_span(name, context, kind, attributes, links, began_ns)
