"""Finds the records of selected topics in a block, without a Python object for each record."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ....protocol.names import is_system_topic, name_fault
from ..errors import InvalidOption
from ..records import RecordBlock
from ..scan import WORD_BYTES, Ints, Part, Rows, words_of
from .log_files import LogFiles

_MASKS = np.array([(1 << 8 * count) - 1 for count in range(WORD_BYTES + 1)], np.uint64)
"""Masks that keep the given number of bytes of a little-endian word."""
_KNOWN_MAX = 65_536
_SHOWN = 10


class TopicFilter:
    """Selects topics: ``names``: these, system topics too; ``pattern``: those whose whole name matches; neither: all.
    System topics are selected only by ``names``."""

    def __init__(self, names: tuple[str, ...] | None = None, pattern: re.Pattern[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._pattern = pattern
        self._known: dict[bytes, bool] = {}

    def wants(self, topic: str) -> bool:
        """Return whether the topic's messages are selected."""
        if self._names is not None:
            return topic in self._names
        if is_system_topic(topic):
            return False
        return self._pattern is None or self._pattern.fullmatch(topic) is not None

    def rows(self, block: RecordBlock) -> Rows:
        """Return which records are of selected topics. Looks at the topic once per run of records with the same one."""
        begins = _runs(block)
        at, end = block.parts[Part.TOPIC_AT, begins].tolist(), block.parts[Part.TOPIC_END, begins].tolist()
        wanted = [self._wants(bytes(block.blob[start:stop])) for start, stop in zip(at, end, strict=True)]
        return np.repeat(np.array(wanted, np.bool_), np.diff(begins, append=len(block)))

    def _wants(self, topic: bytes) -> bool:
        wanted = self._known.get(topic)
        if wanted is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            wanted = self._known[topic] = self.wants(topic.decode("utf-8", "replace"))
        return wanted


def check_topics(names: Iterable[str], log: LogFiles) -> None:
    """Raise ``InvalidOption`` for a topic that the store does not know; without a store nothing is checked."""
    known = log.queues().topics()
    if known is None or log.store is None:
        return
    known |= _configured(log.store / "config" / "topics.json")
    for name in names:
        if name not in known:
            if fault := name_fault("topic", name):
                raise InvalidOption(f"topic {name!r} is not in {log.store}; its name {fault}")
            own = [topic for topic in known if not is_system_topic(topic)]
            own.sort(key=lambda topic: (topic.startswith("%"), topic))  # retry topics and dead letters come last
            near = difflib.get_close_matches(name, own, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            raise InvalidOption(
                f"topic {name!r} is not in {log.store}{meant}; it has {', '.join(own[:_SHOWN]) or 'none'}{more}. "
                "With Spark, option('subscribePattern', …) reads the rest of a deleted topic"
            )


def _configured(path: Path) -> set[str]:
    """Return the topics in the table, including those that never had a message."""
    try:
        return set(json.loads(path.read_bytes())["topicConfigTable"])
    except (OSError, ValueError, KeyError, TypeError):  # the queues list every topic that has had a message
        return set()


def _runs(block: RecordBlock) -> Ints:
    """Return the first record, and each record whose topic differs from that of the record before it."""
    at = block.parts[Part.TOPIC_AT]
    length = block.parts[Part.TOPIC_END] - at
    shortest, longest = int(length.min()), int(length.max())
    differs = np.ones(len(block), np.bool_)
    np.not_equal(length[1:], length[:-1], out=differs[1:])
    words = words_of(block.blob)
    for offset in range(0, longest, WORD_BYTES):
        place = at + offset
        # A word at the end of the buffer cannot be read whole: its record counts as a separate run. Positions ascend.
        beyond = int(np.searchsorted(place, len(words)))
        word = words[np.minimum(place, len(words) - 1)]
        if shortest < offset + WORD_BYTES:
            word &= _MASKS[longest - offset if shortest == longest else np.clip(length - offset, 0, WORD_BYTES)]
        differs[1:] |= word[1:] != word[:-1]
        differs[beyond:] = True
    return np.flatnonzero(differs)
