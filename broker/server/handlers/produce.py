"""PRODUCE: append the messages of one frame, and acknowledge them when the flush policy is met."""

from __future__ import annotations

from ....protocol.commands import ProduceRequest
from ....protocol.errors import (
    SUCCESS,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    QueueNotExist,
    SystemBusy,
    TopicNotExist,
)
from ....protocol.fields import decode_fields
from ....protocol.frames import REQUEST, RESPONSE, Frame, encode_head
from ....protocol.names import check_name, is_system_topic, may_produce_to
from ...store import ProduceBatch, TopicConfig, common_properties
from .context import Broker, Peer

_FLUSHES = frozenset({"", "sync", "async"})


def produce(peer: Peer, frame: Frame) -> None:
    """Append the frame's messages, all or none, and send their answer, behind those of the frames before."""
    broker = peer.broker
    if broker.in_flight_bytes > broker.limits.in_flight_bytes_max:
        raise SystemBusy(
            f"{broker.in_flight_bytes} bytes have arrived and are not done; limits.in_flight_bytes_max is "
            f"{broker.limits.in_flight_bytes_max}: try again later",
            retry_after_ms=broker.limits.busy_retry_after_ms,
            in_flight_bytes_max=broker.limits.in_flight_bytes_max,
        )
    request = decode_fields(ProduceRequest, frame.fields)
    _check_frame(peer, frame, request)
    topic = broker.store.topics.get(request.topic)
    if topic is None or (broker.topic_changes and broker.topic_changes.is_pending(request.topic)):
        _wait_for_topic(peer, frame, request)
        return
    if not topic.writable:
        raise NoPermission(f"topic {topic.name} cannot be written (perm {topic.perm}); change it with its perm + 2")
    queue = request.queue
    if queue >= topic.write_queues:
        raise _no_such_queue(request, topic.write_queues)
    if queue < 0:
        queue = broker.next_queue.get(request.topic, 0) % topic.write_queues
        broker.next_queue[request.topic] = queue + 1
    body_at, body_end = frame.body_at, frame.body_end
    count = request.count
    appended = broker.store.append(
        topic,
        queue,
        ProduceBatch(
            buffer=frame.buffer,
            body_at=body_at,
            body_end=body_end,
            count=count,
            layout=request.layout,
            common=common_properties(request.common),
            sys_flag=request.sys_flag,
            unique_prefix=request.unique_prefix.encode(),
            unique_first=request.unique_first,
            born_ms=request.born_ms,
            born_host=peer.born_host,
        ),
    )
    broker.appended()
    counters = broker.counters
    counters.produces += 1
    counters.produced_messages += count
    counters.produced_bytes += body_end - body_at
    physical_offsets = appended.physical_offsets
    answer = (
        encode_head(
            RESPONSE,
            SUCCESS,
            frame.request_id,
            {"queue": queue, "queue_offset": appended.queue_offset, "store_ms": appended.store_ms},
            len(physical_offsets),
        )
        + physical_offsets
    )
    if broker.sync or request.flush == "sync":
        peer.send_when_flushed(frame, answer, appended.end_offset)
    elif frame.kind == REQUEST:
        peer.send_in_order(answer)


def _check_frame(peer: Peer, frame: Frame, request: ProduceRequest) -> None:
    """What can be said of a frame without its topic and without looking into its body."""
    if not may_produce_to(request.topic):
        raise NoPermission(f"topic {request.topic} is the broker's own; produce to another")
    if request.flush not in _FLUSHES:
        raise InvalidParameter(f"flush must be sync, async or empty, not {request.flush!r}")
    frame_bytes_max = peer.broker.limits.produce_frame_bytes_max
    if peer.frame_bytes > frame_bytes_max + 4:
        raise MessageIllegal(
            f"a PRODUCE frame of {peer.frame_bytes - 4} bytes; limits.produce_frame_bytes_max is {frame_bytes_max}: "
            "split it",
            produce_frame_bytes_max=frame_bytes_max,
        )


def _no_such_queue(request: ProduceRequest, queues: int) -> QueueNotExist:
    return QueueNotExist(
        f"topic {request.topic} has no queue {request.queue} to write to; it has {queues}", queues=queues
    )


def _wait_for_topic(peer: Peer, frame: Frame, request: ProduceRequest) -> None:
    """The topic is not there, or its change is not on disk: handle the frame again when it is."""
    changes = peer.broker.topic_changes
    if changes.is_pending(request.topic):
        peer.suspend()
        changes.when_done(request.topic, lambda error: peer.resume(frame, error))
    else:
        config = _new_topic(peer.broker, request)
        peer.suspend()
        changes.put(config, lambda error: peer.resume(frame, error))


def _new_topic(broker: Broker, request: ProduceRequest) -> TopicConfig:
    """The topic that a message for an unknown topic makes, where that is allowed."""
    name = check_name("topic", request.topic)
    if is_system_topic(name):
        raise NoPermission(f"topic {name} is the broker's own; produce to another")
    if not broker.auto_create:
        raise TopicNotExist(f"topic {name} does not exist, and topics.auto_create is off: create it first")
    queues = broker.settings.topics.default_queues
    if request.queue >= queues:
        raise _no_such_queue(request, queues)
    return TopicConfig(name=name, read_queues=queues, write_queues=queues)
