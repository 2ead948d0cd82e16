"""The clients with OpenTelemetry: spans of what they send and receive, and the context in messages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

from flintmq.client import (
    Admin,
    Consumer,
    DeliveryFailed,
    InvalidMessage,
    InvalidMessageType,
    Message,
    MessageIllegal,
    Outcome,
    Producer,
    StoredMessage,
    TransactionProducer,
)
from flintmq.client.core import hooks
from flintmq.client.otel import FlintMQInstrumentor, context_of, link_to
from flintmq.testing.started_broker import broker_environment
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import RunningBroker
from tests.console_tools import console_of
from tests.group_tools import numbered, until
from tests.tracing_tools import Traces, ids, linked, traced, traceparent

LIMIT_BYTES = 512 * 1024
"""Largest record that the brokers of the tests accept."""


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as traces:
        yield traces


def stored(address: str, topic: str) -> list[StoredMessage]:
    """Return all messages of a topic, in the order of their bodies, read without a trace."""
    active = hooks.active
    hooks.install(None)
    try:
        with Consumer(address) as consumer:
            return sorted(consumer.iter(topic, until="latest"), key=lambda message: message.body)
    finally:
        hooks.install(active)


def parents(messages: list[StoredMessage]) -> list[str | None]:
    return [message.user_properties.get("traceparent") for message in messages]


class TestSend:
    def test_a_send_has_a_span_whose_context_is_in_the_message(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        with clients.Producer(address, client_name="shop") as producer, traces.tracer.start_as_current_span("order"):
            receipt = producer.send(Message(topic, b"1", keys=["a", "b"], tags="eu", properties={"x": "y"}))
        span = traces.one(f"send {topic}")
        (message,) = stored(address, topic)
        assert message.user_properties == {"x": "y", "traceparent": traceparent(span)}
        assert span.kind is trace.SpanKind.PRODUCER
        assert span.parent == traces.one("order").get_span_context()
        assert span.status.status_code is trace.StatusCode.UNSET
        host, _, port = address.rpartition(":")
        assert span.attributes == {
            "messaging.system": "flintmq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(receipt.queue),
            "messaging.client.id": "shop",
            "messaging.message.id": receipt.message_id,
            "messaging.flintmq.message.keys": ("a", "b"),
            "messaging.flintmq.message.tag": "eu",
            "server.address": host,
            "server.port": int(port),
        }

    def test_a_delayed_message_names_its_level(self, producer: Producer, topic: str, traces: Traces) -> None:
        producer.send(Message(topic, b"1", delay_level=1))
        attributes = traces.one(f"send {topic}").attributes
        assert attributes is not None
        assert attributes["messaging.flintmq.message.delay_level"] == 1

    def test_an_asynchronous_send_ends_with_its_acknowledgement(
        self, producer: Producer, address: str, topic: str, traces: Traces
    ) -> None:
        futures = [producer.send_async(message) for message in numbered(topic, 20)]
        receipts = [future.result() for future in futures]
        spans = traces.wait(f"send {topic}", 20)
        assert {span.attributes["messaging.message.id"] for span in spans if span.attributes} == {
            receipt.message_id for receipt in receipts
        }
        assert set(parents(stored(address, topic))) == set(map(traceparent, spans))

    def test_a_failed_send_has_the_name_of_the_result(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        with clients.Producer(address, compress_over=None) as producer:
            too_long = Message(topic, bytes(LIMIT_BYTES))
            with pytest.raises(MessageIllegal):
                producer.send(too_long)
            with pytest.raises(MessageIllegal):
                producer.send_async(too_long).result()
            with pytest.raises(DeliveryFailed):
                producer.send_many([too_long])
            with pytest.raises(DeliveryFailed):
                producer.send_bulk(topic, [too_long.body])
        for span in traces.wait(f"send {topic}", 4):
            assert span.status.status_code is trace.StatusCode.ERROR
            assert span.attributes is not None
            assert span.attributes["error.type"] == "MESSAGE_ILLEGAL"
            assert [event.name for event in span.events] == ["exception"]

    def test_many_messages_share_the_span_of_their_call(
        self, producer: Producer, address: str, topic: str, traces: Traces
    ) -> None:
        producer.send_many(numbered(topic, 3, keys="k"))
        (span,) = traces.named(f"send {topic}")
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == 3
        assert "messaging.message.id" not in span.attributes
        messages = stored(address, topic)
        assert parents(messages) == [traceparent(span)] * 3
        assert [message.keys for message in messages] == [("k",)] * 3

    def test_a_bulk_has_one_context_beside_its_properties(
        self, producer: Producer, address: str, topic: str, traces: Traces
    ) -> None:
        producer.send_bulk(topic, [b"0", b"1", b"2"], keys=["a", None, "c"], tags="t", properties={"x": "y"})
        (span,) = traces.named(f"send {topic}")
        messages = stored(address, topic)
        expected = {"x": "y", "traceparent": traceparent(span)}
        assert [message.user_properties for message in messages] == [expected] * 3
        assert [message.keys for message in messages] == [("a",), (), ("c",)]

    def test_messages_to_several_topics_have_a_span_without_a_topic(
        self, producer: Producer, topic: str, traces: Traces
    ) -> None:
        producer.send_many([Message(topic, b"0"), Message(f"{topic}-b", b"1")])
        span = traces.one("send")
        assert span.attributes is not None
        assert "messaging.destination.name" not in span.attributes

    def test_the_rows_of_a_data_frame_have_the_context_of_their_call(
        self, address: str, topic: str, traces: Traces
    ) -> None:
        polars = pytest.importorskip("polars")
        with Producer(address) as producer:
            assert producer.send_arrow(topic, polars.DataFrame({"body": [b"0", b"1"]})) == 2
        assert parents(stored(address, topic)) == [traceparent(traces.one(f"send {topic}"))] * 2

    def test_a_half_message_keeps_its_context_when_it_is_committed(
        self, address: str, topic: str, traces: Traces
    ) -> None:
        with TransactionProducer(address, topic, lambda _: Outcome.UNKNOWN) as producer:
            producer.send_half(Message(topic, b"1")).commit()
        until(lambda: parents(stored(address, topic)) == [traceparent(traces.one(f"send {topic}"))], "the commit")


class TestContext:
    def test_a_context_that_the_application_has_set_stays_and_is_linked(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        theirs = "00-11111111111111111111111111111111-2222222222222222-01"
        own = {"traceparent": theirs}
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"0", properties=own))
            producer.send_bulk(topic, [b"1"], properties=own)
            producer.send_many([Message(topic, b"2", properties=own), Message(topic, b"3")])
        spans = traces.named(f"send {topic}")
        assert parents(stored(address, topic)) == [theirs] * 3 + [traceparent(spans[2])]
        assert [linked(span) for span in spans] == [[0x2222222222222222]] * 3

    def test_a_stored_message_that_is_sent_again_keeps_its_context(
        self, producer: Producer, address: str, topic: str, traces: Traces
    ) -> None:
        producer.send(Message(topic, b"0"))
        (first,) = stored(address, topic)
        producer.send(Message.again(first))
        original, again = traces.named(f"send {topic}")
        assert parents(stored(address, topic)) == [traceparent(original)] * 2
        assert linked(again) == ids(original)

    def test_state_and_baggage_travel_too(self, producer: Producer, address: str, topic: str, traces: Traces) -> None:
        state = trace.TraceState([("shop", "eu")])
        remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state)
        carried = baggage.set_baggage("user", "ä 1", trace.set_span_in_context(trace.NonRecordingSpan(remote)))
        token = context.attach(carried)
        producer.send(Message(topic, b"0"))
        context.detach(token)
        (message,) = stored(address, topic)
        assert message.user_properties["tracestate"] == "shop=eu"
        assert baggage.get_baggage("user", context_of(message)) == "ä 1"
        link = link_to(message)
        assert link is not None
        assert [link.context.span_id] == ids(traces.one(f"send {topic}"))

    def test_baggage_that_does_not_fit_is_left_out(
        self, producer: Producer, address: str, topic: str, traces: Traces
    ) -> None:
        token = context.attach(baggage.set_baggage("long", "x" * 32_000))
        producer.send(Message(topic, b"0"))
        producer.send_bulk(topic, [b"1"])
        producer.send_many([Message(topic, b"2")])
        context.detach(token)
        messages = stored(address, topic)
        assert parents(messages) == list(map(traceparent, traces.named(f"send {topic}")))
        assert not any("baggage" in message.user_properties for message in messages)

    @pytest.mark.parametrize("way", ["send", "many", "bulk"])
    def test_no_message_fails_for_its_context(self, address: str, topic: str, way: str) -> None:
        """The broker accepts everything with a trace that it accepts without one, up to the last byte."""
        with Producer(address, compress_over=None) as producer:

            def accepted(body: bytes, properties: dict[str, str]) -> bool:
                try:
                    if way == "send":
                        producer.send(Message(topic, body, properties=properties))
                    elif way == "many":
                        producer.send_many([Message(topic, body, properties=properties)])
                    else:
                        producer.send_bulk(topic, [body], properties=properties)
                except (DeliveryFailed, InvalidMessage, MessageIllegal):
                    return False
                return True

            producer.send(Message(topic, b""))
            sizes = [(LIMIT_BYTES - missing, 1) for missing in range(0, 900, 29)]
            sizes += [(1, 31_743 - missing) for missing in range(0, 900, 29)]
            cases = [(os.urandom(body), {"p": "v" * size}) for body, size in sizes]
            without = [accepted(*case) for case in cases]
            with traced():
                assert [accepted(*case) for case in cases] == without
        assert any(without)
        assert not all(without)

    def test_arguments_that_are_not_valid_are_refused_as_without_a_trace(
        self, producer: Producer, topic: str, traces: Traces
    ) -> None:
        with pytest.raises(InvalidMessageType, match="must be a flintmq"):
            producer.send("hello")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(InvalidMessageType, match="must be a flintmq"):
            producer.send_async(b"hello")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(InvalidMessageType, match="several messages"):
            producer.send_many(Message(topic, b""))  # type: ignore[arg-type]  # on purpose
        with pytest.raises(InvalidMessageType, match="the topic must be a str"):
            producer.send_bulk(7, [b""])  # type: ignore[arg-type]  # on purpose
        with pytest.raises(InvalidMessageType, match="property 'a' must be a str"):
            producer.send_bulk(topic, [b""], properties={"a": 1})  # type: ignore[dict-item]  # on purpose
        assert producer.send_many([]) == []


class TestReceive:
    def test_a_pull_is_linked_to_the_senders(self, clients: Clients, address: str, topic: str, traces: Traces) -> None:
        with clients.Producer(address) as producer, clients.Consumer(address, client_name="reader") as consumer:
            producer.send(Message(topic, b"0"), queue=1)
            producer.send_many(numbered(topic, 2), queue=1)
            assert len(consumer.pull(topic, 1)) == 3
            assert len(consumer.pull(topic, 1, 3)) == 0
        span = traces.one(f"receive {topic}")  # none for the empty batch
        assert linked(span) == ids(*traces.named(f"send {topic}"))
        assert span.kind is trace.SpanKind.CLIENT
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == 3
        assert span.attributes["messaging.client.id"] == "reader"

    def test_a_failed_pull_has_the_name_of_the_result(self, consumer: Consumer, topic: str, traces: Traces) -> None:
        with pytest.raises(Exception, match=topic):
            consumer.pull(topic)
        span = traces.one(f"receive {topic}")
        assert span.attributes is not None
        assert span.attributes["error.type"] == "TOPIC_NOT_EXIST"

    def test_an_iteration_shows_what_the_application_took(self, address: str, topic: str, traces: Traces) -> None:
        with Producer(address) as producer, Consumer(address) as consumer:
            for message in numbered(topic, 10):
                producer.send(message, queue=0)
            iteration = consumer.iter(topic)
            taken = [next(iteration) for _ in range(3)]
            iteration.close()
        span = traces.one(f"receive {topic}")
        assert linked(span) == ids(*traces.named(f"send {topic}")[: len(taken)])

    async def test_so_does_an_asynchronous_iteration(self, address: str, topic: str, traces: Traces) -> None:
        from flintmq.client import aio

        async with aio.Producer(address) as producer, aio.Consumer(address) as consumer:
            for message in numbered(topic, 10):
                await producer.send(message, queue=0)
            iteration = consumer.iter(topic)
            taken = [await anext(iteration) for _ in range(3)]
            await iteration.aclose()
        span = traces.one(f"receive {topic}")
        assert linked(span) == ids(*traces.named(f"send {topic}")[: len(taken)])

    def test_a_span_has_at_most_128_links(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        with traced() as traces:
            for future in [producer.send_async(message, queue=0) for message in numbered(topic, 130)]:
                future.result()
            assert len(consumer.pull(topic)) == 130
        assert len(traces.one(f"receive {topic}").links) == 128


class TestOptions:
    def test_each_message_of_a_call_can_have_a_span(self, producer: Producer, address: str, topic: str) -> None:
        with traced(create_spans=True) as traces:
            producer.send_many(numbered(topic, 3))
            producer.send(Message(topic, b"3"))
        created = traces.named(f"create {topic}")
        assert {span.kind for span in created} == {trace.SpanKind.PRODUCER}
        assert parents(stored(address, topic)) == list(map(traceparent, created))
        many, single = traces.named(f"send {topic}")
        assert {many.kind, single.kind} == {trace.SpanKind.CLIENT}
        assert linked(many) == ids(*created[:3])
        assert linked(single) == ids(created[3])

    def test_after_uninstrument_nothing_is_traced(self, producer: Producer, address: str, topic: str) -> None:
        with traced() as traces:
            pass
        assert type(hooks.active) is hooks.Hooks
        producer.send(Message(topic, b"0"))
        assert parents(stored(address, topic)) == [None]
        assert traces.all() == []


def test_metrics_count_messages_and_measure_operations(
    clients: Clients, address: str, topic: str, traces: Traces
) -> None:
    with clients.Producer(address) as producer, clients.Consumer(address) as consumer:
        producer.send(Message(topic, b"0"), queue=0)
        producer.send_bulk(topic, [b"1", b"2"], queue=0)
        with pytest.raises(MessageIllegal):
            producer.send(Message(topic, os.urandom(LIMIT_BYTES)), queue=0)
        assert len(consumer.pull(topic)) == 3
    (sent,) = [
        point for point in traces.points("messaging.client.sent.messages") if "error.type" not in point.attributes
    ]
    host, _, port = address.rpartition(":")
    assert sent.value == 3
    assert sent.attributes == {
        "messaging.system": "flintmq",
        "messaging.operation.name": "send",
        "messaging.destination.name": topic,
        "server.address": host,
        "server.port": int(port),
    }
    (consumed,) = traces.points("messaging.client.consumed.messages")
    assert consumed.value == 3
    durations = {
        (point.attributes["messaging.operation.name"], point.attributes.get("error.type")): point.count
        for point in traces.points("messaging.client.operation.duration")
    }
    assert durations == {("send", None): 2, ("send", "MESSAGE_ILLEGAL"): 1, ("receive", None): 1}


def test_the_addresses_of_a_span_are_those_of_the_broker_that_answered(
    address: str, topic: str, traces: Traces
) -> None:
    with Producer(["127.0.0.1:1", address]) as producer:
        producer.send(Message(topic, b"0"))
        producer.send(Message(topic, b"1"))

    def port(span: ReadableSpan) -> object:
        assert span.attributes is not None
        return span.attributes["server.port"]

    assert port(traces.named(f"send {topic}")[1]) == int(address.rpartition(":")[2])


def test_admins_and_their_calls_have_no_spans(address: str, traces: Traces) -> None:
    with Admin(address) as admin:
        admin.topics()
    assert traces.all() == []


def test_people_see_the_context_of_a_message(
    shared_broker: RunningBroker, topic: str, traces: Traces, tmp_path: Path
) -> None:
    with Producer(shared_broker.address) as producer:
        receipt = producer.send(Message(topic, b"0", keys="k"))
    expected = traceparent(traces.one(f"send {topic}"))
    with Cli(tmp_path, shared_broker.address) as cli:
        (row,) = cli.run("query", "key", topic, "k", "-o", "json").rows
        assert row["properties"]["traceparent"] == expected
    with console_of(shared_broker) as page:
        place = f"{receipt.queue}/{receipt.queue_offset}"
        assert expected in page.get(f"/topics/{topic}/{place}").text


PROGRAM = """
import sys
from flintmq.client import Message, Producer

with Producer(sys.argv[1]) as producer:
    producer.send(Message(sys.argv[2], b"0"))
"""


def test_opentelemetry_instrument_traces_a_program_that_knows_nothing_of_it(address: str, topic: str) -> None:
    (found,) = entry_points(group="opentelemetry_instrumentor", name="flintmq")
    assert found.load() is FlintMQInstrumentor
    instrument = str(Path(sys.executable).parent / "opentelemetry-instrument")
    command = [instrument, sys.executable, "-c", PROGRAM, address, topic]
    environment = broker_environment(OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    (parent,) = parents(stored(address, topic))
    assert parent is not None
    assert parent.startswith("00-")
