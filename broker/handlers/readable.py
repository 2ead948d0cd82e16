"""The rules for topics whose messages clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.errors import NoPermission
from ...protocol.storage.delivery import UNREADABLE_TOPICS

if TYPE_CHECKING:
    from ..store.tables.topic_table import TopicTable


def check_readable(topics: TopicTable, name: str) -> None:
    """Raise if the topic does not exist or must not be read."""
    topic = topics.existing(name)
    if name in UNREADABLE_TOPICS:
        raise _not_delivered(name)
    if not topic.readable:
        raise NoPermission(f"topic {name} is not readable (perm {topic.perm}); add 4 to its perm to allow reading")


def check_has_messages(topics: TopicTable, name: str) -> None:
    """Raise if no client may read messages of the topic."""
    if name in UNREADABLE_TOPICS:  # checked first: the error must not depend on whether the topic exists yet
        raise _not_delivered(name)
    check_readable(topics, name)


def _not_delivered(name: str) -> NoPermission:
    return NoPermission(f"topic {name} is a system topic of the broker; its messages are not delivered yet")
