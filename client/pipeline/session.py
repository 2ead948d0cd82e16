"""The Spark session that the pipeline runs in, and where Spark's own log goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..spark.errors import SparkUnavailable
from .errors import InvalidFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS_MAX = 30
_SHOWN_LINES = 3
_SHOWN_BYTES = 4096

SETTINGS: Mapping[str, str | int | bool] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, is known to few others
    # Three origins and the hours of some days are a small state. Each partition of it is a file to be written and a
    # task to be run in every micro-batch.
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.streaming.stopTimeout": f"{STOP_SECONDS_MAX}s",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": False,
}
"""Settings of the session."""
# The JVM's second compiler takes a third of the processor time of a run that is over before it pays.
BRIEF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""And of one that ends soon."""


@contextlib.contextmanager
def pipeline_session(log: Path, master: str | None = None, *, brief: bool = False) -> Iterator[SparkSession]:
    """A session with FlintMQ's sources, stopped at the end.

    What Spark's processes write to standard error is appended to ``log``: it would go over the progress that is shown,
    and what it says of a failure in a hundred lines is in the pipeline's error in one. ``master``: see ``session``.
    ``brief``: it will run for a minute, not for days.
    Raises ``SparkUnavailable``, which says what to install.
    """
    from ..spark import session

    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    except OSError as error:
        raise InvalidFolder(f"Spark's log cannot be written to {log}: {error.strerror}; give another folder") from error
    with file:
        begin = file.tell()
        try:
            with _standard_error_to(file.fileno()):
                spark = session("flintmq-pipeline", master=master, settings={**SETTINGS, **(BRIEF if brief else {})})
        except SparkUnavailable as error:
            if said := _last_lines(log, begin):
                raise SparkUnavailable(f"{error}; {log} has it, which ends with: {said}") from error
            raise
    from py4j.protocol import Py4JError  # not before: session() says what is missing

    try:
        yield spark
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # its Java is gone, which the pipeline has said
            spark.stop()


@contextlib.contextmanager
def _standard_error_to(descriptor: int) -> Iterator[None]:
    """Processes that are started within have this file for their standard error; afterwards ours is as it was."""
    ours = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _last_lines(log: Path, begin: int) -> str:
    """The end of what was written from ``begin`` on, in one line."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - _SHOWN_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-_SHOWN_LINES:])
