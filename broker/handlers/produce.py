"""PRODUCE: append the messages of one frame, and acknowledge them when the flush policy is met."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import GROUP, PUBLISH, Need
from ...protocol.commands import PRODUCE, EmptyAnswer, ProduceRequest
from ...protocol.errors import (
    InvalidParameter,
    LimitReached,
    MessageIllegal,
    NoPermission,
    QueueNotExist,
    SystemBusy,
    TopicNotExist,
)
from ...protocol.fields import decode_fields
from ...protocol.frames import FRAME_LENGTH_BYTES, REQUEST, encode_produce_answer
from ...protocol.names import check_name, is_system_topic, may_produce_to
from ...protocol.storage.delivery import HALF_TOPIC, PREPARED_TOPIC
from ...protocol.storage.record import encode_properties
from ..background.loop_work import called_back
from ..config import BUSY_RETRY_AFTER_MS, PRODUCE_MESSAGES_MAX
from ..delivery.routing import delay_of, half_request, route
from ..delivery.topic_changes import topic_values
from ..store import ProduceBatch, TopicConfig, WouldBlock, check_count, common_properties
from .transactions import FLUSHES, append_half_messages, append_staged, check_staged

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ..delivery.deduplication import StoredBefore
    from ..delivery.routing import Route
    from ..requests.broker import Broker
    from ..requests.request import Request
    from ..store import Appended, Places


# ---- Duplicate PRODUCE frames: the broker sends the first response again and writes nothing.
#
# The stored messages may not be on disk yet, or not dispatched to the queue that knows their physical
# offsets. Until they are, the connection handles nothing more, because PRODUCE frames are answered in order.


def answer_again(request: Request, params: ProduceRequest, before: StoredBefore, send: SendContext) -> None:
    """Send a duplicate its first response, in order, once its messages are as safe as the flush policy demands.

    A one-way frame needs none of this. Raises ``MessageNotFound`` if the messages have expired, and ``MessageIllegal``
    if the body is too short for its number of messages.
    """
    broker = request.broker
    check_count(params.count, params.layout, request.frame.body_end - request.frame.body_at)
    broker.counters.duplicates += 1
    if request.frame.kind != REQUEST:
        request.respond(EmptyAnswer())
        return
    Duplicate(request, params, before, send).begin()


class Duplicate:
    """A duplicate, from its detection to its response. Runs on the loop, except reads from the disk."""

    def __init__(self, request: Request, params: ProduceRequest, before: StoredBefore, send: SendContext) -> None:
        self._send = send
        self._request = request
        self._broker = broker = request.broker
        self._params = params
        self._before = before
        self._written = broker.store.write_offset
        """The messages are stored before this physical offset."""

    def begin(self) -> None:
        """Answer now if that is possible; otherwise let the connection wait for it."""
        if self.is_dispatched():
            try:
                places = self.places(hot=True)
            except WouldBlock:
                pass
            else:
                self.answer(places)
                return
        self._request.wait_in_order(self._late_places(), self.answer)

    def is_dispatched(self) -> bool:
        """Return whether the messages have been dispatched, after dispatching what is due."""
        if not self._has_units():
            self._broker.dispatch.is_done()  # called because it dispatches what is due
        return self._has_units()

    def _has_units(self) -> bool:
        before = self._before
        queue = self._broker.store.queues.get(before.topic, before.queue)
        return queue is not None and queue.max_offset >= before.queue_offset + self._params.count

    def places(self, *, hot: bool) -> Places:
        """Return the physical offsets of the messages. Callable from any thread."""
        before = self._before
        return self._broker.store.producer_runs.places(
            before.topic, before.queue, before.queue_offset, self._params.count, hot=hot
        )

    async def _late_places(self) -> Places:
        """Return the physical offsets of the messages after the flush, the dispatch and a read from the disk.

        Raises ``SystemBusy`` if dispatch is behind, or the error of a failed flush.
        """
        broker = self._broker
        while not self.is_dispatched():
            if broker.store.dispatchable_offset < self._written:
                await called_back(partial(broker.flush.wait_for, self._written))
                continue
            await called_back(broker.dispatch.when_done)
            if not self._has_units():
                raise SystemBusy(
                    "the frame was stored before, but its physical offsets are not known yet because dispatch is "
                    "behind; try again later",
                    retry_after_ms=BUSY_RETRY_AFTER_MS,
                )
        return await self._request.in_reader(partial(self.places, hot=False))

    def answer(self, places: Places) -> None:
        request, before = self._request, self._before
        offsets = places.physical_offsets
        request_id = request.frame.request_id
        answer = self._send.encode_stored(request, places.queue, before.queue_offset, places.store_ms, offsets)
        # A frame may ask for more than the flush policy, and then its messages may not be on disk yet.
        if self._params.flush == "sync" and self._broker.store.acknowledged_offset < places.end_offset:
            request.responses.send_when_flushed(request_id, request.source.frame_bytes, answer, places.end_offset)
            self._broker.dispatch.appended()  # wakes the flush, which may be asleep because nothing was appended
            return
        request.responses.written += 1
        request.responses.send_in_order(answer)


class SendContext:
    """The part of a send that depends on the protocol: FlintMQ's own, and the base for the gateway's."""

    __slots__ = ()

    def encode_stored(
        self, request: Request, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray
    ) -> bytes:
        """Return the encoded response. ``physical_offsets``: count × i64."""
        return encode_produce_answer(request.frame.request_id, queue, queue_offset, store_ms, physical_offsets)

    def batch(self, request: Request, params: ProduceRequest, common: bytes) -> ProduceBatch:
        """Return the messages as the store takes them. ``common``: their encoded common properties."""
        frame = request.frame
        return ProduceBatch(
            # By position, because this runs for every frame and keyword arguments would double the cost of the call.
            frame.buffer,
            frame.body_at,
            frame.body_end,
            params.count,
            params.layout,
            common,
            params.sys_flag,
            params.unique_prefix.encode(),
            params.unique_first,
            params.born_ms,
            request.peer.born_host,
        )

    def queues_to_write(self, topic: TopicConfig) -> int:
        """Return the number of queues of a topic that the client may choose from."""
        return topic.write_queues

    def new_topic(self, broker: Broker, name: str) -> TopicConfig:
        """Return the topic to create for a message to an unknown topic. Raises if the broker does not create it."""
        if is_system_topic(name):
            raise NoPermission(f"topic {name} is a system topic of the broker; produce to another topic")
        if not broker.auto_create:
            setting = str(broker.settings.topics.auto_create).lower()
            because = ", and it listens beyond loopback" if setting == "loopback" else ""
            raise TopicNotExist(
                f"topic {name} does not exist, and this broker does not create topics automatically "
                f"(topics.auto_create is {setting}{because}): create it with `flintmq topic create {name}` or "
                "Admin.create_topic, or allow automatic creation with `flintmq config set topics.auto_create=true`"
            )
        queues = broker.settings.topics.default_queues
        return TopicConfig(name=name, read_queues=queues, write_queues=queues)


NATIVE = SendContext()


def produce(request: Request) -> None:
    """Append the frame's messages, all or none, and respond in the order of the connection's PRODUCE frames."""
    append_frame(request, decode_fields(ProduceRequest, request.frame.fields))


def append_frame(request: Request, params: ProduceRequest, send: SendContext = NATIVE) -> None:
    """Append the messages in the body of the request's frame; ``params``: its decoded header."""
    broker = request.broker
    name = params.topic
    check_load(request)
    if params.count > PRODUCE_MESSAGES_MAX:
        raise MessageIllegal(
            f"the PRODUCE frame has {params.count} messages, but the maximum is {PRODUCE_MESSAGES_MAX}; split it",
            produce_messages_max=PRODUCE_MESSAGES_MAX,
        )
    if params.flush not in FLUSHES:
        raise InvalidParameter(f"flush must be sync, async or empty, not {params.flush!r}")
    if not may_produce_to(name):
        raise NoPermission(f"topic {name} is a system topic of the broker; produce to another topic")

    # The kind of the messages, and whether the user may send such.
    half = half_request(params.common) if params.common else None
    if half is not None and request.peer.access is not None:
        request.peer.access.check(Need((PUBLISH,), GROUP, half.group))
    if params.prepare:
        check_staged(request, broker.staged, params, half is not None)
    topic = broker.store.topics.get(name)
    if topic is None or name in broker.topic_changes.pending:
        _wait_for_topic(request, params, send)
        return
    # Before the checks below: a duplicate gets its first response even if its topic is no longer writable.
    if params.unique_prefix:
        before = broker.sequences.find(params.unique_prefix, name, params.unique_first, params.count)
        if before is not None:
            answer_again(request, params, before, send)
            return

    # The queue for all messages of the frame, even if they wait elsewhere first.
    queue = params.queue
    if queue < 0:
        queue = broker.next_queues.take(name, topic.write_queues)
    elif queue >= (queues := send.queues_to_write(topic)):
        raise _no_such_queue(params, queues)
    if not topic.writable:
        raise NoPermission(f"topic {name} is not writable (perm {topic.perm}); add 2 to its perm to allow writing")
    # Messages that wait for something go to a system topic; the response still names the queue from above.
    if params.prepare:
        appended = append_staged(request, params, queue)
        if appended is not None:
            acknowledge(request, params, send, queue, PREPARED_TOPIC, 0, appended, flush=False)
        return
    if half is not None:
        appended = append_half_messages(request, params, half, queue)
        if appended is not None:
            acknowledge(request, params, send, 0, HALF_TOPIC, 0, appended)
        return
    passed = b""
    if params.common and (delay := delay_of(params.common)) is not None:
        waits = route(delay, name, queue, broker.delays.now_ms(), broker.settings.delivery.delay_max_days)
        if waits is not None:
            append_waiting(request, params, queue, waits, send)
            return
        # They are due already: they go to their topic at once, with the time that has passed.
        params.common, passed = delay.others, encode_properties({delay.name: str(delay.value)})
    common = common_properties(params.common) + passed if params.common else passed
    appended = broker.store.append(topic, queue, send.batch(request, params, common))
    acknowledge(request, params, send, queue, name, queue, appended)
    if not passed:
        request.source.repeated.keep(request, params, topic)


def acknowledge(
    request: Request,
    params: ProduceRequest,
    send: SendContext,
    queue: int,
    into: str,
    into_queue: int,
    appended: Appended,
    flush: bool = True,
) -> None:
    """Acknowledge messages that were appended to ``into_queue`` of topic ``into``.

    ``into`` differs from the topic of the request for half, staged and scheduled messages; the response names
    ``queue``. The response is sent, in the order of the connection's PRODUCE frames, once the messages are as safe as
    flush policy and request demand. ``flush``: False if they need not be flushed now because a later step does it.
    """
    broker = request.broker
    name, prefix = params.topic, params.unique_prefix
    if into == name:
        broker.dispatch.appended_to(name, queue, appended)
    else:
        broker.dispatch.appended()  # one of the broker's own workers waits for them
    if prefix:
        broker.sequences.stored(
            prefix,
            name,
            params.unique_first,
            params.count,
            into,
            into_queue,
            appended.queue_offset,
            request.frame.began,
        )

    # The row is nearly always there, and the look-up is cheaper than the call.
    produced = broker.counters.produced
    traffic = produced.by_topic.get(name) or produced.of(name)
    traffic.frames += 1
    traffic.messages += params.count
    traffic.bytes += request.frame.body_end - request.frame.body_at
    frame, responses = request.frame, request.responses
    answer = b""  # of a one-way frame, whose bytes still count as in flight
    if frame.kind == REQUEST:
        answer = send.encode_stored(request, queue, appended.queue_offset, appended.store_ms, appended.physical_offsets)
    if flush and (broker.sync or params.flush == "sync"):
        responses.send_when_flushed(frame.request_id, request.source.frame_bytes, answer, appended.end_offset)
        return
    # ``end_turn`` counts its latency, together with those of the other frames of the turn.
    responses.written += 1
    if answer:
        responses.send_in_order(answer)


def check_load(request: Request) -> None:
    """Raise if the request's frame is too large, or if too many bytes wait to be stored."""
    broker = request.broker
    # One condition for the usual frame; only a refused one is looked at closely.
    if (
        request.source.frame_bytes > broker.produce_frame_bytes_max
        or broker.in_flight.bytes > broker.in_flight.bytes_max
    ):
        raise _too_much(request)


def append_waiting(request: Request, params: ProduceRequest, queue: int, waits: Route, send: SendContext) -> None:
    """Append the messages to the queue for scheduled records, whose topic is created if necessary; acknowledge them."""
    if request.has_topics((waits.config,)):
        appended = request.broker.store.append(waits.config, waits.queue, send.batch(request, params, waits.common))
        acknowledge(request, params, send, queue, waits.config.name, waits.queue, appended)


def _too_much(request: Request) -> BrokerError:
    broker = request.broker
    limits, frame_bytes = broker.settings.limits, request.source.frame_bytes - FRAME_LENGTH_BYTES
    if frame_bytes > limits.produce_frame_bytes_max:
        return MessageIllegal(
            f"the PRODUCE frame has {frame_bytes} bytes, but limits.produce_frame_bytes_max is "
            f"{limits.produce_frame_bytes_max}; split it",
            produce_frame_bytes_max=limits.produce_frame_bytes_max,
        )
    stalled = broker.stall.refusal()
    if stalled:
        return SystemBusy(stalled, retry_after_ms=BUSY_RETRY_AFTER_MS)
    return SystemBusy(
        f"{broker.in_flight.bytes} bytes are in flight, but limits.in_flight_bytes_max is "
        f"{limits.in_flight_bytes_max}; try again later",
        retry_after_ms=BUSY_RETRY_AFTER_MS,
        in_flight_bytes_max=limits.in_flight_bytes_max,
    )


def _no_such_queue(params: ProduceRequest, queues: int) -> QueueNotExist:
    return QueueNotExist(
        f"topic {params.topic} has no queue {params.queue} to write to; it has {queues}", queues=queues
    )


def _wait_for_topic(request: Request, params: ProduceRequest, send: SendContext) -> None:
    """Handle the frame again once its topic has been created, or once the topic's change is on disk."""
    broker = request.broker
    changes = broker.topic_changes
    if params.topic in changes.pending:
        request.handle_again_after(called_back(partial(changes.when_done, params.topic)))
        return
    config = _new_topic(broker, params, send)

    async def create() -> None:
        await called_back(partial(changes.put, config))
        request.audit(PRODUCE, f"topic {config.name}", None, topic_values(config))

    request.handle_again_after(create())


def _new_topic(broker: Broker, params: ProduceRequest, send: SendContext) -> TopicConfig:
    """Return the topic to create for a message to an unknown topic. Raises if that is not allowed."""
    name = check_name("topic", params.topic)
    config = send.new_topic(broker, name)
    count = len(broker.store.topics)
    if count >= broker.settings.topics.auto_create_max:
        raise LimitReached(
            f"topic {name} does not exist, and the broker does not create it automatically because it has {count} "
            f"topics and topics.auto_create_max is {broker.settings.topics.auto_create_max}; create it yourself "
            "(flintmq topic create), or delete unused topics"
        )
    if params.queue >= config.write_queues:
        raise _no_such_queue(params, config.write_queues)
    return config
