"""Topics as ``topic list`` and ``top`` show them: the figures of all, and those that users created."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...protocol.commands import TOPICS_STATS_MAX
from ..operator.names import shown_name

if TYPE_CHECKING:
    from ..core.topics import TopicTotals
    from ..sync.admin import Admin


def matches(name: str, pattern: str) -> bool:
    """Return whether the name of a topic or group, real or as people see it, matches a pattern such as ``orders.*``."""
    return fnmatchcase(name, pattern) or fnmatchcase(shown_name(name), pattern)


def all_topics_stats(admin: Admin) -> dict[str, TopicTotals]:
    """Return the figures of all topics by name; takes a request for each thousand."""
    found: dict[str, TopicTotals] = {}
    page = admin.topics_stats()
    while page:
        found |= {totals.topic: totals for totals in page if totals.queues}
        page = admin.topics_stats(page[-1].topic) if len(page) == TOPICS_STATS_MAX else []
    return found
