"""The runner: runs both queries until they reach the end, one of them fails, or the caller stops them.

The folder of their results, their Spark session and their progress come first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flintmq.client import Admin, FlintError, InvalidArgument
from flintmq.client.spark import SparkUnavailable, session

from . import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class InvalidFolder(InvalidArgument):
    """Error: a folder cannot be used for the results. Nothing in it was changed."""


class QueryFailed(FlintError):
    """Error: a streaming query failed. The message says which one, why, and how to continue."""


# ---- The folder of the results and Spark's checkpoints, checked before Spark starts because Spark does not check it.
#
# Results and checkpoints belong together. With a new checkpoint and old results, Spark would silently skip every
# micro-batch whose number is in the results already; with an old checkpoint and new results, it would never write the
# micro-batches that the checkpoint lists as done.

CHECKPOINT = "_checkpoint"
"""Folder of the checkpoints within the results; readers of Parquet ignore names that begin with ``_``."""
SINK_LOG = "_spark_metadata"
"""Spark's list of the valid files. Other files are left from micro-batches that did not finish."""
LOCK = ".lock"
PURPOSE = "pipeline.json"
"""File in the checkpoint folder with the topics and the folder that the checkpoints are for."""


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """The folder ``path`` with Parquet files; ``checkpoint`` in it has a folder for each query."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @contextlib.contextmanager
    def claimed(self, purpose: dict[str, str]) -> Iterator[None]:
        """Hold the folder for one run; ``purpose`` must be the same as when its checkpoints began.

        Raises ``InvalidFolder`` if another run holds the folder or its contents do not fit.
        """
        try:
            self._check_files()
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFolder(f"{error.filename} cannot be used: {error.strerror}; use another folder") from error
        with _locked(self.checkpoint):
            self._check_purpose(purpose)
            yield

    def check_results(self) -> None:
        """Raise ``InvalidFolder`` if no run has written results."""
        if not (self.path / SINK_LOG).is_dir():
            raise InvalidFolder(f"{self.path} holds no results: use the folder that `count` wrote to")

    def _check_files(self) -> None:
        commits = self.checkpoint / "departures" / "commits"
        has_checkpoint = commits.is_dir() and any(commits.iterdir())
        if has_checkpoint != (self.path / SINK_LOG).is_dir():
            there, missing = ("a checkpoint", "results") if has_checkpoint else ("results", "checkpoint")
            raise InvalidFolder(f"{self.path} holds {there} without the {missing} that belong to it; use a new folder")
        if not (self.checkpoint / PURPOSE).exists():
            ours = (self.checkpoint, self.checkpoint / LOCK)
            for folder in (self.path, self.checkpoint):
                if other := next((path for path in folder.glob("*") if path not in ours), None):
                    raise InvalidFolder(
                        f"{folder} holds other files, such as {other.name}: use an empty folder or a new one"
                    )

    def _check_purpose(self, purpose: dict[str, str]) -> None:
        file = self.checkpoint / PURPOSE
        purpose = {**purpose, "results": str(self.path)}  # Spark's list of files has absolute paths
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            file.write_text(json.dumps(purpose, indent=1) + "\n", encoding="utf-8")
            return
        except (OSError, ValueError) as error:
            raise InvalidFolder(f"{file} cannot be read: {error}; use another folder") from error
        for name, value in purpose.items():
            if before.get(name) != value:
                raise InvalidFolder(
                    f"the checkpoint in {self.checkpoint} is for {name} {before.get(name)!r}, not {value!r}: use "
                    f"{before.get(name)!r} again, or a new folder"
                )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder; the system releases it however this process ends."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidFolder(
                f"another run uses the checkpoint in {folder}: wait until it ends, or stop it"
            ) from None
        yield


# ---- The cause of a failed query in one line, taken from the hundred lines that Spark prints.

_FLINTMQ_ERROR = re.compile(r"\bflintmq(?:\.\w+)+: .+")
"""An error of FlintMQ as Python prints it: the qualified class name and the message."""
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: .+", re.MULTILINE)
"""The last line of a traceback."""
_SPARK_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r" SQLSTATE: \w{5}$")


def reason_of(error: BaseException) -> str:
    """Return the cause of an error that PySpark raised, without a full stop at its end."""
    text = str(error)
    if found := _FLINTMQ_ERROR.findall(text):
        _, _, reason = found[-1].partition(": ")
    elif found := _PYTHON_ERROR.findall(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else []:
        reason = found[-1]
    else:
        line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        reason = _SPARK_CLASS.sub("", line)
    return _SQL_STATE.sub("", str(reason).strip()).rstrip(".")


# ---- The Spark session, whose log goes to a file.

STOP_SECONDS_MAX = 30
_SHOWN_LINES = 3
_SHOWN_BYTES = 4096

SETTINGS: Mapping[str, str | int | bool] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # few other readers know the default, INT96
    # Three origins and the hours of some days are a small state, and each partition of it costs a file and a task in
    # every micro-batch.
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.streaming.stopTimeout": f"{STOP_SECONDS_MAX}s",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": False,
}
SHORT_RUN_SETTINGS: Mapping[str, str] = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""Further settings of a short run: the JVM's second compiler would take a third of its CPU time and not pay off."""


@contextlib.contextmanager
def spark_session(log: Path, master: str | None = None, *, is_short_run: bool = False) -> Iterator[SparkSession]:
    """Start a session with FlintMQ's data sources and stop it at the end; ``master`` is as for ``session``.

    Standard error of Spark's processes is appended to ``log``: it would overwrite the progress on the terminal, and the
    errors of this package have the cause in one line. Raises ``SparkUnavailable``, which says what to install.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    except OSError as error:
        raise InvalidFolder(f"Spark's log cannot be written to {log}: {error.strerror}; use another folder") from error
    with file:
        begin = file.tell()
        try:
            with _standard_error_to(file.fileno()):
                settings = {**SETTINGS, **(SHORT_RUN_SETTINGS if is_short_run else {})}
                spark = session("flintmq-flights", master=master, settings=settings)
        except SparkUnavailable as error:
            if last_lines := _last_lines(log, begin):
                raise SparkUnavailable(f"{error}; the log {log} ends with: {last_lines}") from error
            raise
    from py4j.protocol import Py4JError  # after session(), which reports a missing PySpark

    try:
        yield spark
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # Java is gone; the runner has reported it
            spark.stop()


@contextlib.contextmanager
def _standard_error_to(descriptor: int) -> Iterator[None]:
    """Give processes started within the context this file as standard error."""
    original = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def _last_lines(log: Path, begin: int) -> str:
    """Return the last lines that were written after ``begin``, joined into one."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - _SHOWN_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-_SHOWN_LINES:])


# ---- Progress of the queries: Spark's reports of the micro-batches, added up and shown.

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


# ---- The run.

ALERT_QUEUES = 4
UPDATE_SECONDS = 0.5
"""Seconds between two updates of the progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """Input and output of the queries."""

    broker: str
    topic: str
    alerts_topic: str
    results: ResultsFolder
    once: bool = False
    """True: end after the messages that were there at the start; False: follow the topic."""
    lateness: timedelta = queries.LATENESS
    rows_a_batch: int = queries.ROWS_A_BATCH

    @property
    def purpose(self) -> dict[str, str]:
        """Return the names that must not change between runs; the broker's address may."""
        return {"topic": self.topic, "alerts": self.alerts_topic}


@contextlib.contextmanager
def prepared(pipeline: Pipeline, timeout: float) -> Iterator[None]:
    """Check the topics and claim the results folder for the time of the context: this fails fast, Spark starts slowly.

    Creates the topic of the alerts if it does not exist. ``timeout`` is in seconds, for each response of the broker.
    Raises the broker's errors, ``ConnectionFailed``, ``InvalidFolder``, or ``InvalidArgument`` if alerts would go to
    the topic that is read.
    """
    if pipeline.topic == pipeline.alerts_topic:
        raise InvalidArgument(f"topic {pipeline.topic!r} is the input; use another topic for the alerts")
    with Admin(pipeline.broker, timeout=timeout) as admin:
        admin.topic_stats(pipeline.topic)
        with pipeline.results.claimed(pipeline.purpose):
            if pipeline.alerts_topic not in admin.topics():
                admin.create_topic(pipeline.alerts_topic, ALERT_QUEUES)
            yield


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    show: Callable[[Sequence[QueryProgress]], None] = lambda progress: None,
    stopping: threading.Event | None = None,
) -> list[QueryProgress]:
    """Run both queries of a ``prepared`` pipeline and return their progress.

    ``show`` is called every half second; setting ``stopping`` ends the queries. Their state is in the checkpoints: a
    run with the same folder continues there. Raises ``QueryFailed`` if a query fails, after stopping the other one.
    """
    stopping = stopping or threading.Event()
    followers: list[Follower] = []
    with _java_failures(stopping):
        try:
            for name, writer in _writers(spark, pipeline).items():
                followers.append(Follower(name, _start(name, writer)))
            while _update(followers, show) and not stopping.is_set():
                stopping.wait(UPDATE_SECONDS)
        finally:
            _stop(followers)
    return [follower.progress for follower in followers]


def _writers(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataStreamWriter]:
    """Return both queries, ready to start, by name."""
    rows = pipeline.rows_a_batch
    flights = queries.flights(queries.messages(spark, pipeline.broker, pipeline.topic, rows))
    departures = queries.departures(flights, pipeline.lateness)
    alerts = queries.alerts(flights)
    return {
        "departures": _writer("departures", departures, "parquet", {"path": str(pipeline.results.path)}, pipeline),
        "alerts": _writer(
            "alerts", alerts, "flintmq", {"bootstrap": pipeline.broker, "topic": pipeline.alerts_topic}, pipeline
        ),
    }


def _writer(name: str, rows: DataFrame, sink: str, options: Mapping[str, str], pipeline: Pipeline) -> DataStreamWriter:
    writer = rows.writeStream.queryName(name).outputMode("append").format(sink).options(**options)
    writer = writer.option("checkpointLocation", str(pipeline.results.checkpoint / name))
    return writer.trigger(availableNow=True) if pipeline.once else writer


def _start(name: str, writer: DataStreamWriter) -> StreamingQuery:
    from pyspark.errors import PySparkException

    try:
        return writer.start()
    except PySparkException as error:
        raise _failed([(name, error)]) from error


def _update(followers: Sequence[Follower], show: Callable[[Sequence[QueryProgress]], None]) -> bool:
    """Show the progress; return whether any query still runs. Raises ``QueryFailed`` if one failed."""
    running = [follower.query.isActive for follower in followers]  # before the update, so that the last one is complete
    show([follower.update() for follower in followers])
    # Spark may end the workers of one query with those of another that failed: name all, the cause is among them.
    failures = [(each.progress.query, error) for each in followers if (error := each.query.exception()) is not None]
    if failures:
        raise _failed(failures)
    return any(running)


@contextlib.contextmanager
def _java_failures(stopping: threading.Event) -> Iterator[None]:
    """Raise ``QueryFailed`` if Spark's Java process is gone, unless a stop was requested.

    A signal to the whole process group, such as Ctrl-C, stops Java too.
    """
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not stopping.is_set():
            raise QueryFailed(
                f"Spark's Java process no longer responds: {reason_of(error)}. If the system ended it because memory "
                "ran out, use a smaller --batch. Run it again with the same folder to continue"
            ) from error


def _stop(followers: Sequence[Follower]) -> None:
    for follower in followers:
        if follower.query.isActive:
            follower.query.stop()
            follower.progress.state = "stopped"


def _failed(failures: Sequence[tuple[str, BaseException]]) -> QueryFailed:
    reasons = "; ".join(f"the query {name!r} failed: {reason_of(error)}" for name, error in failures)
    return QueryFailed(f"{reasons}. Fix the cause and run it again with the same folder to continue")
