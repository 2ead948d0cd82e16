"""Progress of the streaming queries: Spark's reports of the micro-batches, added up and shown."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LINE_SECONDS = 5.0
"""Minimum seconds between two lines about a query without a terminal; its end is always shown."""
END_STATES = ("ended", "failed", "stopped")
_NO_WATERMARK = "1970-01-01T00:00:00"
"""The watermark in Spark's report of the first micro-batch: not known yet."""


@dataclass(slots=True)
class QueryProgress:
    """Progress of one query since it was last started."""

    query: str
    state: str = "starting"
    """``starting``, ``working``, ``waiting`` or one of ``END_STATES``."""
    batches: int = 0
    messages: int = 0
    """Number of messages read."""
    lag: int | None = None
    """Number of unread messages when the last micro-batch began; None if not known yet."""
    late: int = 0
    """Number of rows dropped because they arrived after the watermark: it should be 0."""
    unreadable: int = 0
    """Number of messages left out because they are not flights."""
    watermark: str | None = None
    """Event time (ISO 8601) before which every hour is final; None if the query has no watermark."""

    def add(self, report: Mapping[str, Any]) -> None:
        """Add one of Spark's reports, as parsed from its JSON."""
        if "addBatch" in report["durationMs"]:  # otherwise there was nothing to do
            self.batches += 1
            self.messages += report["numInputRows"]
            self.late += sum(state["numRowsDroppedByWatermark"] for state in report.get("stateOperators", ()))
            self.unreadable += report.get("observedMetrics", {}).get("messages", {}).get("unreadable", 0)
        watermark = report.get("eventTime", {}).get("watermark")
        if watermark and not watermark.startswith(_NO_WATERMARK):
            self.watermark = watermark
        (source,) = report["sources"]
        read, latest = source["endOffset"], source["latestOffset"]
        if read and latest:  # both map a queue to an offset
            self.lag = sum(max(0, end - read.get(queue, 0)) for queue, end in latest.items())

    def __str__(self) -> str:
        """Return a line such as ``departures: working, 150,000 messages in 3 batches, 186,888 behind``."""
        parts = [f"{self.query}: {self.state}, {self.messages:,} messages in {self.batches:,} batches"]
        if self.lag is not None:
            parts.append(f"{self.lag:,} behind")
        if self.watermark is not None:
            parts.append(f"hours before {self.watermark} are final")
        if self.late:
            parts.append(f"{self.late:,} rows LATE and dropped")
        if self.unreadable:
            parts.append(f"{self.unreadable:,} messages UNREADABLE and left out")
        return ", ".join(parts)


class Follower:
    """Follower of a running query: keeps its progress up to date."""

    def __init__(self, name: str, query: StreamingQuery) -> None:
        self.query = query
        self.progress = QueryProgress(name)
        self._last_timestamp: str | None = None

    def update(self) -> QueryProgress:
        """Add Spark's new reports to the progress and return it. Spark keeps the last hundred reports."""
        reports = [json.loads(report.json()) for report in self.query._jsq.recentProgress()]
        times = [report["timestamp"] for report in reports]
        new = reports[times.index(self._last_timestamp) + 1 :] if self._last_timestamp in times else reports
        for report in new:
            self.progress.add(report)
        if times:
            self._last_timestamp = times[-1]
        self.progress.state = self._state()
        return self.progress

    def _state(self) -> str:
        status = self.query.status
        if not self.query.isActive:
            return "ended" if self.query.exception() is None else "failed"
        if status["isTriggerActive"]:
            return "working" if self._last_timestamp or status["isDataAvailable"] else "starting"
        return "waiting" if self._last_timestamp else "starting"


@contextmanager
def progress_display() -> Iterator[Callable[[Sequence[QueryProgress]], None]]:
    """Yield a function that shows the progress of the queries on standard error.

    A terminal shows a line for each query and redraws it; otherwise a line is added at most every ``LINE_SECONDS``.
    """
    if not sys.stderr.isatty():
        yield _LinePrinter().show
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update("\n".join(map(str, progress)), refresh=True)


class _LinePrinter:
    """Progress as lines: one for each query that has advanced."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str, float]] = {}

    def show(self, progress: Sequence[QueryProgress]) -> None:
        now = time.monotonic()
        for row in progress:
            batches, state, at = self._shown.get(row.query, (0, "", -LINE_SECONDS))
            has_ended = state != row.state and row.state in END_STATES
            if has_ended or (batches != row.batches and now - at >= LINE_SECONDS):
                self._shown[row.query] = (row.batches, row.state, now)
                print(row, file=sys.stderr, flush=True)
