"""The check of the results: computes them from the CSV in plain Python and describes each difference."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flintmq.client import Consumer, FlintError, StoredMessage

from .flight import read_flights
from .queries import ALERT_MINUTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEAN_TOLERANCE = 1e-9
"""Minutes by which a mean may differ: the sums are exact, the division rounds."""
TIMEOUT_SECONDS = 60.0
DIFFERENCES_SHOWN = 10
ALERT_FIELDS = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")


class ResultsDiffer(FlintError):
    """Error: the results differ from the CSV; ``differences`` describes each difference."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences


class Hour(NamedTuple):
    """One hour (its beginning, UTC) of one origin."""

    hour: datetime
    origin: str

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M} {self.origin}"


class Departures(NamedTuple):
    """Departures in one hour and their mean delay."""

    departures: int
    mean_delay_minutes: float


@dataclass
class Expected:
    """Results computed from the CSV."""

    hours: dict[Hour, Departures] = field(default_factory=dict)
    alerts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Bodies by the identity of the flight."""

    @classmethod
    def of_csv(cls, path: Path) -> Expected:
        """Compute the results of a CSV file. Raises ``InvalidFlights``."""
        expected = cls()
        delays: dict[Hour, list[int]] = {}
        for flight in read_flights(path):
            values = flight.values
            if not flight.is_departure:
                continue
            hour = flight.event_time.replace(minute=0, second=0, microsecond=0)
            delays.setdefault(Hour(hour, values["origin"]), []).append(values["dep_delay"])
            if values["dep_delay"] > ALERT_MINUTES:
                # Spark's to_json leaves out nulls.
                body = {name: values[name] for name in ALERT_FIELDS if values[name] is not None}
                expected.alerts[flight.identity] = body
        expected.hours = {hour: Departures(len(each), sum(each) / len(each)) for hour, each in delays.items()}
        return expected


@dataclass
class Verification:
    """Figures that were compared, and a description of each difference."""

    hours: int = 0
    departures: int = 0
    alerts: int = 0
    repeated_alerts: int = 0
    """Number of alerts found again with the same content: the sink promises at-least-once delivery."""
    differences: list[str] = field(default_factory=list)

    def raise_for_differences(self, shown_max: int = DIFFERENCES_SHOWN) -> None:
        """Raise ``ResultsDiffer`` if there are differences; its message has the first ``shown_max``."""
        if not self.differences:
            return
        count = len(self.differences)
        lines = self.differences[:shown_max] + ([f"and {count - shown_max:,} more"] if count > shown_max else [])
        raise ResultsDiffer(f"{count:,} differences from the CSV: " + "; ".join(lines), self.differences)


def verify(spark: SparkSession, results: Path, broker: str, alerts_topic: str, expected: Expected) -> Verification:
    """Compare the Parquet files in ``results`` and the messages of ``alerts_topic`` with the expected results."""
    verified = Verification()
    compare_hours(read_hours(spark, results), expected, verified)
    with Consumer(broker, timeout=TIMEOUT_SECONDS) as consumer:
        alerts = consumer.iter(alerts_topic, from_="earliest", until="latest")
        compare_alerts(alerts, expected, verified)
    return verified


def compare_hours(found: Iterable[tuple[Hour, Departures]], expected: Expected, verified: Verification) -> None:
    """Check that each hour is in ``found`` exactly once, with the expected figures."""
    missing = dict(expected.hours)
    for hour, row in found:
        verified.hours += 1
        verified.departures += row.departures
        wanted = missing.pop(hour, None)
        if wanted is None:
            why = "is in the results twice" if hour in expected.hours else "has no departure in the CSV"
            verified.differences.append(f"{hour}: {why}")
        elif row.departures != wanted.departures:
            verified.differences.append(f"{hour}: {row.departures} departures, the CSV has {wanted.departures}")
        elif not math.isclose(row.mean_delay_minutes, wanted.mean_delay_minutes, rel_tol=0.0, abs_tol=MEAN_TOLERANCE):
            verified.differences.append(
                f"{hour}: mean delay {row.mean_delay_minutes!r} min, the CSV has {wanted.mean_delay_minutes!r}"
            )
    verified.differences += [
        f"{hour}: is missing, the CSV has {row.departures} departures" for hour, row in missing.items()
    ]


def compare_alerts(found: Iterable[StoredMessage], expected: Expected, verified: Verification) -> None:
    """Check that ``found`` has each alert at least once, always with the same content, and no other alert."""
    seen: set[str] = set()
    for message in found:
        key = message.keys[0] if message.keys else ""
        wanted = expected.alerts.get(key)
        where = f"alert {key!r} (queue {message.queue}, offset {message.queue_offset})"
        if wanted is None:
            verified.differences.append(f"{where}: the CSV has no such delay")
        elif _object_of(message.body) != wanted or message.tags != wanted["origin"]:
            verified.differences.append(f"{where}: its body or tag differs from the CSV")
        verified.repeated_alerts += key in seen
        seen.add(key)
    verified.alerts = len(seen)
    verified.differences += [f"alert {key!r}: is missing" for key in expected.alerts.keys() - seen]


def _object_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def read_hours(spark: SparkSession, results: Path) -> list[tuple[Hour, Departures]]:
    """Read the rows of the valid Parquet files; Spark's reader finds these in the list that its sink keeps there."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.read.parquet(str(results)).withColumn("hour", F.unix_seconds("hour")).collect()
    return [
        (Hour(datetime.fromtimestamp(seconds, UTC), origin), Departures(departures, mean))
        for seconds, origin, departures, mean in rows
    ]
