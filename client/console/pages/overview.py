"""Overview: how the broker is, what goes through it, and which groups need attention."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from ....protocol.display import show_bytes
from ....protocol.storage.delivery import dead_letter_topic
from ...core.topics import ConsumeStats, TopicTotals
from ...operator.condition import Condition
from ...operator.dead_letters import waiting_by_group
from ...operator.lags import Lag, lag_by_group
from ...operator.units import plural, show_seconds
from ..plot import plot
from ..sampler import Sampler
from ..visit import Visit

ROWS_MAX = 5
CHANGES_SHOWN = 10
BEHIND_BYTES_MAX = 16 << 20
"""Bytes that queues, index or flush may be behind, as in ``flintmq check``."""
FREE_SHARE_MIN = 0.15
FLUSH_SECONDS_MAX = 0.1
RUNWAY_SECONDS_MIN = 24 * 3600


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One part of the broker's health in words."""

    is_good: bool
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """Dead letters of a group. ``grew``: number of those that came during the last minute, None if unknown."""

    group: str
    waiting: int
    grew: int | None


async def overview(visit: Visit) -> Response:
    """Return the state of the broker: two requests besides the status of the bar."""
    sampler = visit.console.sampler(visit.session)
    dead = await sampler.dead_letters(visit.session)
    stats = await visit.admin.consume_stats(uncommitted=True)
    sampler.changes.saw_progress(stats)
    history = sampler.history()
    return await visit.page(
        "overview.html",
        health=health,
        plot=plot(history),
        last=history[-1] if history else None,
        lags=_worst_lags(stats),
        dead=_dead_letters(dead, stats, sampler),
        changes=sampler.changes,
        changes_shown=CHANGES_SHOWN,
        rows_max=ROWS_MAX,
    )


def health(condition: Condition) -> list[HealthFinding]:
    """Return what is good and what is not, the latter first. A figure that is withheld is left out."""
    refusal = condition.write_refusal
    found = [HealthFinding(not refusal, "Messages", f"refused: {refusal}" if refusal else "accepted")]
    for name, behind in (
        ("Flush", condition.flush_behind_bytes),
        ("Queues", condition.reput_behind_bytes),
        ("Index", condition.index_behind_bytes),
    ):
        if behind is not None:
            text = f"{show_bytes(behind)} behind the log" if behind else "up to date"
            found.append(HealthFinding(behind <= BEHIND_BYTES_MAX, name, text))
    if (p99 := condition.flush_p99_seconds) is not None:
        found.append(
            HealthFinding(p99 <= FLUSH_SECONDS_MAX, "Flush time", f"p99 {show_seconds(p99)} in the last minute")
        )
    found += _disk(condition)
    if (holes := condition.number("quarantined_holes")) is not None:
        lost = plural(int(condition.number("lost_messages") or 0), "lost message")
        text = f"{plural(int(holes), 'damaged range')}, {lost}" if holes else "empty"
        found.append(HealthFinding(not holes, "Quarantine", text))
    return sorted(found, key=lambda each: each.is_good)


def _disk(condition: Condition) -> list[HealthFinding]:
    free, share = condition.number("disk_free_bytes"), condition.disk_free_share
    if free is None or share is None:
        return []
    runway = condition.disk_runway_seconds
    lasts = "" if runway is None else f", lasts {show_seconds(runway)} at the rate of the last minute"
    is_good = share >= FREE_SHARE_MIN and (runway is None or runway >= RUNWAY_SECONDS_MIN)
    return [HealthFinding(is_good, "Disk", f"{show_bytes(free)} free ({share:.0%}){lasts}")]


def _worst_lags(stats: list[ConsumeStats]) -> list[tuple[str, Lag]]:
    lags = sorted(lag_by_group(stats).items(), key=lambda item: item[1].messages, reverse=True)
    return [item for item in lags if item[1].messages][:ROWS_MAX]


def _dead_letters(topics: list[TopicTotals], stats: list[ConsumeStats], sampler: Sampler) -> list[DeadLetterRow]:
    """Return the groups with dead letters that wait, the one that grew most first."""
    rows = [
        DeadLetterRow(group, waiting, sampler.growth(dead_letter_topic(group)))
        for group, waiting in waiting_by_group(topics, stats).items()
        if waiting > 0  # the topics' figures may be older than the groups' offsets
    ]
    return sorted(rows, key=lambda row: (row.grew or 0, row.waiting), reverse=True)
