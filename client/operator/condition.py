"""State of a broker: the figures of ``status``, ``top`` and ``check``.

Some figures may be withheld from the user, and an older broker does not report all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...protocol.storage.delivery import MEMBER_SEPARATOR, dead_letter_topic
from ...protocol.times import from_millis
from .display import plural

if TYPE_CHECKING:
    from ...protocol.commands import ConsumeStats, GroupInfo, GroupQueue


@dataclass(frozen=True, slots=True)
class NextDeletion:
    """A file of the log that retention deletes next. ``at``: when, None if its messages keep it; ``reason``: why."""

    file: str
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """The response to GET_BROKER_RUNTIME_INFO. A figure that the broker does not report is None."""

    info: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """Return a figure, or None if the broker does not report it."""
        value = self.info.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def withheld(self) -> str:
        """Reason why the user may not see most figures, and the grant that is missing; empty if nothing is withheld."""
        said = str(self.info.get("withheld") or "")
        if said or "write_offset" in self.info or "pid" in self.info:  # every broker reports one of these
            return said
        return "the user has no permission: query on the broker; `flintmq user grant NAME --query-broker` grants it"

    def _difference(self, end: str, begin: str) -> float | None:
        high, low = self.number(end), self.number(begin)
        return None if high is None or low is None else max(0, high - low)

    @property
    def log_bytes(self) -> float | None:
        """Bytes of the CommitLog."""
        return self._difference("write_offset", "min_physical_offset")

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the broker's process, without mapped page cache."""
        resident = self.number("rss_bytes")
        return None if resident is None else resident - (self.number("mapped_bytes") or 0)

    @property
    def flush_behind_bytes(self) -> float | None:
        """Bytes of the log that are written and not yet on disk."""
        return self._difference("write_offset", "flushed_offset")

    @property
    def reput_behind_bytes(self) -> float | None:
        """Bytes of the log that are not yet dispatched to queues and index."""
        return self._difference("write_offset", "reput_offset")

    @property
    def index_behind_bytes(self) -> float | None:
        """Bytes of the log that are not yet in the index."""
        behind = self.number("index_behind_bytes")
        return self.reput_behind_bytes if behind is None else behind

    @property
    def checkpoint_behind_bytes(self) -> float | None:
        """Bytes of the log whose queue and index entries are not yet on disk."""
        return self._difference("write_offset", "checkpoint_offset")

    def behind_seconds(self, stage: str) -> float | None:
        """Return how long the oldest byte that a stage has still to process has waited. ``stage``: ``flush``,
        ``reput`` or ``checkpoint``."""
        millis = self.number(f"{stage}_behind_ms")
        return None if millis is None else millis / 1e3

    def _flush_seconds(self, name: str) -> float | None:
        micros = self.number(name)
        return None if not micros else micros / 1e6  # 0: no flush in the last minute

    @property
    def flush_p50_seconds(self) -> float | None:
        """Median of the last minute's flushes."""
        return self._flush_seconds("flush_p50_us")

    @property
    def flush_p99_seconds(self) -> float | None:
        """99th percentile of the last minute's flushes."""
        return self._flush_seconds("flush_p99_us")

    @property
    def disk_free_share(self) -> float | None:
        """Free share of the store's file system, 0 to 1."""
        free, total = self.number("disk_free_bytes"), self.number("disk_total_bytes")
        return free / total if free is not None and total else None

    @property
    def disk_runway_seconds(self) -> float | None:
        """Seconds until the disk is full at the rate of the last minute; None if nothing is written."""
        seconds = self.number("disk_runway_seconds")
        return None if seconds is None or seconds < 0 else seconds

    @property
    def write_refusal(self) -> str:
        """Reason why the broker refuses messages at the moment; empty if it accepts them."""
        return str(self.info.get("write_refusal") or "")

    @property
    def next_deletion(self) -> NextDeletion | None:
        """The file of the log that retention deletes next; None: only one is left, or the broker is older."""
        file, at_ms = self.info.get("expiry_next_file"), self.number("expiry_next_ms")
        if not file or at_ms is None:
            return None
        at = from_millis(int(at_ms)) if at_ms >= 0 else None
        return NextDeletion(str(file), at, str(self.info.get("expiry_next_reason") or ""))

    @property
    def errors(self) -> dict[str, int]:
        """Number of error responses since the start, by error."""
        return {
            name.removeprefix("errors_"): int(count) for name, count in self.info.items() if name.startswith("errors_")
        }


# ---- Lag of consumer groups, summed over queues: shared by ``group list``, ``top`` and ``check``.

BROADCASTING = "broadcasting"


def read_rows(rows: Iterable[ConsumeStats]) -> list[ConsumeStats]:
    """Return the rows without the groups' own dead-letter topics, which they do not read."""
    return [row for row in rows if row.topic != dead_letter_topic(row.group)]


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of messages that a group has still to read, as far as it is known.

    ``unknown_queues``: number of queues in which the broker does not know where the group will start; ``partial``: the
    group has topics that the user may not see. ``oldest_ms``: store time of the oldest of these messages, ms since 1970
    UTC; None: everything is read, or it was not asked for.
    """

    messages: int = 0
    unknown_queues: int = 0
    partial: bool = False
    oldest_ms: int | None = None

    @property
    def known(self) -> int | None:
        """Lag, or None unless it is known for all queues."""
        return None if self.unknown_queues or self.partial else self.messages

    @property
    def why_unknown(self) -> str:
        """Reason why the lag is unknown; empty if it is known."""
        reasons = []
        if self.unknown_queues:
            reasons.append(
                f"it has not started {plural(self.unknown_queues, 'queue')}, and its first member decides where"
            )
        if self.partial:
            reasons.append("the user needs the permission query on all of its topics (flintmq user grant NAME --query)")
        return "; ".join(reasons)

    @property
    def oldest_at(self) -> datetime | None:
        """Store time of the oldest message to read; None as for ``oldest_ms``."""
        return None if self.oldest_ms is None else from_millis(self.oldest_ms)

    @property
    def seconds(self) -> float | None:
        """Age of the oldest message to read: the lag in time; None as for ``oldest_ms``."""
        return None if self.oldest_ms is None else max(0.0, time.time() - self.oldest_ms / 1000)

    def __add__(self, other: Lag) -> Lag:
        times = [each.oldest_ms for each in (self, other) if each.oldest_ms is not None]
        return Lag(
            self.messages + other.messages,
            self.unknown_queues + other.unknown_queues,
            self.partial or other.partial,
            min(times, default=None),
        )


def lag_in(row: ConsumeStats | GroupQueue) -> Lag:
    oldest = row.next_stored_ms if row.next_stored_ms >= 0 else None
    return Lag(row.lag, oldest_ms=oldest) if row.known else Lag(unknown_queues=1)


def lag_by_group(rows: Iterable[ConsumeStats]) -> dict[str, Lag]:
    """Return the lag of each group over all topics. ``rows`` must include queues without a committed offset."""
    lags: dict[str, Lag] = {}
    for row in read_rows(rows):
        lags[row.group] = lags.get(row.group, Lag()) + lag_in(row)
    return lags


def lag_of(info: GroupInfo, lags: dict[str, Lag]) -> Lag:
    """Return the lag of one group; for a broadcasting group, the largest lags of a member."""
    if info.mode != BROADCASTING:
        found = lags.get(info.group, Lag())
    else:
        # Each member reads all messages, so a sum would count them several times.
        of_members = [lag for name, lag in lags.items() if name.startswith(info.group + MEMBER_SEPARATOR)]
        unknown = max((lag.unknown_queues for lag in of_members), default=0)
        oldest = min((lag.oldest_ms for lag in of_members if lag.oldest_ms is not None), default=None)
        found = Lag(max((lag.messages for lag in of_members), default=0), unknown, oldest_ms=oldest)
    return found + Lag(partial=info.partial)
