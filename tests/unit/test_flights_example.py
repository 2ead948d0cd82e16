"""The flights example without Spark and without a broker: its quiet time, and its verification of the results."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import StoredMessage
from flintmq.protocol.storage.record import Record, encode_properties
from flintmq.scripts.examples.flights.flight import HEARTBEAT_HOURS, quiet_time
from flintmq.scripts.examples.flights.queries import LATENESS
from flintmq.scripts.examples.flights.verification import (
    Departures,
    Expected,
    Hour,
    ResultsDiffer,
    Verification,
    compare_alerts,
    compare_hours,
)

HEADING = "time_hour,carrier,flight,tailnum,origin,dest,dep_time,dep_delay"
ROWS = (
    "2013-01-01T10:00:00Z,UA,1545,N14228,EWR,IAH,517,2",
    "2013-01-01T10:00:00Z,UA,1714,N24211,EWR,IAH,533,5",
    "2013-01-01T10:00:00Z,AA,1141,NA,EWR,MIA,NA,NA",
    "2013-01-01T11:00:00Z,B6,725,N804JB,JFK,BQN,1044,121",
    "2013-01-01T11:00:00Z,B6,726,N804JB,JFK,BQN,1044,120",
    "2013-01-01T12:00:00Z,B6,727,NA,LGA,BQN,NA,NA",
)
TEN, ELEVEN = datetime(2013, 1, 1, 10, tzinfo=UTC), datetime(2013, 1, 1, 11, tzinfo=UTC)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text("\n".join([HEADING, *ROWS]) + "\n")
    return path


@pytest.fixture
def expected(csv: Path) -> Expected:
    return Expected.of_csv(csv)


def test_time_continues_after_the_last_flight_in_steps_that_close_no_hour_too_soon() -> None:
    beats = [json.loads(beat.body)["time_hour"] for beat in quiet_time(TEN, "flights")]
    assert beats[0] == "2013-01-01T16:00:00Z"
    last = datetime.fromisoformat(beats[-1])
    assert last - LATENESS > TEN + timedelta(hours=1)  # the last hour is closed
    assert 4 * timedelta(hours=HEARTBEAT_HOURS) <= LATENESS


def test_cancelled_flights_do_not_count_and_an_alert_is_later_than_two_hours(expected: Expected) -> None:
    assert expected.hours == {Hour(TEN, "EWR"): Departures(2, 3.5), Hour(ELEVEN, "JFK"): Departures(2, 120.5)}
    assert list(expected.alerts) == ["B6725@2013-01-01T11:00:00Z"]


RIGHT = {Hour(TEN, "EWR"): Departures(2, 3.5), Hour(ELEVEN, "JFK"): Departures(2, 120.5)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*RIGHT.items()][:1], "2013-01-01 11:00 JFK: is missing"),
        ([*RIGHT.items(), (Hour(TEN, "EWR"), Departures(2, 3.5))], "2013-01-01 10:00 EWR: is in the results twice"),
        ([*RIGHT.items(), (Hour(TEN, "LGA"), Departures(1, 0.0))], "2013-01-01 10:00 LGA: has no departure"),
        (list((RIGHT | {Hour(TEN, "EWR"): Departures(3, 3.5)}).items()), "3 departures, the CSV has 2"),
        (list((RIGHT | {Hour(TEN, "EWR"): Departures(2, 3.5 + 1e-8)}).items()), "the CSV has 3.5"),
        (list((RIGHT | {Hour(TEN, "EWR"): Departures(2, float("nan"))}).items()), "mean delay nan"),
    ],
)
def test_each_way_in_which_hours_can_differ_is_found(
    expected: Expected, rows: list[tuple[Hour, Departures]], said: str
) -> None:
    verified = Verification()
    compare_hours(rows, expected, verified)
    assert len(verified.differences) == 1
    with pytest.raises(ResultsDiffer, match=said):
        verified.raise_for_differences(10)


def test_equal_hours_do_not_differ(expected: Expected) -> None:
    verified = Verification()
    rows = RIGHT | {Hour(TEN, "EWR"): Departures(2, 3.5 + 1e-10)}
    compare_hours(rows.items(), expected, verified)
    verified.raise_for_differences(10)
    assert (verified.hours, verified.departures) == (2, 4)


def alert(
    expected: Expected, key: str = "B6725@2013-01-01T11:00:00Z", tags: str = "JFK", **changed: Any
) -> StoredMessage:
    """Return a stored message with an alert."""
    body = json.dumps(next(iter(expected.alerts.values())) | changed).encode()
    blob = Record(b"alerts", body, encode_properties({"KEYS": key, "TAGS": tags})).encode()
    return StoredMessage(len(blob), 0, blob, "alerts")


def test_a_repeated_alert_with_the_same_content_is_no_difference(expected: Expected) -> None:
    verified = Verification()
    compare_alerts([alert(expected), alert(expected)], expected, verified)
    assert (verified.alerts, verified.repeated_alerts, verified.differences) == (1, 1, [])


def test_each_way_in_which_alerts_can_differ_is_found(expected: Expected) -> None:
    for found, said in (
        ([], "is missing"),
        ([alert(expected), alert(expected, dep_delay=122)], "its body or tag"),
        ([alert(expected, tags="EWR")], "its body or tag"),
        ([alert(expected), alert(expected, key="XX1@2013-01-01T11:00:00Z")], "the CSV has no such delay"),
    ):
        verified = Verification()
        compare_alerts(found, expected, verified)
        assert [said in difference for difference in verified.differences] == [True], said


# ---- the results folder


# ---- progress and failures
