"""The flights example without Spark and without a broker: its input, verification, results folder and errors."""

from __future__ import annotations

import gzip
import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import StoredMessage
from flintmq.protocol.storage.record import Record, encode_properties
from flintmq.scripts.examples.flights.errors import InvalidFlights, InvalidFolder, ResultsDiffer
from flintmq.scripts.examples.flights.flight import Flight, message_of, read_flights
from flintmq.scripts.examples.flights.progress import QueryProgress
from flintmq.scripts.examples.flights.queries import LATENESS
from flintmq.scripts.examples.flights.replay import HEARTBEAT_HOURS, quiet_time
from flintmq.scripts.examples.flights.results_folder import SINK_LOG, ResultsFolder
from flintmq.scripts.examples.flights.spark_errors import reason_of
from flintmq.scripts.examples.flights.verification import (
    Departures,
    Expected,
    Hour,
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
PURPOSE = {"topic": "flights", "alerts": "alerts"}


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text("\n".join([HEADING, *ROWS]) + "\n")
    return path


@pytest.fixture
def expected(csv: Path) -> Expected:
    return Expected.of_csv(csv)


def test_a_csv_reads_the_same_plain_and_compressed(csv: Path, tmp_path: Path) -> None:
    zipped, gzipped = tmp_path / "flights.csv.zip", tmp_path / "flights.csv.gz"
    with zipfile.ZipFile(zipped, "w") as files:
        files.write(csv, "flights.csv")
    gzipped.write_bytes(gzip.compress(csv.read_bytes()))
    plain = list(read_flights(csv))
    assert len(plain) == len(ROWS)
    assert list(read_flights(zipped)) == plain == list(read_flights(gzipped))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("carrier,flight\nUA,1\n", "has no column dep_delay, dep_time, dest, origin, tailnum, time_hour"),
        (f"{HEADING}\n{ROWS[0]}\n2013-01-01T10:00:00Z,UA,x,N1,EWR,IAH,517,2\n", "line 3, is not a flight"),
        (f"{HEADING}\n2013-01-01T10:00:00,UA,1,N1,EWR,IAH,517,2\n", "line 2, is not a flight: .* has no zone"),
        (f"{HEADING}\n2013-01-01T10:00:00Z,UA,1\n", "line 2, is not a flight"),
    ],
)
def test_an_invalid_flight_is_named_with_its_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "flights.csv"
    path.write_text(text)
    with pytest.raises(InvalidFlights, match=f"{path}.*{said}"):
        list(read_flights(path))


@pytest.mark.parametrize("name", ["missing.csv", "broken.csv.zip", "broken.csv.gz"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if "broken" in name:
        path.write_bytes(b"no archive")
    with pytest.raises(InvalidFlights, match=str(path)):
        list(read_flights(path))


def test_a_message_has_null_for_unknown_values_and_its_aircraft_as_key(csv: Path) -> None:
    flights = list(read_flights(csv))
    first, cancelled = message_of(flights[0], "flights"), message_of(flights[2], "flights")
    assert json.loads(first.body)["dep_delay"] == 2
    assert first.keys == ("UA1545", "N14228")
    assert first.tags == "EWR"
    assert json.loads(cancelled.body) | {"dep_time": None, "tailnum": None} == json.loads(cancelled.body)
    assert cancelled.keys == ("AA1141",)


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


def test_many_differences_are_counted_and_the_first_shown() -> None:
    with pytest.raises(ResultsDiffer, match=r"12 differences from the CSV: d0; d1; and 10 more") as caught:
        Verification(differences=[f"d{number}" for number in range(12)]).raise_for_differences(2)
    assert len(caught.value.differences) == 12


# ---- the results folder


def claim(folder: ResultsFolder, purpose: dict[str, str] = PURPOSE) -> None:
    with folder.claimed(purpose):
        pass


def test_a_second_run_claims_the_same_folder(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "results")
    claim(folder)
    claim(folder)
    assert folder.checkpoint.is_dir()


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path / "results")
    with folder.claimed(PURPOSE), pytest.raises(InvalidFolder, match="another run uses"):
        claim(folder)


def test_a_checkpoint_continues_only_for_its_topics_and_its_folder(tmp_path: Path) -> None:
    claim(ResultsFolder(tmp_path / "results"))
    with pytest.raises(InvalidFolder, match="is for topic 'flights', not 'orders'"):
        claim(ResultsFolder(tmp_path / "results"), {"topic": "orders", "alerts": "alerts"})
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidFolder, match="is for results"):
        claim(ResultsFolder(tmp_path / "elsewhere"))


def test_results_without_their_checkpoint_are_refused_and_so_is_the_reverse(tmp_path: Path) -> None:
    (tmp_path / "results" / SINK_LOG).mkdir(parents=True)
    with pytest.raises(InvalidFolder, match="holds results without the checkpoint"):
        claim(ResultsFolder(tmp_path / "results"))
    old = ResultsFolder(tmp_path / "old")
    commits = old.checkpoint / "departures" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1\n{}")
    with pytest.raises(InvalidFolder, match="holds a checkpoint without the results"):
        claim(old)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(InvalidFolder, match=r"holds other files, such as letter.txt"):
        claim(ResultsFolder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFolder, match=r"file.* cannot be used"):
        claim(ResultsFolder(tmp_path / "file" / "results"))


def test_a_folder_without_results_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(InvalidFolder, match="holds no results"):
        ResultsFolder(tmp_path).check_results()


# ---- progress and failures


def report(rows: int, read: int, there: int, **more: Any) -> dict[str, Any]:
    """Return one of Spark's progress reports of a micro-batch."""
    source = {"endOffset": {"flights/0": read}, "latestOffset": {"flights/0": there, "flights/1": 5}}
    return {"durationMs": {"addBatch": 1}, "numInputRows": rows, "sources": [source], **more}


def test_progress_adds_up_and_shows_its_lag() -> None:
    progress = QueryProgress("departures")
    watermark = {"watermark": "1970-01-01T00:00:00.000Z"}
    progress.add(report(10, 10, 40, eventTime=watermark, stateOperators=[{"numRowsDroppedByWatermark": 0}]))
    assert (progress.messages, progress.lag, progress.watermark) == (10, 35, None)
    metrics = {"messages": {"unreadable": 2}}
    watermark = {"watermark": "2013-01-01T00:00:00.000Z"}
    dropped = [{"numRowsDroppedByWatermark": 3}]
    progress.add(report(30, 40, 40, eventTime=watermark, stateOperators=dropped, observedMetrics=metrics))
    idle = report(0, 40, 41) | {"durationMs": {"latestOffset": 1}}
    progress.add(idle)
    assert (progress.messages, progress.batches, progress.late, progress.unreadable) == (40, 2, 3, 2)
    assert (progress.lag, progress.watermark) == (6, "2013-01-01T00:00:00.000Z")
    assert str(progress) == (
        "departures: starting, 40 messages in 2 batches, 6 behind, hours before 2013-01-01T00:00:00.000Z are final, "
        "3 rows LATE and dropped, 2 messages UNREADABLE and left out"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source "
            "perform latestOffset: flintmq.client.spark.errors.DataLoss: the messages [0, 5) are gone. SQLSTATE: 38000",
            "the messages [0, 5) are gone",
        ),
        (
            'Job aborted\n\tat org.apache.spark.Scheduler\nTraceback (most recent call last):\n  File "x.py", line 1\n'
            "flintmq.protocol.errors.DiskFull: no room\n\n\tat java.base/java.lang.Thread.run",
            "no room",
        ),
        (
            'Failed\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: odd\n\tat org.apache',
            "ValueError: odd",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03\n\tat org.apache", "Path does not exist: /x"),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def test_a_flight_is_identified_by_its_number_and_hour() -> None:
    flight = Flight(TEN, {"carrier": "UA", "flight": 1545, "time_hour": "2013-01-01T10:00:00Z"})
    assert flight.identity == "UA1545@2013-01-01T10:00:00Z"
