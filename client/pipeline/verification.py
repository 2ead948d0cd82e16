"""What the pipeline must have made, computed from the CSV in plain Python, and how what it made differs from that."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.consume.stored import StoredMessage
from .errors import InvalidFolder, ResultsDiffer
from .flights import Flight, read_flights
from .folders import SINK_LOG
from .queries import ALERT_MINUTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEAN_TOLERANCE = 1e-9
"""Minutes by which a mean may differ: the sums are exact, the division is a rounding."""
ALERT_FIELDS = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")


class Hour(NamedTuple):
    """One hour (its beginning, UTC) of one origin."""

    hour: datetime
    origin: str

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M} {self.origin}"


class Departures(NamedTuple):
    """What is known of an hour: how many left, and how late in the mean."""

    departures: int
    mean_delay_minutes: float


@dataclass
class Expected:
    """What the CSV says."""

    hours: dict[Hour, Departures] = field(default_factory=dict)
    alerts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Bodies by the identity of their flight."""

    @classmethod
    def of_csv(cls, path: Path) -> Expected:
        """From the flights of a CSV file. Raises ``InvalidFlights``."""
        return cls.of(read_flights(path))

    @classmethod
    def of(cls, flights: Iterable[Flight]) -> Expected:
        """From these flights."""
        expected = cls()
        delays: dict[Hour, list[int]] = {}
        for flight in flights:
            values = flight.values
            if not flight.is_departure:
                continue
            hour = flight.event_time.replace(minute=0, second=0, microsecond=0)
            delays.setdefault(Hour(hour, values["origin"]), []).append(values["dep_delay"])
            if values["dep_delay"] > ALERT_MINUTES:
                # Spark's to_json leaves out what is null.
                body = {name: values[name] for name in ALERT_FIELDS if values[name] is not None}
                expected.alerts[flight.identity] = body
        expected.hours = {hour: Departures(len(each), sum(each) / len(each)) for hour, each in delays.items()}
        return expected


@dataclass
class PipelineVerified:
    """What was compared, and in words each difference."""

    hours: int = 0
    departures: int = 0
    alerts: int = 0
    repeated_alerts: int = 0
    """Alerts that are there again, with the same content: at least once is what the sink promises."""
    differences: list[str] = field(default_factory=list)

    def raise_for_differences(self, shown_max: int) -> None:
        """Raise ``ResultsDiffer``, whose message has the first of them, where there are any."""
        if not self.differences:
            return
        count = len(self.differences)
        lines = self.differences[:shown_max] + ([f"and {count - shown_max:,} more"] if count > shown_max else [])
        raise ResultsDiffer(f"{count:,} differences from the CSV: " + "; ".join(lines), self.differences)


def compare_hours(found: Iterable[tuple[Hour, Departures]], expected: Expected, verified: PipelineVerified) -> None:
    """Each hour must be there exactly once, with these figures."""
    missing = dict(expected.hours)
    for hour, row in found:
        verified.hours += 1
        verified.departures += row.departures
        wanted = missing.pop(hour, None)
        if wanted is None:
            why = "is there twice" if hour in expected.hours else "has no departure in the CSV"
            verified.differences.append(f"{hour}: {why}")
        elif row.departures != wanted.departures:
            verified.differences.append(f"{hour}: {row.departures} departures, the CSV has {wanted.departures}")
        elif not math.isclose(row.mean_delay_minutes, wanted.mean_delay_minutes, rel_tol=0.0, abs_tol=MEAN_TOLERANCE):
            verified.differences.append(
                f"{hour}: a mean delay of {row.mean_delay_minutes!r} min, the CSV has {wanted.mean_delay_minutes!r}"
            )
    verified.differences += [
        f"{hour}: is missing, the CSV has {row.departures} departures" for hour, row in missing.items()
    ]


def compare_alerts(found: Iterable[StoredMessage], expected: Expected, verified: PipelineVerified) -> None:
    """Each alert must be there, at least once, always with the same content; and no other."""
    seen: set[str] = set()
    for message in found:
        key = message.keys[0] if message.keys else ""
        wanted = expected.alerts.get(key)
        where = f"alert {key!r} (queue {message.queue}, offset {message.queue_offset})"
        if wanted is None:
            verified.differences.append(f"{where}: no flight in the CSV is so late")
        elif _object_of(message.body) != wanted or message.tags != wanted["origin"]:
            verified.differences.append(f"{where}: its body or tag is not what the CSV has")
        verified.repeated_alerts += key in seen
        seen.add(key)
    verified.alerts = len(seen)
    verified.differences += [f"alert {key!r}: is missing" for key in expected.alerts.keys() - seen]


def _object_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def check_results(results: Path) -> None:
    """Raises ``InvalidFolder`` where no pipeline has written anything."""
    if not (results / SINK_LOG).is_dir():
        raise InvalidFolder(f"{results} holds no results of the pipeline: give the folder that it was run with")


def read_hours(spark: SparkSession, results: Path) -> list[tuple[Hour, Departures]]:
    """The rows of the Parquet files that count: Spark's reader knows them by the log that its sink keeps there."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.read.parquet(str(results)).withColumn("hour", F.unix_seconds("hour")).collect()
    return [
        (Hour(datetime.fromtimestamp(seconds, UTC), origin), Departures(departures, mean))
        for seconds, origin, departures, mean in rows
    ]
