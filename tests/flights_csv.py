"""A generated CSV of flights, so that no test needs the real one."""

from __future__ import annotations

import csv
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

HEADING = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_time", "dep_delay")
FIRST_HOUR = datetime(2013, 3, 1, tzinfo=UTC)
ORIGINS = ("EWR", "JFK", "LGA")


def write_flights(path: Path, count: int, days: int = 30, seed: int = 1) -> Path:
    """Write a CSV of ``count`` random flights: some are cancelled, some have no aircraft, one in twenty an alert."""
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADING)
        for number in range(count):
            hour = FIRST_HOUR + timedelta(hours=chance.randrange(days * 24))
            is_cancelled = chance.random() < 0.05
            delay = chance.randint(121, 600) if chance.random() < 0.05 else chance.randint(-20, 120)
            writer.writerow(
                (
                    hour.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    chance.choice(("AA", "B6", "UA")),
                    number,
                    "NA" if is_cancelled else f"N{number % 97}",
                    chance.choice(ORIGINS),
                    "BOS",
                    "NA" if is_cancelled else 1200,
                    "NA" if is_cancelled else delay,
                )
            )
    return path
