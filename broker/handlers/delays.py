"""GET_DELAY_STATS: the scheduled messages that wait for their delivery."""

from __future__ import annotations

import msgpack

from ...protocol.commands import DelayStatsAnswer, GetDelayStatsRequest
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ..delivery.scheduled.delayed_counts import DelayedCounts, delayed_counts
from .context import Peer


def get_delay_stats(peer: Peer, frame: Frame) -> None:
    """Return scheduled messages by level and by hour, and parked ones; includes everything acknowledged by now."""
    request = decode_fields(GetDelayStatsRequest, frame.fields)
    delays = peer.broker.delays

    def done(counts: DelayedCounts) -> None:
        answer = DelayStatsAnswer(
            levels=sum(messages for _, messages, _ in counts.levels),
            timed=counts.timed,
            parked=counts.parked,
            behind=counts.unindexed,
        )
        peer.answer(frame, answer, msgpack.packb({"levels": counts.levels, "hours": counts.hours(request.max_hours)}))

    peer.after_dispatch(frame, lambda: peer.read(frame, lambda hot: delayed_counts(delays, hot=hot), done))
