"""Predicates that separate users' topics from the broker's, shared by ``topic list`` and ``top``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.storage.delivery import GROUP_TOPIC_PREFIXES

if TYPE_CHECKING:
    from ..core.topics import TopicInfo


def is_group_topic(name: str) -> bool:
    """Return whether the topic is a group's retry topic or dead-letter topic."""
    return name.startswith(GROUP_TOPIC_PREFIXES)


def is_own(info: TopicInfo) -> bool:
    """Return whether the broker created the topic, for itself or for a group."""
    return info.system or is_group_topic(info.topic)
