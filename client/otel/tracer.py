"""The hooks of OpenTelemetry: they begin a span for each call that sends or receives, and for each handling."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.context import Context, get_current
from opentelemetry.propagate import get_global_textmap

from ..core import hooks
from ..core.hooks import Side
from ..errors import ClientClosed, InvalidMessage
from ..message import Message, check_properties, have_room, wire_of, with_properties
from .context import (
    BAGGAGE,
    BAGGAGE_MARKER,
    LINKS_MAX,
    SenderLinks,
    carrying,
    extracted,
    fields_of,
    injected,
    links_to,
    properties_of,
    sender_of,
    without_baggage,
)
from .spans import (
    BATCH_COUNT,
    Instruments,
    ProcessSpan,
    SendSpan,
    TracedOperation,
    common_topic,
    note_error,
    of_sent,
    of_stored,
    operation_of,
)

if TYPE_CHECKING:
    from ..core.consume.batch import Batch, StoredMessage
    from ..core.produce.packer import BulkProperties


_PRODUCER, _CONSUMER = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
_NO_CONTEXT = Context()


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

    def send(self, side: Side, message: Message, record_bytes_max: int) -> tuple[Message, SendSpan]:
        """Begin a call that sends a message, which gets the context of a span, unless it has one."""
        if self._create_spans:
            created = self._send(side, [message], record_bytes_max, several=False)
            return created.messages[0], created
        # By itself and with few calls: a single send waits for the broker, and what runs after a wait has cold caches.
        sent, topic = message, message.topic
        operation = side.kept.get(("send", topic))
        if operation is None or operation.server is not side.addresses.first:
            operation = operation_of(side, "send", topic)
        current, fields, wire = get_current(), fields_of(get_global_textmap()), wire_of(message)
        if wire is not None and not fields.isdisjoint(wire):
            span = self._tracer.start_span(operation.name, current, _PRODUCER, operation.attributes, links_to((wire,)))
        else:
            span = self._tracer.start_span(operation.name, current, _PRODUCER, operation.attributes)
            if added := injected(span, current, fields):
                sent = with_properties(message, added, record_bytes_max) or carrying(message, added, record_bytes_max)
        return sent, SendSpan(self._instruments, operation, span, [], 1, message)

    def send_many(self, side: Side, messages: list[Message], record_bytes_max: int) -> SendSpan:
        """Begin a ``send_many``, whose messages get the context of a span, unless they have one."""
        return self._send(side, messages, record_bytes_max, several=True)

    def _send(self, side: Side, messages: list[Message], record_bytes_max: int, *, several: bool) -> SendSpan:
        operation = operation_of(side, "send", common_topic(messages))
        count, only = (len(messages), None) if several else (None, messages[0])
        current, fields = get_current(), fields_of(get_global_textmap())
        wires = [wire for wire in map(wire_of, messages) if wire]
        own = [wire for wire in wires if not fields.isdisjoint(wire)]
        links = links_to(own) if own else []
        if self._create_spans:
            messages = [self._created(side, message, record_bytes_max, links) for message in messages]
            span = self._begin(operation, trace.SpanKind.CLIENT, current, links, count=count)
        else:
            span = self._begin(operation, trace.SpanKind.PRODUCER, current, links, count=count)
            if added := injected(span, current, fields):
                messages = [
                    message
                    if own and not fields.isdisjoint(wire_of(message) or ())
                    else with_properties(message, added, record_bytes_max) or carrying(message, added, record_bytes_max)
                    for message in messages
                ]
        return SendSpan(self._instruments, operation, span, messages, len(messages), only)

    def send_bulk(
        self, side: Side, topic: str, bodies: Sequence[bytes], shared: BulkProperties, record_bytes_max: int
    ) -> SendSpan:
        """Begin a ``send_bulk``, whose messages all get the context of its span, unless they have one."""
        operation = operation_of(side, "send", topic if isinstance(topic, str) else "")
        current, fields = get_current(), fields_of(get_global_textmap())
        own: Mapping[str, str] | None = None
        with suppress(InvalidMessage):  # the call is about to raise it
            own = check_properties(shared.get("properties") or {})
        links = links_to([own]) if own else []
        span = self._begin(operation, trace.SpanKind.PRODUCER, current, links, count=len(bodies))
        if own is not None and fields.isdisjoint(own):
            added = injected(span, current, fields)
            for variant in (added, without_baggage(added)):
                if variant and have_room(own, variant, bodies, record_bytes_max):
                    shared = {**shared, "properties": {**variant, **own}}
                    break
        return SendSpan(self._instruments, operation, span, [], len(bodies), shared=shared)

    def _created(self, side: Side, message: Message, record_bytes_max: int, links: list[trace.Link]) -> Message:
        """Return a message with the context of a span of its own, to which the span of the call gets a link."""
        current, fields = get_current(), fields_of(get_global_textmap())
        if not fields.isdisjoint(wire_of(message) or ()):
            return message
        span = self._begin(operation_of(side, "create", message.topic), trace.SpanKind.PRODUCER, current, [])
        span.set_attributes(of_sent(message, None))
        message = carrying(message, injected(span, current, fields), record_bytes_max)
        span.end()
        if len(links) < LINKS_MAX:
            links.append(trace.Link(span.get_span_context()))
        return message

    # ---- receiving

    def receiving(self, side: Side, topic: str = "") -> hooks.Receiving:
        """Begin a call that receives messages."""
        return _ReceiveSpan(self, side, topic)

    def handed_out(
        self, side: Side, topic: str, messages: list[StoredMessage], began_ns: int
    ) -> Generator[StoredMessage, None, None]:
        """Yield the messages, and note those that the application has taken when it takes no more."""
        times_ns = began_ns, time.time_ns()
        count = 0
        try:
            for message in messages:
                count += 1
                yield message
        finally:
            self.received(side, topic, messages[:count], times_ns)

    def received(self, side: Side, topic: str, messages: hooks.Messages, times_ns: tuple[int, int]) -> None:
        """Note messages that the application gets now. ``times_ns``: when the call began, and when it had them."""
        operation = operation_of(side, "receive", topic or common_topic(messages))
        links = SenderLinks(messages)
        began_ns, ended_ns = times_ns
        self._begin(operation, trace.SpanKind.CLIENT, None, links, began_ns, len(messages)).end(ended_ns)
        self._instruments.operation_duration.record((ended_ns - began_ns) / 1e9, operation.of_metrics)
        self._instruments.consumed.add(len(messages), operation.of_metrics)

    def not_received(self, side: Side, topic: str, error: BaseException, times_ns: tuple[int, int]) -> None:
        """Note a call that failed to receive messages."""
        operation = operation_of(side, "receive", topic)
        began_ns, ended_ns = times_ns
        span = self._begin(operation, trace.SpanKind.CLIENT, None, [], began_ns)
        note_error(span, error)
        span.end(ended_ns)
        self._instruments.operation_duration.record((ended_ns - began_ns) / 1e9, operation.of_failure(error))

    # ---- handling

    def process(self, side: Side, messages: hooks.Messages, *, several: bool, pushed: bool) -> ProcessSpan:
        """Begin the handling of messages, linked to the spans with which they were sent."""
        message = messages[0]
        topic = message.topic
        operation = side.kept.get(("process", topic))
        if operation is None or operation.server is not side.addresses.first:
            operation = operation_of(side, "process", topic)
        # A listener's thread or task is the client's own; what called it is no part of the trace.
        parent = context = _NO_CONTEXT if pushed else get_current()
        links: Sequence[trace.Link] = SenderLinks(messages)
        if not several:
            if message.may_have_property(BAGGAGE_MARKER) and BAGGAGE in (properties := properties_of(message)):
                context = extracted(properties)
            if self._process_parent and (sender := sender_of(properties_of(message))) is not None:
                links, parent = (), trace.set_span_in_context(trace.NonRecordingSpan(sender), context)
        attributes = {**operation.attributes, BATCH_COUNT: len(messages)} if several else operation.attributes
        span = self._tracer.start_span(operation.name, parent, _CONSUMER, attributes, links)
        if not several and span.is_recording():
            span.set_attributes(of_stored(message))
        if pushed:
            self._instruments.consumed.add(len(messages), operation.of_metrics)
        settled = partial(self._settled, side, topic, links) if self._settle_spans else None
        return ProcessSpan(self._instruments, operation, span, trace.set_span_in_context(span, context), settled)

    def _settled(self, side: Side, topic: str, links: Sequence[trace.Link], name: str) -> None:
        """Note the settlement of messages, which the client tells the broker later, with others."""
        self._begin(operation_of(side, name, topic, "settle"), trace.SpanKind.CLIENT, None, links).end()

    def _begin(
        self,
        operation: TracedOperation,
        kind: trace.SpanKind,
        context: Context | None,
        links: Sequence[trace.Link],
        began_ns: int | None = None,
        count: int | None = None,
    ) -> trace.Span:
        """Begin a span. ``count``: of the messages, if there may be several."""
        attributes = operation.attributes
        if count is not None:
            attributes = {**attributes, BATCH_COUNT: count}
        return self._tracer.start_span(operation.name, context, kind, attributes, links, began_ns)


class _ReceiveSpan(hooks.Receiving):
    """A call that receives messages."""

    __slots__ = ("_began_ns", "_side", "_topic", "_tracer")

    def __init__(self, tracer: Tracer, side: Side, topic: str) -> None:
        self._tracer = tracer
        self._side = side
        self._topic = topic
        self._began_ns = time.time_ns()

    def end(self, error: BaseException | None) -> None:
        # To be closed or cancelled is how a wait for messages ends.
        if isinstance(error, Exception) and not isinstance(error, ClientClosed):
            self._tracer.not_received(self._side, self._topic, error, (self._began_ns, time.time_ns()))

    def batch(self, batch: Batch) -> Batch:
        self._received(batch.messages)
        return batch

    def deliveries(self, found: list[hooks.HandedT]) -> list[hooks.HandedT]:
        self._received([each.message for each in found])
        for each in found:
            each.handling = self._tracer.process(self._side, (each.message,), several=False, pushed=False)
        return found

    def _received(self, messages: hooks.Messages) -> None:
        if messages:
            self._tracer.received(self._side, self._topic, messages, (self._began_ns, time.time_ns()))
