"""Last part of a PRODUCE, after the append: record the producer's sequence, count the messages, and respond."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.frames import REQUEST

if TYPE_CHECKING:
    from ...protocol.commands import ProduceRequest
    from ..requests.broker import Broker
    from ..requests.request import Request
    from ..store import Appended


def acknowledge(
    request: Request,
    broker: Broker,
    params: ProduceRequest,
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
        answer = request.encode_stored(queue, appended.queue_offset, appended.store_ms, appended.physical_offsets)
    if flush and (broker.sync or params.flush == "sync"):
        responses.send_when_flushed(frame.request_id, request.source.frame_bytes, answer, appended.end_offset)
        return
    # ``end_turn`` counts its latency, together with those of the other frames of the turn.
    responses.written += 1
    if answer:
        responses.send_in_order(answer)
