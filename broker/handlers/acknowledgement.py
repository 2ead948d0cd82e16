"""Last part of a PRODUCE, after the append: record the producer's sequence, count the messages, and respond."""

from __future__ import annotations

from ...protocol.commands import ProduceRequest
from ...protocol.errors import SUCCESS
from ...protocol.frames import REQUEST, RESPONSE, Frame, encode_head
from ..store import Appended
from .context import Peer


def acknowledge(
    peer: Peer,
    frame: Frame,
    request: ProduceRequest,
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
    broker, name, prefix = peer.broker, request.topic, request.unique_prefix
    broker.appended()
    if prefix:
        broker.sequences.stored(
            prefix, name, request.unique_first, request.count, into, into_queue, appended.queue_offset, frame.began
        )
    produced = broker.counters.produced
    traffic = produced.by_topic.get(name) or produced.of(name)
    traffic.frames += 1
    traffic.messages += request.count
    traffic.bytes += frame.body_end - frame.body_at
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
    if flush and (broker.sync or request.flush == "sync"):
        peer.send_when_flushed(frame, answer, appended.end_offset)
        return
    peer.written += 1
    if frame.kind == REQUEST:
        peer.send_in_order(answer)
