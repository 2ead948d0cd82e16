"""The Spark session of the example, whose log goes to a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flintmq.client.spark import SparkUnavailable, session

from .errors import InvalidFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
