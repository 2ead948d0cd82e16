"""Consumer groups with OpenTelemetry: the handling of a message has a span, and its context survives all attempts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

from flintmq.client import (
    Batch,
    ClientClosed,
    Consumer,
    DeliveryLost,
    GiveUp,
    GroupConsumer,
    ListenerTimeout,
    Message,
    MessageSummary,
    Producer,
    PushConsumer,
    StoredMessage,
    TopicNotExist,
    TryLater,
    aio,
)
from flintmq.client.otel import handling
from tests.client_drivers import Clients
from tests.delivery_tools import FIRST, fill, receive
from tests.group_tools import WAIT_SECONDS, Seen, numbered, until
from tests.tracing_tools import Traces, context_of, ids, linked, traced, traceparent

MODES: list[dict[str, Any]] = [FIRST, {"start": "first", "mode": "work"}]
in_both_modes = pytest.mark.parametrize("options", MODES, ids=["clustering", "work"])


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as traces:
        yield traces


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


def dead_letters(address: str, group: str) -> list[MessageSummary]:
    with Consumer(address) as consumer:
        try:
            return list(consumer.browse(f"%DLQ%{group}"))
        except TopicNotExist:
            return []


class TestListener:
    @pytest.mark.parametrize("orderly", [False, True])
    def test_each_message_is_handled_in_a_span_linked_to_its_sender(
        self, address: str, topic: str, traces: Traces, orderly: bool
    ) -> None:
        seen = Seen()
        current: list[int] = []

        def listener(message: StoredMessage) -> None:
            current.append(trace.get_current_span().get_span_context().span_id)
            seen(message)

        with Producer(address) as producer:
            producer.send(Message(topic, b"0", keys="k", tags="t"))
            receipt = producer.send(Message(topic, b"1"))
        group = f"g-{topic}"
        with PushConsumer(address, group, topic, listener, start="first", orderly=orderly, member="m"):
            seen.wait(2)
        sent = traces.named(f"send {topic}")
        spans = traces.wait(f"process {topic}", 2)
        assert sorted(current) == sorted(ids(*spans))
        assert sorted(map(linked, spans)) == sorted([each] for each in ids(*sent))
        assert {span.kind for span in spans} == {trace.SpanKind.CONSUMER}
        assert [span.parent for span in spans] == [None, None]
        (second,) = [span for span in spans if attribute(span, "messaging.message.id") == receipt.message_id]
        host, _, port = address.rpartition(":")
        assert second.attributes == {
            "messaging.system": "flintmq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(receipt.queue),
            "messaging.consumer.group.name": group,
            "messaging.client.id": "m",
            "messaging.message.id": receipt.message_id,
            "messaging.flintmq.message.queue_offset": receipt.queue_offset,
            "messaging.flintmq.message.reconsume_times": 0,
            "server.address": host,
            "server.port": int(port),
        }

    async def test_an_asynchronous_listener_runs_in_the_span(self, address: str, topic: str, traces: Traces) -> None:
        handled = threading.Semaphore(0)
        inner: list[trace.SpanContext] = []

        async def listener(message: StoredMessage) -> None:
            inner.append(trace.get_current_span().get_span_context())
            handled.release()

        def plain(message: StoredMessage) -> Awaitable[None]:
            return listener(message)

        async with aio.Producer(address) as producer:
            await producer.send(Message(topic, b"0"))
        for call in (listener, plain):
            async with aio.PushConsumer(address, f"{call.__name__}-{topic}", topic, call, start="first"):
                assert await asyncio.to_thread(handled.acquire, timeout=WAIT_SECONDS)
        assert inner == [span.get_span_context() for span in traces.wait(f"process {topic}", 2)]

    def test_a_batch_has_one_span_with_a_link_to_each_sender(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        seen: list[int] = []
        with clients.Producer(address) as producer:
            for message in numbered(topic, 5):
                producer.send(message, queue=0)
            producer.send_bulk(topic, [b"5", b"6"], queue=0)

        def listener(batch: Batch) -> None:
            seen.append(len(batch))

        options: dict[str, Any] = {"batch": 100, "start": "first"}
        with clients.PushConsumer(address, f"g-{topic}", topic, listener, **options):
            until(lambda: sum(seen) == 7, "all messages")
        spans = traces.wait(f"process {topic}", len(seen))
        assert [attribute(span, "messaging.batch.message_count") for span in spans] == seen
        assert [link for span in spans for link in linked(span)] == ids(*traces.named(f"send {topic}"))
        assert all(attribute(span, "messaging.message.id") is None for span in spans)

    def test_the_context_stays_across_retries_and_in_the_dead_letter(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        tries: list[int] = []

        def listener(message: StoredMessage) -> None:
            tries.append(message.reconsume_times)
            raise ValueError("no such account")

        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"0"))
        group = f"g-{topic}"
        options: dict[str, Any] = {"start": "first", "delay_level": 1, "retry_times_max": 1}
        with clients.PushConsumer(address, group, topic, listener, **options):
            until(lambda: dead_letters(address, group) != [], "the dead letter")
        (sent,) = traces.named(f"send {topic}")
        first, second = traces.wait(f"process {topic}", 2)
        assert tries == [0, 1]
        for number, span in enumerate((first, second)):
            assert linked(span) == ids(sent)
            assert attribute(span, "messaging.destination.name") == topic
            assert attribute(span, "messaging.flintmq.message.reconsume_times") == number
            assert attribute(span, "error.type") == "ValueError"
            assert span.status.description == "no such account"
        assert attribute(second, "messaging.destination.partition.id") is None  # that of the retry topic says nothing
        (letter,) = dead_letters(address, group)
        assert letter.properties["traceparent"] == traceparent(sent)

    def test_each_attempt_in_order_has_a_span(self, clients: Clients, address: str, topic: str, traces: Traces) -> None:
        seen = Seen()

        def listener(message: StoredMessage) -> None:
            seen(message)
            if len(seen.messages) < 3:
                raise TryLater

        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"0"))
        with clients.PushConsumer(address, f"g-{topic}", topic, listener, start="first", orderly=True, suspend=0.01):
            seen.wait(3)
        spans = traces.wait(f"process {topic}", 3)
        assert [attribute(span, "error.type") for span in spans] == ["TryLater", "TryLater", None]
        assert [span.events for span in spans] == [(), (), ()]  # that a listener asks for a retry is not an exception

    def test_a_listener_can_be_a_child_of_the_sender(self, address: str, topic: str) -> None:
        seen = Seen()
        with traced(process_parent=True) as traces:
            with Producer(address) as producer:
                producer.send(Message(topic, b"0"))
            with PushConsumer(address, f"g-{topic}", topic, seen, start="first"):
                seen.wait(1)
            (span,) = traces.wait(f"process {topic}")
            assert span.parent is not None
            assert [span.parent.span_id] == ids(traces.one(f"send {topic}"))
            assert span.links == ()

    def test_the_baggage_of_a_message_is_that_of_its_handling(self, address: str, topic: str, traces: Traces) -> None:
        found: list[object] = []

        def listener(message: StoredMessage) -> None:
            found.append(baggage.get_baggage("user"))

        token = context.attach(baggage.set_baggage("user", "u1"))
        with Producer(address) as producer:
            producer.send(Message(topic, b"0"))
        context.detach(token)
        with PushConsumer(address, f"g-{topic}", topic, listener, start="first"):
            until(lambda: found == ["u1"], "the message")

    def test_metrics_measure_the_listener(self, address: str, topic: str, traces: Traces) -> None:
        def listener(message: StoredMessage) -> None:
            if message.body == b"0":
                raise GiveUp

        with Producer(address) as producer:
            producer.send_many(numbered(topic, 4))
        with PushConsumer(address, f"g-{topic}", topic, listener, start="first"):
            traces.wait(f"process {topic}", 4)
        counts = {
            point.attributes.get("error.type"): point.count for point in traces.points("messaging.process.duration")
        }
        assert counts == {None: 3, "GiveUp": 1}
        (consumed,) = traces.points("messaging.client.consumed.messages")
        assert consumed.value == 4
        assert consumed.attributes["messaging.consumer.group.name"] == f"g-{topic}"


class TestDelivery:
    @in_both_modes
    def test_its_span_lasts_until_it_is_settled(
        self, clients: Clients, address: str, topic: str, options: dict[str, Any]
    ) -> None:
        fill(address, topic, 0)
        with traced(settle_spans=True) as traces:
            with clients.Producer(address) as producer:
                producer.send_many(numbered(topic, 3), queue=0)
            with clients.GroupConsumer(address, f"g-{topic}", topic, **options) as consumer:
                first, second, third = receive(consumer, 3)
                assert traces.named(f"process {topic}") == []
                first.ack()
                first.retry()  # the first outcome counts
                second.retry(1, "later")
                third.dead("no such account")
            (sent,) = traces.named(f"send {topic}")
            received = traces.named(f"receive {topic}")
            spans = traces.wait(f"process {topic}", 3)
        assert sum(attribute(span, "messaging.batch.message_count") for span in received) == 3  # type: ignore[misc]  # it is an int
        assert [linked(span) for span in received] == [ids(sent)] * len(received)
        assert [attribute(span, "error.type") for span in spans] == [None, "TryLater", "GiveUp"]
        assert [span.status.description for span in spans] == [None, "later", "no such account"]
        assert [linked(span) for span in spans] == [ids(sent)] * 3
        settled = [span for span in traces.all() if attribute(span, "messaging.operation.type") == "settle"]
        assert [span.name for span in settled] == [f"ack {topic}", f"retry {topic}", f"dead {topic}"]

    @in_both_modes
    def test_a_message_that_comes_again_is_linked_to_its_sender(
        self, clients: Clients, address: str, topic: str, traces: Traces, options: dict[str, Any]
    ) -> None:
        with clients.Producer(address) as producer:
            producer.send(Message(topic, b"0"))
        group = f"g-{topic}"
        with clients.GroupConsumer(address, group, topic, **options) as consumer:
            receive(consumer, 1)[0].retry(1)
            receive(consumer, 1)[0].dead()
            until(lambda: dead_letters(address, group) != [], "the dead letter")
        (sent,) = traces.named(f"send {topic}")
        spans = traces.wait(f"process {topic}", 2)
        assert [linked(span) for span in spans] == [ids(sent)] * 2
        assert [attribute(span, "messaging.flintmq.message.reconsume_times") for span in spans] == [0, 1]
        assert len(traces.named(f"receive {topic}")) == 2
        (letter,) = dead_letters(address, group)
        assert letter.properties["traceparent"] == traceparent(sent)

    @in_both_modes
    def test_a_message_that_was_not_handed_out_has_no_span(
        self, clients: Clients, address: str, topic: str, traces: Traces, options: dict[str, Any]
    ) -> None:
        fill(address, topic, 10)
        options = {**options, "prefetch_messages": 10}
        with clients.GroupConsumer(address, f"g-{topic}", topic, **options) as consumer:
            (delivery,) = receive(consumer, 1)
            until(lambda: consumer.health().pending_messages >= 10, "the others being prefetched")
            delivery.ack()
        assert attribute(traces.one(f"receive {topic}"), "messaging.batch.message_count") == 1
        assert len(traces.named(f"process {topic}")) == 1

    def test_a_receiver_that_hears_of_the_end_has_no_span(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        consumer = clients.GroupConsumer(address, f"g-{topic}", topic).start()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.receive)
            consumer.close()
            with pytest.raises(ClientClosed):
                waiting.result(WAIT_SECONDS)
        assert traces.all() == []

    def test_the_code_of_the_application_can_run_in_its_span(
        self, clients: Clients, address: str, topic: str, traces: Traces
    ) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, f"g-{topic}", topic, **FIRST) as consumer:
            (delivery,) = receive(consumer, 1)
            with handling(delivery):
                traces.tracer.start_span("insert").end()
            delivery.ack()
        (span,) = traces.wait(f"process {topic}")
        assert traces.one("insert").parent == context_of(span)
        assert not trace.get_current_span().get_span_context().is_valid

    def test_without_a_trace_the_code_runs_too(self, address: str, topic: str) -> None:
        fill(address, topic, 1)
        with GroupConsumer(address, f"g-{topic}", topic, **FIRST) as consumer:
            (delivery,) = receive(consumer, 1)
            with handling(delivery):
                assert not trace.get_current_span().get_span_context().is_valid
            delivery.ack()

    @in_both_modes
    def test_a_lost_delivery_ends_with_its_loss(
        self, clients: Clients, address: str, topic: str, traces: Traces, options: dict[str, Any]
    ) -> None:
        fill(address, topic, 2)
        consumer = clients.GroupConsumer(address, f"g-{topic}", topic, **options).start()
        first, second = receive(consumer, 2)
        first.ack()
        with pytest.raises(ListenerTimeout):
            consumer.close(timeout=0)
        spans = traces.wait(f"process {topic}", 2)
        assert [attribute(span, "error.type") for span in spans] == [None, "DeliveryLost"]
        with pytest.raises(DeliveryLost):
            second.ack()
        assert len(traces.named(f"process {topic}")) == 2

    @pytest.mark.parametrize(
        "options",
        [{**FIRST, "listener_timeout": 0.2}, {**MODES[1], "lease": 0.2, "auto_renew": False}],
        ids=["listener_timeout", "lease"],
    )
    def test_so_does_one_that_was_open_for_too_long(
        self, clients: Clients, address: str, topic: str, traces: Traces, options: dict[str, Any]
    ) -> None:
        fill(address, topic, 1)
        with clients.GroupConsumer(address, f"g-{topic}", topic, **options) as consumer:
            (delivery,) = receive(consumer, 1)
            (span,) = traces.wait(f"process {topic}")
            assert attribute(span, "error.type") == "DeliveryLost"
            assert delivery.lost
