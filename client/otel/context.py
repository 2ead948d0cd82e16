"""The context of a span in the properties of messages, and back: ``traceparent``, ``tracestate`` and ``baggage``, or
whatever the process's propagators write."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import overload

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator

from ...protocol.storage.record import NAME_VALUE_SEPARATOR, CorruptRecord
from ..application_code import described, ends_program
from ..core.consume.batch import StoredMessage
from ..endpoint import LogRate
from ..errors import InvalidMessage
from ..message import Message, check_properties, with_properties

log = logging.getLogger(__name__)

BAGGAGE = "baggage"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
_USUAL = {TRACEPARENT, TRACESTATE, BAGGAGE}
_TRACEPARENT_TEXT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_FLAGS = {f"{flags:02x}": trace.TraceFlags(flags) for flags in range(1, 4)}
LINKS_MAX = 128
"""Maximum number of links of a span, which is OpenTelemetry's default."""
BAGGAGE_MARKER = BAGGAGE.encode() + NAME_VALUE_SEPARATOR
(_BAGGAGE_KEY,) = baggage.set_baggage("name", "value", Context())
_NOTHING: Mapping[str, str] = {}
_log_rate = LogRate()


class ContextFields(frozenset[str]):
    """The properties in which a propagator writes the context of a span. ``are_usual``: it writes the formats of the
    W3C, as that of most processes does. A ``traceparent`` alone, which is what most messages have, is then written and
    read here, in a third of the time."""

    propagator: TextMapPropagator
    are_usual: bool


@lru_cache(maxsize=4)
def fields_of(propagator: TextMapPropagator) -> ContextFields:
    """Return the properties in which a propagator writes the context of a span."""
    written = set(propagator.fields)
    fields = ContextFields(written - {BAGGAGE})
    fields.propagator = propagator
    fields.are_usual = written == _USUAL
    return fields


def injected(span: trace.Span, context: Context, fields: ContextFields) -> Mapping[str, str]:
    """Return ``context`` with ``span`` as the propagator of ``fields`` writes it into properties of messages: none if
    it cannot be written as such."""
    # A tuple, so that one step has all: this runs for every send.
    trace_id, span_id, _, flags, state, is_valid = span.get_span_context()
    has_state = state is not trace.DEFAULT_TRACE_STATE and state
    if fields.are_usual and not has_state and _BAGGAGE_KEY not in context:
        # %, because it formats in half of the time.
        return {TRACEPARENT: "00-%032x-%016x-%02x" % (trace_id, span_id, flags)} if is_valid else _NOTHING  # noqa: UP031
    carrier: dict[str, str] = {}
    try:
        fields.propagator.inject(carrier, trace.set_span_in_context(span, context))
    except BaseException as error:  # a propagator that fails must not fail the send
        if ends_program(error):
            raise
        _warn("no context is sent, because a propagator failed", error)
        return _NOTHING
    for name, value in carrier.items():
        if name not in _USUAL or not value or not value.isprintable():
            return _checked(carrier)
    return carrier


def _checked(carrier: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return check_properties({name: value for name, value in carrier.items() if value})
    except InvalidMessage as error:
        _warn("no context is sent", error)
        return _NOTHING


def without_baggage(added: Mapping[str, str]) -> Mapping[str, str]:
    """Return a context without its baggage, which may be long."""
    return {name: value for name, value in added.items() if name != BAGGAGE}


def carrying(message: Message, added: Mapping[str, str], record_bytes_max: int) -> Message:
    """Return the message with as much of the context in ``added`` as it has room for."""
    carrier = with_properties(message, added, record_bytes_max)
    if carrier is None and BAGGAGE in added:
        carrier = with_properties(message, without_baggage(added), record_bytes_max)
    return message if carrier is None else carrier


def context_of(message: StoredMessage) -> Context:
    """Return the context with which a message was sent: of its sender's span, and with its baggage."""
    return extracted(properties_of(message))


def link_to(message: StoredMessage) -> trace.Link | None:
    """Return a link to the span with which a message was sent; None if it was sent without one."""
    sender = sender_of(properties_of(message))
    return None if sender is None else trace.Link(sender)


def sender_of(properties: Mapping[str, str]) -> trace.SpanContext | None:
    """Return the span with which a message with these properties was sent; None if it was sent without one."""
    text = properties.get(TRACEPARENT)
    fields = fields_of(propagate.get_global_textmap())
    if text is not None and TRACESTATE not in properties and fields.are_usual:
        found = _TRACEPARENT_TEXT.fullmatch(text)
        if found is not None:
            trace_id, span_id, flags = found.groups()
            known = _FLAGS.get(flags) or trace.TraceFlags(int(flags, 16))
            sender = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, known)
            return sender if sender.is_valid else None
    elif fields.isdisjoint(properties):
        return None
    sender = trace.get_current_span(extracted(properties)).get_span_context()
    return sender if sender.is_valid else None


def extracted(properties: Mapping[str, str]) -> Context:
    """Return the context in the properties of a message, or an empty one."""
    try:
        return propagate.extract(properties, Context())
    except BaseException as error:  # a propagator that fails must not fail the handling of a message
        if ends_program(error):
            raise
        _warn("the context of a message cannot be read", error)
        return Context()


class SenderLinks(Sequence[trace.Link]):
    """Links to the spans with which messages were sent: each span once, at most 128. The messages are read when the
    links are: never for a span that is not recorded, unless its sampler asks for them."""

    __slots__ = ("_found", "_messages")
    _found: list[trace.Link]

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        self._messages: Sequence[StoredMessage] | None = messages

    def __bool__(self) -> bool:
        """Return True: the messages need not be read to tell a tracer that there may be links."""
        return True

    def __len__(self) -> int:
        return len(self._links())

    @overload
    def __getitem__(self, index: int) -> trace.Link: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[trace.Link]: ...
    def __getitem__(self, index: int | slice) -> trace.Link | Sequence[trace.Link]:
        return self._links()[index]

    def __iter__(self) -> Iterator[trace.Link]:
        return iter(self._links())

    def _links(self) -> list[trace.Link]:
        messages = self._messages
        if messages is not None:
            if len(messages) == 1:
                sender = sender_of(properties_of(messages[0]))
                self._found = [] if sender is None else [trace.Link(sender)]
            else:
                self._found = links_to(map(properties_of, messages))
            self._messages = None  # so that the span does not keep them
        return self._found


def links_to(several: Iterable[Mapping[str, str]]) -> list[trace.Link]:
    """Return links to the spans with which messages with these properties were sent: each span once, at most 128."""
    fields = fields_of(propagate.get_global_textmap())
    links: dict[tuple[str | None, ...], trace.Link | None] = {}
    for properties in several:
        if fields.isdisjoint(properties):
            continue
        key = tuple([properties.get(field) for field in fields])
        if key not in links:
            sender = sender_of(properties)
            links[key] = None if sender is None else trace.Link(sender)
            if len(links) >= LINKS_MAX:
                break
    return [link for link in links.values() if link is not None]


def properties_of(message: StoredMessage) -> Mapping[str, str]:
    """Return the properties of a message; those of a damaged one are empty."""
    try:
        return message.properties
    except CorruptRecord:
        return _NOTHING


def _warn(what: str, error: BaseException) -> None:
    if (left_out := _log_rate.admit()) is not None:
        log.warning("%s: %s%s", what, described(error), left_out)
