"""GET_DELAY_STATS: the scheduled messages that wait for their delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ...protocol.commands import DelayStatsAnswer, GetDelayStatsRequest
from ...protocol.fields import decode_fields
from ..delivery.scheduled.delayed_counts import delayed_counts

if TYPE_CHECKING:
    from ..delivery.scheduled.delayed_counts import DelayedCounts
    from ..delivery.scheduled.worker import Delays
    from ..requests.request import Request


def get_delay_stats(request: Request, delays: Delays) -> None:
    """Return scheduled messages by level and by hour, and parked ones; includes everything acknowledged by now."""
    params = decode_fields(GetDelayStatsRequest, request.frame.fields)

    def done(counts: DelayedCounts) -> None:
        answer = DelayStatsAnswer(
            levels=sum(messages for _, messages, _ in counts.levels),
            timed=counts.timed,
            parked=counts.parked,
            behind=counts.unindexed,
        )
        request.respond(answer, msgpack.packb({"levels": counts.levels, "hours": counts.hours(params.max_hours)}))

    request.after_dispatch(lambda: request.read(lambda hot: delayed_counts(delays, hot=hot), done))
