"""Last part of a PRODUCE, after the append: record the producer's sequence, count the messages, and respond."""

from __future__ import annotations

from ...protocol.commands import ProduceRequest
from ...protocol.errors import SUCCESS
from ...protocol.frames import REQUEST, RESPONSE, encode_head
from ..requests.request import Request
from ..store import Appended


def acknowledge(
    request: Request,
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
    broker, name, prefix = request.broker, params.topic, params.unique_prefix
    broker.appended()
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
    produced = broker.counters.produced
    traffic = produced.by_topic.get(name) or produced.of(name)
    traffic.frames += 1
    traffic.messages += params.count
    traffic.bytes += request.frame.body_end - request.frame.body_at
    physical_offsets = appended.physical_offsets
    answer = (
        encode_head(
            RESPONSE,
            SUCCESS,
            request.frame.request_id,
            {"queue": queue, "queue_offset": appended.queue_offset, "store_ms": appended.store_ms},
            len(physical_offsets),
        )
        + physical_offsets
    )
    if flush and (broker.sync or params.flush == "sync"):
        request.responses.send_when_flushed(request.frame, request.source.frame_bytes, answer, appended.end_offset)
        return
    request.responses.written += 1
    if request.frame.kind == REQUEST:
        request.responses.send_in_order(answer)
