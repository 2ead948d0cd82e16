"""Rates of topics and of the broker, from figures that are sampled while a page with rates is open."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from ...protocol.commands import TOPICS_STATS_MAX, ConsumeStats, GroupInfo, Setting, TopicInfo, TopicTotals
from ...protocol.errors import FlintError, NoPermission
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ..operator.condition import Condition
from ..operator.display import plural, shown_name
from ..operator.rates import CounterSample, broker_counters, topic_counters
from .sessions import STATUS_SECONDS, ConsoleSession

# ---- Changes of a broker as the console notices them: the differences between two looks at it.
#
# The broker's audit log, which has all of them and who made them, stays on the broker's machine.

CHANGES_MAX = 100
NAMED_MAX = 5
"""Maximum number of objects of one kind that are named one by one after a look; more of them are one change."""
CLOCK_SLACK = timedelta(seconds=5)
"""Largest difference between two computed times of the same start: the status is up to 2 s old, and its request may
take 3 s."""
DELETED = "was deleted"
_TOPIC_FIELDS = {
    "read_queues": "queues for reading",
    "write_queues": "queues for writing",
    "perm": "permission",
    "retention_hours": "hours of retention",
    "retention_bytes": "bytes of retention",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``after``, ``at``: times of the look before it and of the one that showed it; ``kind``: ``topic``,
    ``group``, ``setting``, ``quarantine`` or ``broker``; ``name``: of the object, empty if there is none or there are
    several."""

    after: datetime
    at: datetime
    kind: str
    name: str
    text: str

    @property
    def has_page(self) -> bool:
        """Predicate: does the named object still exist, so that its page can be linked?"""
        return bool(self.name) and self.text != DELETED

    @property
    def is_late(self) -> bool:
        """Predicate: was the look before it so long ago that its time should be shown, too?"""
        return self.at - self.after > timedelta(minutes=1)


class ChangeLog:
    """The last changes that one user may see, the newest at the end. ``since``: time of the first look; ``started``:
    start of the broker's process; ``differing``: names of the settings that are not as at the start."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.started: datetime | None = None
        self.differing: list[str] = []
        self.changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        self._process: float | None = None
        self._seen: dict[str, tuple[Mapping[Any, Any], datetime]] = {}

    def saw_broker(self, condition: Condition) -> None:
        """Notice a restart, and damage that was moved to the quarantine."""
        uptime = condition.number("uptime_seconds")
        if uptime is None:
            return
        now = datetime.now(UTC)
        self.since = self.since or now
        started = now - timedelta(seconds=uptime)
        # In a container every process may have the same id, and users without rights do not see it.
        process = condition.number("pid")
        if self.started is not None and (process != self._process or started - self.started > CLOCK_SLACK):
            self.changes.append(Change(started, started, "broker", "", "The broker was started again"))
            self.started = None
        self.started, self._process = self.started or started, process
        self._saw_quarantine(condition)

    def _saw_quarantine(self, condition: Condition) -> None:
        figures = {name: condition.number(name) or 0 for name in ("quarantined_holes", "lost_messages")}
        before, after, now = self._exchange("quarantine", figures)
        holes, lost = (int(found - before[name]) for name, found in figures.items())
        if holes > 0:
            text = f"got {plural(holes, 'damaged range')} with {plural(max(0, lost), 'lost message')}"
            self.changes.append(Change(after, now, "quarantine", "", text))

    def saw_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Notice topics that were created, deleted or changed, without the broker's own."""
        self._compare("topic", {name: topic for name, topic in topics.items() if not topic.system}, _topic_difference)

    def saw_groups(self, groups: Iterable[GroupInfo]) -> None:
        self._compare("group", {info.group: "" for info in groups}, _value_difference)

    def saw_settings(self, settings: Iterable[Setting]) -> None:
        rows = list(settings)
        self.differing = [each.name for each in rows if each.value != each.at_start]
        self._compare("setting", {each.name: each.value for each in rows}, _value_difference)

    def saw_progress(self, rows: Iterable[ConsumeStats]) -> None:
        """Notice groups that were set back. A reset forward looks like reading, and is not noticed.

        ``rows``: of all groups and topics.
        """
        found = {(row.group, row.topic, row.queue): row.committed for row in rows if row.committed >= 0}
        before, after, now = self._exchange("progress", found)
        back: dict[tuple[str, str], int] = {}
        for (group, topic, queue), committed in found.items():
            messages = before.get((group, topic, queue), 0) - committed
            if messages > 0:
                back[group, topic] = back.get((group, topic), 0) + messages
        for (group, topic), messages in back.items():
            text = f"was set back by {plural(messages, 'message')} in topic {shown_name(topic)}"
            self.changes.append(Change(after, now, "group", group, text))

    def _exchange(self, kind: str, found: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], datetime, datetime]:
        """Keep what was found, and return what the last look had found, or the same at the first look; its time; and
        the time of this one."""
        now = datetime.now(UTC)
        before, after = self._seen.get(kind, (found, now))
        self._seen[kind] = found, now
        return before, after, now

    def _compare(self, kind: str, found: Mapping[str, Any], difference: Callable[[Any, Any], str]) -> None:
        before, after, now = self._exchange(kind, found)
        for names, text in ((found.keys() - before.keys(), "was created"), (before.keys() - found.keys(), DELETED)):
            if len(names) > NAMED_MAX:
                some = ", ".join(sorted(names)[:NAMED_MAX])
                verb = text.replace("was", "were")
                text = f"{plural(len(names), kind)} {verb}: {some} and {len(names) - NAMED_MAX:,} more"
                self.changes.append(Change(after, now, kind, "", text))
            else:
                self.changes += [Change(after, now, kind, name, text) for name in sorted(names)]
        for name in sorted(found.keys() & before.keys()):
            if found[name] != before[name]:
                self.changes.append(Change(after, now, kind, name, difference(before[name], found[name])))


def _topic_difference(before: TopicInfo, after: TopicInfo) -> str:
    changed = [
        f"{words} {getattr(before, name):,} → {getattr(after, name):,}"
        for name, words in _TOPIC_FIELDS.items()
        if getattr(before, name) != getattr(after, name)
    ]
    return f"was changed: {', '.join(changed)}" if changed else "was changed"


def _value_difference(before: object, after: object) -> str:
    return f"was changed: {before} → {after}"


SAMPLE_SECONDS = 2.0
CHANGES_SECONDS = 30.0
"""Seconds between two looks for changes: they take three further requests, one of them for all topics."""
WATCHED_SECONDS = 30.0
"""Seconds after the last page for which sampling continues, so that a reload does not begin again."""
HISTORY_SECONDS = 3600.0
DEAD_ROWS = 64
"""Number of topics in a request for the dead-letter topics beyond twice those of the last time."""
TOPIC_SAMPLES_MAX = 30
"""Number of samples kept by topic: the sparklines show one minute."""


class Sampler:
    """Counters of the broker and its topics over time. ``clock``: monotonic seconds.

    One user's pages share a sampler. It asks with the clients of the session that looked last.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._session: ConsoleSession | None = None
        self._watched_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._topics_watched_at = -math.inf
        self._dead: list[TopicTotals] = []
        """The dead-letter topics as of the last sample."""
        self._dead_at = -math.inf
        self._dead_counts: deque[CounterSample] = deque(maxlen=TOPIC_SAMPLES_MAX)
        self._dead_rows = TOPICS_STATS_MAX
        self.changes = ChangeLog()
        self._looked_at = -math.inf
        self._configs: dict[str, TopicInfo] = {}
        self._configs_at = -STATUS_SECONDS
        self._topics: deque[CounterSample] = deque(maxlen=TOPIC_SAMPLES_MAX)
        self._broker: deque[CounterSample] = deque(maxlen=int(HISTORY_SECONDS / SAMPLE_SECONDS))

    def watch(self, session: ConsoleSession) -> None:
        """Sample for a while from now on."""
        self._session = session
        self._watched_at = self._clock()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def add_topics(self, rows: list[TopicTotals]) -> None:
        """Take the figures of all topics that a page has just requested as a sample, and sample them for a while."""
        self._topics_watched_at = self._clock()
        if self._is_due:
            self._topics.append(topic_counters(rows, self._clock()))

    async def dead_letters(self, session: ConsoleSession) -> list[TopicTotals]:
        """Return the figures of the dead-letter topics, at most ``SAMPLE_SECONDS`` old: many people keep an overview
        open that refreshes itself, and other clients wait for a request that takes the broker long."""
        now = self._clock()
        if now - self._dead_at > SAMPLE_SECONDS:
            self._dead = await dead_letter_topics(session, self._dead_rows)
            self._dead_at = now
            self._dead_rows = min(TOPICS_STATS_MAX, 2 * len(self._dead) + DEAD_ROWS)
            self._dead_counts.append(topic_counters(self._dead, now))
        return self._dead

    @property
    def _is_due(self) -> bool:
        return not self._topics or self._clock() - self._topics[-1].at >= SAMPLE_SECONDS / 2

    async def topic_configs(self, session: ConsoleSession, *, newest: bool = False) -> dict[str, TopicInfo]:
        """Return the configurations of all topics, at most ``STATUS_SECONDS`` old: those of a thousand topics take
        longer to request than their figures. ``newest``: request them now."""
        if newest or self._clock() - self._configs_at > STATUS_SECONDS:
            self._configs = await session.clients.admin.topics(system=True)
            self._configs_at = self._clock()
        return self._configs

    def forget_configs(self) -> None:
        """Request the configurations for the next page: this console has just changed one."""
        self._configs_at = -STATUS_SECONDS

    def rates(self, topic: str) -> list[float | None]:
        """Return messages stored per second in a topic, one value for each interval between samples, oldest first; None
        for an interval in which the topic did not exist or was created again."""
        return [after.per_second(topic, before) for before, after in pairwise(self._topics)]

    def last_rate(self, topic: str) -> float | None:
        """Return messages stored per second in a topic between the last two samples; None as in ``rates``."""
        return self._topics[-1].per_second(topic, self._topics[-2]) if len(self._topics) > 1 else None

    def growth(self, topic: str) -> int | None:
        """Return how many messages a dead-letter topic got during the last minute, as far as it was watched; None if
        unknown, and instead of 0 if it was watched for a part of the minute alone."""
        minute = TOPIC_SAMPLES_MAX * SAMPLE_SECONDS
        since = self._clock() - minute - SAMPLE_SECONDS
        recent = [each for each in self._dead_counts if each.at >= since]
        if len(recent) < 2 or topic not in recent[0].counts or topic not in recent[-1].counts:
            return None
        grown = int(max(0, recent[-1].counts[topic] - recent[0].counts[topic]))
        whole = recent[-1].at - recent[0].at >= minute - 2 * SAMPLE_SECONDS
        return grown if grown or whole else None

    def history(self) -> list[tuple[float, float, float]]:
        """Return (seconds ago, messages in per second, messages out per second) for each interval of the last hour."""
        now = self._clock()
        rows = []
        for before, after in pairwise(self._broker):
            incoming, outgoing = (after.per_second(f"{what}_messages", before) for what in ("produced", "pulled"))
            if incoming is not None and after.at - before.at < 5 * SAMPLE_SECONDS:  # not across a pause or restart
                rows.append((now - after.at, incoming, outgoing or 0.0))
        return rows

    async def _run(self) -> None:
        while self._session is not None and self._clock() - self._watched_at < WATCHED_SECONDS:
            # The pages themselves show why the broker does not answer; sampling continues when it does.
            with contextlib.suppress(FlintError):
                await self._sample(self._session)
                await self._look_for_changes(self._session)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _sample(self, session: ConsoleSession) -> None:
        condition = await session.status(self._clock())
        self.changes.saw_broker(condition)
        if not condition.withheld:  # else there is no plot
            self._broker.append(broker_counters(condition, self._clock()))
        await self.dead_letters(session)
        # The rates of all topics are only in their list.
        if self._clock() - self._topics_watched_at < WATCHED_SECONDS and self._is_due:
            rows = await all_topics(session)
            self._topics.append(topic_counters(rows, self._clock()))

    async def _look_for_changes(self, session: ConsoleSession) -> None:
        if self._clock() - self._looked_at < CHANGES_SECONDS:
            return
        self.changes.saw_topics(await self.topic_configs(session, newest=True))
        self.changes.saw_groups(await session.clients.admin.groups())
        with contextlib.suppress(NoPermission):
            self.changes.saw_settings(await session.clients.admin.settings())
        self._looked_at = self._clock()


async def dead_letter_topics(session: ConsoleSession, rows: int) -> list[TopicTotals]:
    """Return the figures of the dead-letter topics that the user may see. Their names follow each other, so it is one
    request unless they are more than ``rows``."""
    found: list[TopicTotals] = []
    after = DEAD_LETTER_TOPIC_PREFIX
    while True:
        page = await session.clients.admin.topics_stats(after, max_count=rows)
        dead = [row for row in page if row.topic.startswith(DEAD_LETTER_TOPIC_PREFIX)]
        found += dead
        if len(dead) < rows:
            return found
        after = dead[-1].topic


async def all_topics(session: ConsoleSession) -> list[TopicTotals]:
    """Return the figures of all topics that the user may see; takes a request for each thousand."""
    found: list[TopicTotals] = []
    page = await session.clients.admin.topics_stats()
    while page:
        found += page
        page = await session.clients.admin.topics_stats(page[-1].topic) if len(page) == TOPICS_STATS_MAX else []
    return found
