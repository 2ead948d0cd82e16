"""Rates of messages over the last minutes, hours and days, in the forms that RocketMQ's tools print."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..requests.counters import Counters, Traffic

SAMPLE_S = 10.0
TOPICS_MAX = 1_000
"""Maximum number of topics with figures of their own; 39 samples of each are kept."""
READERS_MAX = 1_000
"""Maximum number of groups' topics with figures of their own, if others were read in the last day."""
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
_RATE_SAMPLES = (1, 6, 60)
"""Samples back from now for the three rates: 10 seconds, a minute, 10 minutes."""
_NOTHING = (0, 0)


@dataclass(slots=True)
class _Sample:
    """Counters at one moment. ``at``: seconds, monotonic; ``put``: messages and bytes by topic; ``got``: by topic and
    group."""

    at: float
    put_messages: int
    get_messages: int
    put: dict[str, tuple[int, int]]
    got: dict[str, tuple[int, int]]


@dataclass(slots=True)
class _Span:
    """Samples of a period, oldest first: one of every ``every`` is kept."""

    every: int
    samples: deque[_Sample] = field(default_factory=deque)


class TrafficFigures:
    """Samples of the broker's counters. Belongs to the event loop. ``clock``: seconds, monotonic;
    ``log_began``: physical offset of the log's end at the start."""

    def __init__(self, counters: Counters, clock: Callable[[], float], log_began: int) -> None:
        self._counters = counters
        self._clock = clock
        self.log_began = log_began
        self._got: dict[str, tuple[int, int]] = {}
        """Messages and bytes that RocketMQ's consumers got, by ``topic@group``."""
        self._count = 0
        self._totals: deque[_Sample] = deque(maxlen=max(_RATE_SAMPLES) + 1)
        # One sample more than steps: 6 of 10 seconds, 6 of 10 minutes, 24 of an hour.
        self._spans = {
            "statsMinute": _Span(1, deque(maxlen=7)),
            "statsHour": _Span(60, deque(maxlen=7)),
            "statsDay": _Span(360, deque(maxlen=25)),
        }
        self._day = -1
        self._mornings = [(0, 0), (0, 0)]
        """Messages produced and pulled until the last two midnights since the start: yesterday's, today's."""
        self.sample()

    def sample(self) -> None:
        """Take a sample; to be called every ``SAMPLE_S`` seconds."""
        now = self._now()
        for span in self._spans.values():
            if self._count % span.every == 0:
                span.samples.append(now)
        self._count += 1
        # Without the rows of topics and groups: the broker's rates need none.
        self._totals.append(_Sample(now.at, now.put_messages, now.get_messages, {}, {}))
        day = time.localtime().tm_yday
        if self._day not in (-1, day):
            self._mornings = [self._mornings[1], (now.put_messages, now.get_messages)]
        self._day = day

    def _now(self) -> _Sample:
        produced = self._counters.produced
        rows = {name: _pair(row) for name, row in islice(produced.by_topic.items(), TOPICS_MAX)}
        return _Sample(
            self._clock(), produced.total().messages, self._counters.pulled.total().messages, rows, self._got.copy()
        )

    def count_pulled(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count messages, and the bytes of their records, that consumers of a group got of a topic."""
        if not messages:
            return
        key = f"{topic}@{group}"
        before = self._got.get(key)
        if before is None:
            if len(self._got) >= READERS_MAX:
                # A row that is as it was a day ago is of a group that has stopped reading.
                a_day_ago = self._spans["statsDay"].samples[0].got
                self._got = {name: row for name, row in self._got.items() if a_day_ago.get(name) != row}
            if len(self._got) >= READERS_MAX:
                return
            before = _NOTHING
        self._got[key] = before[0] + messages, before[1] + size

    def rates(self) -> tuple[str, str]:
        """Return the messages a second that were produced, and pulled: in 10 seconds, a minute and 10 minutes."""
        now = self._now()
        put, get = [], []
        for back in _RATE_SAMPLES:
            before = self._totals[max(len(self._totals) - back, 0)]
            # At least a second, or a message right after a sample would look like a huge rate.
            seconds = max(now.at - before.at, 1.0)
            put.append((now.put_messages - before.put_messages) / seconds)
            get.append((now.get_messages - before.get_messages) / seconds)
        return _three(put), _three(get)

    def put_tps(self, topic: str) -> float:
        """Return the messages a second that were produced to a topic in the last minute."""
        found = self.of(TOPIC_PUT_NUMS, topic, "")
        return float(found["statsMinute"]["tps"]) if found is not None else 0.0

    def totals(self) -> dict[str, int]:
        """Return the messages produced and pulled since the start: now, and until the last two midnights."""
        now = self._now()
        figures = {}
        for name, index, total in (("Put", 0, now.put_messages), ("Get", 1, now.get_messages)):
            figures[f"msg{name}TotalYesterdayMorning"] = self._mornings[0][index]
            figures[f"msg{name}TotalTodayMorning"] = self._mornings[1][index]
            figures[f"msg{name}TotalTodayNow"] = total
        return figures

    def of(self, name: str, key: str, cluster: str) -> dict[str, dict[str, Any]] | None:
        """Return a figure of a topic, of a group in a topic (``topic@group``), or of the broker with the cluster's name
        as key; None if it is not known."""
        if name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            if key not in self._counters.produced.by_topic:
                return None
            column = name == TOPIC_PUT_SIZE
            return self._over_spans(lambda sample: sample.put.get(key, _NOTHING)[column])
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            if key not in self._got:
                return None
            column = name == GROUP_GET_SIZE
            return self._over_spans(lambda sample: sample.got.get(key, _NOTHING)[column])
        if name in (BROKER_PUT_NUMS, BROKER_GET_NUMS) and key == cluster:
            of_put = name == BROKER_PUT_NUMS
            return self._over_spans(lambda sample: sample.put_messages if of_put else sample.get_messages)
        return None

    def _over_spans(self, value: Callable[[_Sample], int]) -> dict[str, dict[str, Any]]:
        now = self._now()
        figures = {}
        for name, span in self._spans.items():
            before = span.samples[0]
            # A topic that was deleted and created again counts from 0.
            total = max(value(now) - value(before), 0)
            tps = total / max(now.at - before.at, 1.0)
            figures[name] = {"avgpt": 0.0, "sum": total, "tps": round(tps, 2)}
        return figures


def _pair(row: Traffic) -> tuple[int, int]:
    return row.messages, row.bytes


def _three(rates: list[float]) -> str:
    return " ".join(str(round(rate, 4)) for rate in rates)
