"""How far a query is, added up from what Spark reports of each micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_NO_WATERMARK = "1970-01-01T00:00:00"
"""Spark's word for none, in the first micro-batch."""


@dataclass(slots=True)
class QueryProgress:
    """One query since it was started this time."""

    query: str
    state: str = "starting"
    """``starting``, ``working``, ``waiting``, ``ended``, ``stopped`` or ``failed``."""
    batches: int = 0
    messages: int = 0
    """Read."""
    behind: int | None = None
    """Messages that the broker had and the query had not read, when the last micro-batch began; None: not known yet."""
    late: int = 0
    """Rows that came behind the watermark and were dropped: it should be 0."""
    unreadable: int = 0
    """Messages that are no flights, left out."""
    watermark: str | None = None
    """Event time before which everything is closed, ISO 8601; None where the query has no watermark."""

    def add(self, report: Mapping[str, Any]) -> None:
        """One of Spark's reports, by its names in JSON."""
        if "addBatch" in report["durationMs"]:  # else nothing was there to do
            self.batches += 1
            self.messages += report["numInputRows"]
            self.late += sum(state["numRowsDroppedByWatermark"] for state in report.get("stateOperators", ()))
            self.unreadable += report.get("observedMetrics", {}).get("messages", {}).get("unreadable", 0)
        watermark = report.get("eventTime", {}).get("watermark")
        if watermark and not watermark.startswith(_NO_WATERMARK):
            self.watermark = watermark
        (source,) = report["sources"]
        if source["latestOffset"] and source["endOffset"]:
            self.behind = _behind(source["endOffset"], source["latestOffset"])


def _behind(read: Mapping[str, int], there: Mapping[str, int]) -> int:
    """Offsets are by queue: see ``flintmq.client.spark.offsets``."""
    return sum(max(0, end - read.get(queue, 0)) for queue, end in there.items())


class Follower:
    """Keeps the progress of a running query up to date."""

    def __init__(self, name: str, query: StreamingQuery) -> None:
        self.query = query
        self.progress = QueryProgress(name)
        self._seen: str | None = None

    def look(self) -> QueryProgress:
        """Take in what Spark has reported since the last look. Spark keeps the last hundred reports."""
        reports = [json.loads(report.json()) for report in self.query._jsq.recentProgress()]
        times = [report["timestamp"] for report in reports]
        new = reports[times.index(self._seen) + 1 :] if self._seen in times else reports
        for report in new:
            self.progress.add(report)
        if times:
            self._seen = times[-1]
        self.progress.state = self._state()
        return self.progress

    def _state(self) -> str:
        status = self.query.status
        if not self.query.isActive:
            return "ended" if self.query.exception() is None else "failed"
        if status["isTriggerActive"]:
            return "working" if self._seen or status["isDataAvailable"] else "starting"
        return "waiting" if self._seen else "starting"
