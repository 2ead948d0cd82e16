"""State of a broker: the figures of ``status``, ``top`` and ``check``.

Some figures may be withheld from the user, and an older broker does not report all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.times import from_millis


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
