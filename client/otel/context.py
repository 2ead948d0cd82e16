"""The context of a span in the properties of messages, and back: ``traceparent``, ``tracestate`` and ``baggage``, or
whatever the process's propagators write."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator

from ...protocol.storage.record import CorruptRecord
from ..core.consume.stored import StoredMessage
from ..errors import InvalidMessage
from ..log_rate import LogRate
from ..message import Message, check_properties, with_properties

log = logging.getLogger(__name__)

BAGGAGE = "baggage"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
_USUAL = {TRACEPARENT, TRACESTATE, BAGGAGE}
_TRACEPARENT_TEXT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
LINKS_MAX = 128
"""Maximum number of links of a span, which is OpenTelemetry's default."""
_NOTHING: Mapping[str, str] = {}
_log_rate = LogRate()


@lru_cache(maxsize=4)
def _writes_usually(propagator: TextMapPropagator) -> bool:
    """Return whether a propagator writes the formats of the W3C, as that of most processes does. A ``traceparent``
    alone, which is what most messages have, is then written and read here, in a third of the time."""
    return set(propagator.fields) == _USUAL


@lru_cache(maxsize=4)
def fields_of(propagator: TextMapPropagator) -> frozenset[str]:
    """Return the properties in which a propagator writes the context of a span."""
    return frozenset(propagator.fields) - {BAGGAGE}


def injected(span: trace.Span, context: Context, propagator: TextMapPropagator) -> Mapping[str, str]:
    """Return ``context`` with ``span`` as ``propagator`` writes it into properties of messages: none if it cannot be
    written as such."""
    # A tuple, so that one step has all: this runs for every send.
    trace_id, span_id, _, flags, state, is_valid = span.get_span_context()
    has_state = state is not trace.DEFAULT_TRACE_STATE and state
    if not has_state and _writes_usually(propagator) and not (context and baggage.get_all(context)):
        # %, because it formats in half of the time.
        return {TRACEPARENT: "00-%032x-%016x-%02x" % (trace_id, span_id, flags)} if is_valid else _NOTHING  # noqa: UP031
    carrier: dict[str, str] = {}
    try:
        propagator.inject(carrier, trace.set_span_in_context(span, context))
    except Exception as error:  # noqa: BLE001 - a propagator that fails must not fail the send
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
    if text is not None and TRACESTATE not in properties and _writes_usually(propagate.get_global_textmap()):
        found = _TRACEPARENT_TEXT.fullmatch(text)
        if found is not None:
            trace_id, span_id, flags = found.groups()
            sender = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))
            return sender if sender.is_valid else None
    elif fields_of(propagate.get_global_textmap()).isdisjoint(properties):
        return None
    sender = trace.get_current_span(extracted(properties)).get_span_context()
    return sender if sender.is_valid else None


def extracted(properties: Mapping[str, str]) -> Context:
    """Return the context in the properties of a message, or an empty one."""
    try:
        return propagate.extract(properties, Context())
    except Exception as error:  # noqa: BLE001 - a propagator that fails must not fail the handling of a message
        _warn("the context of a message cannot be read", error)
        return Context()


def links_to(several: Iterable[Mapping[str, str]], fields: frozenset[str]) -> list[trace.Link]:
    """Return links to the spans with which messages with these properties were sent: each span once, at most 128."""
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


def _warn(what: str, error: Exception) -> None:
    if (left_out := _log_rate.admit()) is not None:
        log.warning("%s: %s: %s%s", what, type(error).__name__, error, left_out)
