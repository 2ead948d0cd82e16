"""Which topics are the users' own: what ``topic list`` and ``top`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.delivery import GROUP_TOPIC_PREFIXES

if TYPE_CHECKING:
    from ..core.topics import TopicInfo


def is_group_topic(name: str) -> bool:
    """Whether the broker made the topic for a group: what the group tries again, or its dead letters."""
    return name.startswith(GROUP_TOPIC_PREFIXES)


def is_own(info: TopicInfo) -> bool:
    """Whether the broker made the topic, for itself or for a group."""
    return info.system or is_group_topic(info.topic)
