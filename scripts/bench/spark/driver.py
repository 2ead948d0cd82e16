"""A process with a Spark session, and its jobs. It ends with its case, so that Java does not disturb other cases."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import select
import signal
import struct
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from ..measure import BenchFailed, Skipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU times. ``java``: Spark's Java process; ``python``: the driver's Python process and all workers."""

    java: float
    python: float

    def __sub__(self, other: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.java - other.java, self.python - other.python)


def cpu_of_tree(root: int) -> CpuSeconds:
    """Return the CPU time of the process ``root`` and all its descendants so far, including those that have ended."""
    java = python = 0.0
    for process in _tree(root).values():
        if process.name == "java":
            java += process.seconds
        else:
            python += process.seconds
        python += process.children_seconds
    return CpuSeconds(java, python)


class EndOfTree:
    """The process ``root`` and its present descendants, to wait for and to kill."""

    def __init__(self, root: int) -> None:
        self._descriptors: list[int] = []
        for pid in _tree(root):
            with suppress(ProcessLookupError):  # the process has just ended
                self._descriptors.append(os.pidfd_open(pid))

    def wait(self, seconds: float) -> None:
        """Wait until all of them have ended; kill those that remain after ``seconds``."""
        deadline = time.monotonic() + seconds
        for descriptor in self._descriptors:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [])
            os.close(descriptor)
        self._descriptors.clear()


def _tree(root: int) -> dict[int, _Process]:
    """Return the process ``root`` and all its descendants."""
    processes = dict(_processes())
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    tree = {}
    below = [root] if root in processes else []
    while below:
        pid = below.pop()
        tree[pid] = processes[pid]
        below += children[pid]
    return tree


class _Process(NamedTuple):
    name: str
    parent: int
    seconds: float
    children_seconds: float
    """Return the CPU time of children that were waited for. Below Spark's driver these are never Java processes."""


def _processes() -> Iterator[tuple[int, _Process]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has just ended
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        # utime, stime, cutime and cstime are the 12th to 15th field after the name.
        own, of_children = (sum(map(int, fields[at : at + 2])) / _TICKS_A_SECOND for at in (11, 13))
        yield int(folder.name), _Process(name, int(fields[1]), own, of_children)


# ---- The process.

P = ParamSpec("P")
R = TypeVar("R")

MASTER = "local[2]"
START_SECONDS_MAX = 180.0
JOB_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 20.0
_LOG_CHARACTERS_SHOWN = 2000


def spark_version() -> str:
    """Return the version of the installed PySpark. Raises ``Skipped`` if it is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise Skipped("PySpark is not installed; `./scripts/bench/run spark` installs it, 490 MB, and runs these cases")
    from pyspark.version import __version__

    version: str = __version__
    return version


class Driver:
    """A context manager for a Spark driver with the ``flintmq`` sources. Its log and temporary files are in ``folder``.

    ``class_path``: further jars for Spark. The session has started on entry, so no figure includes its start.
    """

    def __init__(self, folder: Path, class_path: str = "") -> None:
        self._log = folder / "spark.log"
        self._settings = {
            "spark.master": MASTER,
            "spark.local.dir": str(folder),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        if class_path:
            self._settings["spark.driver.extraClassPath"] = class_path

    def __enter__(self) -> Driver:
        context = multiprocessing.get_context("spawn")
        self._connection, of_the_child = context.Pipe()
        # A daemon ends with this process. If this process is killed, the closed pipe ends it.
        self._process = context.Process(target=_serve, args=(of_the_child, self._log, self._settings), daemon=True)
        self._process.start()
        of_the_child.close()
        try:
            self._answer(START_SECONDS_MAX)
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(at_once=error is not None)

    def _end(self, at_once: bool) -> None:
        """End the process, even during a job, and wait for Java, which still removes its files."""
        all_of_them = EndOfTree(self._process.pid or 0)
        self._connection.close()
        if at_once:
            self._process.kill()
        self._process.join(STOP_SECONDS_MAX)
        all_of_them.wait(STOP_SECONDS_MAX)
        self._process.join()

    def call(self, job: Callable[Concatenate[SparkSession, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``job(spark, …)`` in the process and return its result. Raises ``BenchFailed`` with the job's error."""
        self._connection.send((job, args, kwargs))
        result: R = self._answer(JOB_SECONDS_MAX)
        return result

    def _answer(self, seconds: float) -> Any:
        try:
            if not self._connection.poll(seconds):
                raise BenchFailed(f"Spark did not answer within {seconds:.0f} s. {self._said()}")
            failure, result = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise BenchFailed(f"the process with the Spark session ended. {self._said()}") from None
        if failure:
            raise BenchFailed(failure)
        return result

    def _said(self) -> str:
        return f"Its log ends with:\n{self._log.read_text(errors='replace')[-_LOG_CHARACTERS_SHOWN:]}"


def _serve(connection: Connection, log: Path, settings: dict[str, str]) -> None:
    """Run the process: start the session, then run one job after another until the pipe is closed."""
    # Spark's Java process shares the output of this process.
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        from flintmq.client.spark import session

        spark = session("flintmq-bench", settings=settings)
    except Exception as error:  # noqa: BLE001 - sent to the bench, which raises it
        connection.send((_shown(error), None))
        return
    connection.send(("", None))
    while True:
        try:
            job, args, kwargs = connection.recv()
        except EOFError:
            break
        try:
            outcome = "", job(spark, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - sent to the bench, which raises it
            outcome = _shown(error), None
        connection.send(outcome)
    spark.stop()


def _shown(error: Exception) -> str:
    traceback.print_exception(error)  # print to the log
    return f"{type(error).__name__}: {error}"


# ---- The jobs, and their cost; the same code for every source.

STAMP = struct.Struct(">q")
"""Start of the body of a message whose latency is measured: its creation time in µs since 1970."""
PARQUET_CODEC = "snappy"


@dataclass(frozen=True, slots=True)
class Source:
    """A source for Spark. ``body``: name of the column with the messages' bytes; ``path``: argument for ``load``."""

    format: str
    options: dict[str, str] = field(default_factory=dict)
    body: str = "body"
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a job: elapsed time, CPU time of Spark, and the number of rows if Spark counts them (else -1)."""

    seconds: float
    cpu: CpuSeconds
    rows: int = -1


def count_rows(spark: SparkSession, source: Source) -> tuple[int, int]:
    """Return the number of rows of a source, and the bytes of all bodies."""
    from pyspark.sql import functions

    rows, body_bytes = (
        _batch(spark, source).agg(functions.count("*"), functions.sum(functions.octet_length(source.body))).collect()[0]
    )
    return rows, body_bytes or 0


def to_noop(spark: SparkSession, source: Source) -> Work:
    """Read all rows and columns into Spark's no-op sink."""
    return _timed(lambda: _batch(spark, source).write.format("noop").mode("overwrite").save())


def to_parquet(spark: SparkSession, source: Source, folder: Path) -> Work:
    """Read all rows and columns into Parquet files below ``folder``."""
    write = _batch(spark, source).write.mode("overwrite").option("compression", PARQUET_CODEC)
    return _timed(lambda: write.parquet(str(folder)))


def stream_to_noop(spark: SparkSession, source: Source, folder: Path) -> Work:
    """Stream all stored rows into the no-op sink, with a new checkpoint below ``folder``."""
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=folder)

    def run() -> int:
        query = (
            _stream(spark, source)
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    return _timed(run)


def _batch(spark: SparkSession, source: Source) -> DataFrame:
    return spark.read.format(source.format).options(**source.options).load(source.path)


def _stream(spark: SparkSession, source: Source) -> DataFrame:
    options = {**source.options, "startingOffsets": "earliest"}
    return spark.readStream.format(source.format).options(**options).load()


def _timed(action: Callable[[], int | None]) -> Work:
    cpu, began = cpu_of_tree(os.getpid()), time.perf_counter()
    rows = action()
    seconds = time.perf_counter() - began
    return Work(seconds, cpu_of_tree(os.getpid()) - cpu, -1 if rows is None else rows)


# ---- how long a message takes to the sink ----


class _Arrivals:
    """A streaming query whose sink records the arrival of each message: trigger 0, ``foreachBatch``."""

    def __init__(self, spark: SparkSession, source: Source, folder: Path) -> None:
        self.taken: list[tuple[int, int]] = []  # creation and arrival, µs since 1970
        self._changed = threading.Condition()
        self._body = source.body
        self.query = (
            _stream(spark, source)
            .writeStream.foreachBatch(self._note)
            .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _note(self, batch: DataFrame, number: int) -> None:
        made = [STAMP.unpack_from(body)[0] for (body,) in batch.select(self._body).collect()]
        now = time.time_ns() // 1000
        with self._changed:
            self.taken += [(stamp, now) for stamp in made]
            self._changed.notify_all()

    def wait(self, since: int, expected: int, seconds: float) -> None:
        """Wait for ``expected`` messages that were created at ``since`` or later."""
        deadline = time.monotonic() + seconds

        def arrived() -> int:
            return sum(stamp >= since for stamp, _ in self.taken)

        with self._changed:
            while arrived() < expected:
                self._changed.wait(1.0)
                if (failure := self.query.exception()) is not None:
                    raise failure
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{arrived()} of {expected} messages reached the sink within {seconds:.0f} s")


_running: list[Any] = []


def start_noting(spark: SparkSession, source: Source, folder: Path) -> None:
    """Start a query over ``source`` whose sink records the arrival of each message."""
    _running.append(_Arrivals(spark, source, folder))


def stop_noting(spark: SparkSession, since: int, expected: int, seconds: float) -> list[tuple[int, int]]:
    """Wait for the query's messages created since then and stop it; return (creation, arrival) in µs since 1970."""
    arrivals = _running.pop()
    try:
        arrivals.wait(since, expected, seconds)
    finally:
        arrivals.query.stop()
    return sorted(pair for pair in arrivals.taken if pair[0] >= since)
