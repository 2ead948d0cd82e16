"""Retry topics of old names: ``%RETRY%group_topic``, in which ``_`` may also be part of either name.

FlintMQ wrote the messages that a group pops again there, and RocketMQ does unless ``enableRetryTopicV2`` is set. Only
messages that already waited for their delivery are added any more. A group that pops reads what is its own there, and
what fails again goes to ``%RETRY%group+topic``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocol.storage.delivery import (
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_RETRY_TOPIC,
    RETRY_TOPIC_PREFIX,
    old_pop_retry_topic,
    pop_retry_topic,
)

if TYPE_CHECKING:
    from ..store import MessageStore

_POPPED = f"\x02{PROPERTY_FIRST_POP_TIME}\x01".encode()
_SENT_TO = f"\x02{PROPERTY_RETRY_TOPIC}\x01".encode()


class OldRetries:
    """Selects the messages of an old retry topic that a group popped from one topic; a filter of pulls.

    ``alone``: no other group can have messages in the retry topic. Without that, a message must name its topic, which
    FlintMQ always noted, and RocketMQ did not.
    """

    def __init__(self, group: str, topic: str, *, alone: bool) -> None:
        self._topic = topic.encode()
        # A RocketMQ message that an earlier FlintMQ got back names the retry topic.
        self._unknown = (b"", old_pop_retry_topic(group, topic).encode()) if alone else ()

    def select(self, sources: Sequence[bytes]) -> list[int]:
        """Return the numbers of the messages that are the group's own."""
        return [place for place, source in enumerate(sources) if self._is_own(source)]

    def _is_own(self, source: bytes) -> bool:
        sent_to = source.partition(_SENT_TO)[2].partition(b"\x02")[0]
        return sent_to in self._unknown or (sent_to == self._topic and _POPPED in source)


def is_alone(store: MessageStore, name: str) -> bool:
    """Return whether a retry topic can belong to at most one group, of those that exist.

    The plain retry topic of a group may have the old name of another one's.
    """
    both = name.removeprefix(RETRY_TOPIC_PREFIX)
    cuts = (at for at, sign in enumerate(both) if sign == "_")
    owners = sum(store.groups.has(both[:at]) and store.topics.get(both[at + 1 :]) is not None for at in cuts)
    return owners + store.groups.has(both) <= 1


def pop_retry_topics(store: MessageStore, group: str, topic: str) -> list[str]:
    """Return the retry topics with messages of ``topic`` and of no other group, whether they exist or not."""
    old = old_pop_retry_topic(group, topic)
    return [pop_retry_topic(group, topic), *([old] if is_alone(store, old) else [])]
