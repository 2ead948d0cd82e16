"""GET_DELAY_STATS: the scheduled messages that wait for their delivery."""

from __future__ import annotations

import msgpack

from ...protocol.commands import DelayStatsAnswer, GetDelayStatsRequest
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ..delivery.scheduled.delay_stats import DelayStats, delay_stats
from .context import Peer


def get_delay_stats(peer: Peer, frame: Frame) -> None:
    """Return scheduled messages by level and by hour, and parked ones; includes everything acknowledged by now."""
    request = decode_fields(GetDelayStatsRequest, frame.fields)
    delays = peer.broker.delays

    def done(stats: DelayStats) -> None:
        answer = DelayStatsAnswer(
            levels=sum(messages for _, messages, _ in stats.levels),
            timed=stats.timed,
            parked=stats.parked,
            behind=stats.behind,
        )
        peer.answer(frame, answer, msgpack.packb({"levels": stats.levels, "hours": stats.hours(request.max_hours)}))

    peer.after_dispatch(frame, lambda: peer.read(frame, lambda hot: delay_stats(delays, hot=hot), done))
