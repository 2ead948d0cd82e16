"""What is left of a PRODUCE once its messages are written: note whose they are, count them, and answer."""

from __future__ import annotations

from ....protocol.commands import ProduceRequest
from ....protocol.errors import SUCCESS
from ....protocol.frames import REQUEST, RESPONSE, Frame, encode_head
from ...store import Appended
from .context import Peer


def acknowledge(
    peer: Peer, frame: Frame, request: ProduceRequest, queue: int, into: str, into_queue: int, appended: Appended,
    flush: bool = True,
) -> None:  # fmt: skip
    """The frame's messages were appended to ``into_queue`` of the topic ``into``, perhaps not yet their own.

    Answered, with ``queue`` as theirs, when they are as safe as the flush policy and the request demand, in the order
    of the connection's PRODUCE frames. ``flush``: False where they need not be, because something later makes them so.
    """
    broker, name, prefix = peer.broker, request.topic, request.unique_prefix
    broker.appended()
    if prefix:
        broker.sequences.stored(
            prefix, name, request.unique_first, request.count, into, into_queue, appended.queue_offset, frame.began
        )  # fmt: skip
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
