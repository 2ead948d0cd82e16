"""The context of a span in the properties of messages, and back: ``traceparent``, ``tracestate`` and ``baggage``, or
whatever the process's propagators write."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator

from ...protocol.storage.record import CorruptRecord
from ..core.consume.stored import StoredMessage
from ..errors import InvalidMessage
from ..log_rate import LogRate
from ..message import Message, check_properties, with_properties

log = logging.getLogger(__name__)

BAGGAGE = "baggage"
LINKS_MAX = 128
"""Maximum number of links of a span, which is OpenTelemetry's default."""
_NOTHING: Mapping[str, str] = {}
_log_rate = LogRate()


def trace_fields() -> frozenset[str]:
    """Return the properties in which the process's propagators write the context of a span."""
    return _fields_of(propagate.get_global_textmap())


@lru_cache(maxsize=4)
def _fields_of(propagator: TextMapPropagator) -> frozenset[str]:
    return frozenset(propagator.fields) - {BAGGAGE}


def injected(context: Context) -> Mapping[str, str]:
    """Return ``context`` as properties of messages: none if it cannot be written as such."""
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context)
        return check_properties({name: value for name, value in carrier.items() if value}) if carrier else _NOTHING
    except InvalidMessage as error:
        _warn("no context is sent", error)
    except Exception as error:  # noqa: BLE001 - a propagator that fails must not fail the send
        _warn("no context is sent, because a propagator failed", error)
    return _NOTHING


def variants(added: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the properties to try: all, and then without baggage, which may be long."""
    if added:
        yield added
        if BAGGAGE in added:
            yield {name: value for name, value in added.items() if name != BAGGAGE}


def carrying(message: Message, added: Mapping[str, str], record_bytes_max: int) -> Message:
    """Return the message with as much of the context in ``added`` as it has room for."""
    for variant in variants(added):
        if (carrier := with_properties(message, variant, record_bytes_max)) is not None:
            return carrier
    return message


def context_of(message: StoredMessage) -> Context:
    """Return the context with which a message was sent: of its sender's span, and with its baggage."""
    return extracted(_properties(message))


def link_to(message: StoredMessage) -> trace.Link | None:
    """Return a link to the span with which a message was sent; None if it was sent without one."""
    return next(iter(links_to([_properties(message)], trace_fields())), None)


def extracted(properties: Mapping[str, str]) -> Context:
    """Return the context in the properties of a message; empty if there is none."""
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
            found = trace.get_current_span(extracted(properties)).get_span_context()
            links[key] = trace.Link(found) if found.is_valid else None
            if len(links) >= LINKS_MAX:
                break
    return [link for link in links.values() if link is not None]


def stored_properties(messages: Iterable[StoredMessage]) -> Iterator[Mapping[str, str]]:
    """Yield the properties of each message; those of a damaged one are empty."""
    return map(_properties, messages)


def _properties(message: StoredMessage) -> Mapping[str, str]:
    try:
        return message.properties
    except CorruptRecord:
        return _NOTHING


def _warn(what: str, error: Exception) -> None:
    if (left_out := _log_rate.admit()) is not None:
        log.warning("%s: %s: %s%s", what, type(error).__name__, error, left_out)
