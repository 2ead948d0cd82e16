"""Hooks are told of each operation once, and a tracer survives what others do wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from flintmq.client import BrokerFailure, ConnectionFailed, DeliveryFailed, Message, StoredMessage
from flintmq.client.core import hooks
from flintmq.client.core.rpc.address import AddressBook, parse_addresses
from flintmq.client.errors import DeliveryLost
from flintmq.client.groups.push.outcome import GiveUp, TryLater
from flintmq.client.message import with_properties
from flintmq.client.otel import context_of, link_to
from flintmq.client.otel.context import fields_of, injected, sender_of
from flintmq.client.otel.spans import error_type_of, settlement_of
from flintmq.client.otel.tracer import Tracer
from flintmq.protocol.errors import SystemBusy
from flintmq.protocol.storage.record import Record, encode_host, encode_properties
from tests.tracing_tools import Traces, traced

SIDE = hooks.Side("shop", AddressBook(parse_addresses("127.0.0.1:10911")))
DAMAGED = StoredMessage(100, 0, bytes(100), "orders")
"""A record of zeros."""


class Broken(TextMapPropagator):
    """A propagator that fails."""

    def inject(self, *arguments: Any, **options: Any) -> None:
        """Fail."""
        raise RuntimeError("no inject")

    def extract(self, *arguments: Any, **options: Any) -> Context:
        """Fail."""
        raise RuntimeError("no extract")

    @property
    def fields(self) -> set[str]:
        """Return the field of its context."""
        return {"traceparent"}


class Odd(Broken):
    """A propagator whose context cannot be a property of a message."""

    def inject(self, carrier: Any, *arguments: Any, **options: Any) -> None:
        """Write a value with the separator of properties."""
        carrier["traceparent"] = "a\x01b"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as traces:
        yield traces


@pytest.fixture
def propagator(request: pytest.FixtureRequest) -> Iterator[None]:
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(request.param())
    yield
    propagate.set_global_textmap(usual)


def tracer() -> Tracer:
    assert isinstance(hooks.active, Tracer)
    return hooks.active


@pytest.mark.parametrize("propagator", [Broken, Odd], indirect=True)
def test_a_context_that_cannot_be_written_is_left_out(
    propagator: None, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    message = Message("orders", b"", properties={"a": "b"})
    sent, sending = hooks.active.send(SIDE, message, 1 << 20)
    sending.end(None)
    assert sent == message
    with hooks.active.send_bulk(SIDE, "orders", [b""], {"properties": {"a": "b"}}, 1 << 20) as bulk:
        assert bulk.shared == {"properties": {"a": "b"}}
    assert len(traces.named("send orders")) == 2
    assert "no context is sent" in caplog.text


@pytest.mark.parametrize("propagator", [Broken], indirect=True)
def test_a_context_that_cannot_be_read_is_no_link(
    propagator: None, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    message = stored(b"0", traceparent="00-1-2-01")
    with hooks.active.process(SIDE, [message], several=False, pushed=True):
        pass
    tracer().received(SIDE, "orders", [message], (1, 2))
    assert traces.one("process orders").links == traces.one("receive orders").links == ()
    assert "the context of a message cannot be read: RuntimeError: no extract" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        f"00-{'1' * 32}-{'a' * 16}-01",
        f"00-{'1' * 32}-{'a' * 16}-ff",
        f"00-{'0' * 32}-{'a' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"00-{'1' * 32}-{'A' * 16}-01",
        f"00-{'1' * 32}-{'a' * 16}-01-more",
        f"01-{'1' * 32}-{'a' * 16}-01-more",
        f"ff-{'1' * 32}-{'a' * 16}-01",
        f" 00-{'1' * 32}-{'a' * 16}-01 ",
        f"00-{'1' * 31}-{'a' * 16}-01",
        "hello",
    ],
)
@pytest.mark.parametrize("more", [{}, {"tracestate": "a=b"}, {"baggage": "a=b"}])
def test_a_context_is_read_as_opentelemetry_reads_it(text: str, more: dict[str, str]) -> None:
    properties = {"traceparent": text, **more}
    read = trace.get_current_span(propagate.extract(properties, Context())).get_span_context()
    sender = sender_of(properties)
    assert sender == (read if read.is_valid else None)
    assert sender is None or sender.is_remote


@pytest.mark.parametrize("state", [None, trace.TraceState([("a", "b")])])
@pytest.mark.parametrize("bag", [{}, {"a": "b c"}])
@pytest.mark.parametrize(
    ("trace_id", "span_id", "flags"), [(1, 2, 1), (2**128 - 1, 2**64 - 1, 3), (0, 0, 0), (9, 8, 0)]
)
def test_a_context_is_written_as_opentelemetry_writes_it(
    trace_id: int, span_id: int, flags: int, bag: dict[str, str], state: trace.TraceState | None
) -> None:
    sender = trace.SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(flags), trace_state=state
    )
    span, context = trace.NonRecordingSpan(sender), Context()
    for name, value in bag.items():
        context = baggage.set_baggage(name, value, context)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span, context))
    assert injected(span, context, fields_of(propagate.get_global_textmap())) == carrier


def stored(body: bytes, **properties: str) -> StoredMessage:
    blob = Record(
        body=body,
        topic=b"orders",
        properties=encode_properties({"UNIQ_KEY": "7F00000155A7382098906AE109820000", **properties}),
        born_host=encode_host("10.0.0.1", 5000),
        store_host=encode_host("10.0.0.2", 10911),
    ).encode()
    return StoredMessage(len(blob), 0, blob, "orders")


class Decoded(Exception):
    """The properties of a message were decoded."""


def test_a_message_of_a_span_that_is_not_sampled_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(message: StoredMessage) -> dict[str, str]:
        raise Decoded

    monkeypatch.setattr(StoredMessage, "_property_map", decode)
    message = stored(b"0", traceparent=f"00-{'1' * 32}-{'a' * 16}-01")
    meter = metrics.NoOpMeterProvider().get_meter("test")
    unsampled = Tracer(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"), meter)
    for several in (False, True):
        with unsampled.process(SIDE, [message], several=several, pushed=True):
            pass
    unsampled.received(SIDE, "orders", [message], (1, 2))
    sampled = Tracer(TracerProvider().get_tracer("test"), meter)
    with pytest.raises(Decoded):
        sampled.process(SIDE, [message], several=False, pushed=True)


@pytest.mark.parametrize("body", [b"", b"baggage\x01a=c\x02", bytes(100_000)])
@pytest.mark.parametrize("bag", [{}, {"baggage": "a=b"}])
def test_a_listener_runs_with_the_baggage_of_its_message(traces: Traces, body: bytes, bag: dict[str, str]) -> None:
    with hooks.active.process(SIDE, [stored(body, **bag)], several=False, pushed=True):
        assert baggage.get_all() == ({"a": "b"} if bag else {})


@pytest.mark.parametrize("several", [False, True])
def test_a_damaged_message_has_a_span_without_its_parts(traces: Traces, several: bool) -> None:
    with hooks.active.process(SIDE, [DAMAGED], several=several, pushed=True):
        pass
    tracer().received(SIDE, "", [DAMAGED], (1, 2))
    assert link_to(DAMAGED) is None
    assert context_of(DAMAGED) == Context()
    span = traces.one("process orders")
    assert span.links == ()
    assert span.attributes is not None
    assert "messaging.message.id" not in span.attributes
    assert traces.one("receive orders").links == ()


def test_the_first_end_counts(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    _, sending = hooks.active.send(SIDE, Message("orders", b""), 1 << 20)
    handling = hooks.active.process(SIDE, [DAMAGED], several=False, pushed=False)
    for observed in (sending, handling):
        observed.end(None)
        observed.end(ValueError("late"))
    assert [span.status.status_code for span in traces.all()] == [StatusCode.UNSET] * 2
    assert caplog.text == ""


def test_an_error_is_named_by_its_result_or_class() -> None:
    busy, failed = SystemBusy("wait"), BrokerFailure("no")
    assert error_type_of(busy) == "SYSTEM_BUSY"
    assert error_type_of(ConnectionFailed("gone")) == "ConnectionFailed"
    assert error_type_of(DeliveryFailed({0: busy, 4: SystemBusy("wait")}, [])) == "SYSTEM_BUSY"
    assert error_type_of(DeliveryFailed({0: busy, 4: failed}, [])) == "DeliveryFailed"


def test_a_settlement_is_named_by_the_outcome() -> None:
    outcomes = [None, TryLater(), ValueError(), GiveUp()]
    assert [settlement_of(outcome) for outcome in outcomes] == ["ack", "retry", "retry", "dead"]


def test_a_lost_delivery_has_no_settlement() -> None:
    with traced(settle_spans=True) as traces:
        hooks.active.process(SIDE, [DAMAGED], several=False, pushed=False).end(DeliveryLost("gone"))
    assert [span.name for span in traces.all()] == ["process orders"]


def test_without_opentelemetry_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import flintmq.client.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    said = "ModuleNotFoundError: flintmq.client.otel needs opentelemetry"
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "pip install 'flintmq[otel]'" in done.stderr


class TestProperties:
    def test_a_message_keeps_its_own(self) -> None:
        message = Message("orders", b"1", keys="k", tags="t", properties={"a": "mine"}, sharding_key="s", delay_level=3)
        more = with_properties(message, {"a": "other", "b": "c"}, 1 << 20)
        assert more == Message(
            "orders", b"1", keys="k", tags="t", properties={"a": "mine", "b": "c"}, sharding_key="s", delay_level=3
        )
        assert message.properties == {"a": "mine"}

    def test_one_without_properties_gets_some(self) -> None:
        assert with_properties(Message("orders", b"1", keys="k"), {"b": "c"}, 1 << 20) == Message(
            "orders", b"1", keys="k", properties={"b": "c"}
        )

    @pytest.mark.parametrize("value", ["v" * 31_700, "ä" * 15_850])
    def test_without_room_for_them_there_is_no_copy(self, value: str) -> None:
        assert with_properties(Message("orders", b"1", properties={"a": value}), {"b": "c"}, 1 << 20) is None

    def test_neither_is_there_one_if_the_record_would_be_too_large(self) -> None:
        added = {"b": "c" * 100}
        assert with_properties(Message("orders", bytes(8000)), added, 8192) is None
        assert with_properties(Message("orders", bytes(7000)), added, 8192) is not None
        assert with_properties(Message("orders", bytes(9000)), added, 8192) is not None  # sent only if it is compressed
