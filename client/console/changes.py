"""Changes of a broker as the console notices them: the differences between two looks at it.

The broker's audit log, which has all of them and who made them, stays on the broker's machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core.admin.groups import GroupInfo
from ..core.admin.settings import Setting
from ..core.topics import ConsumeStats, TopicInfo
from ..operator.condition import Condition
from ..operator.names import shown_name
from ..operator.units import plural

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
        """Notice groups that were created or deleted."""
        self._compare("group", {info.group: "" for info in groups}, _value_difference)

    def saw_settings(self, settings: Iterable[Setting]) -> None:
        """Notice settings that were changed."""
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
