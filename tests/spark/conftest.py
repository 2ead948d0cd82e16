"""One Spark session for all tests of this folder: it takes 5 to 25 s to start."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.client.spark import session
from tests.conftest import RunningBroker
from tests.spark.sink_tools import Copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
FREE_MIN_BYTES = 1 << 30
"""Space needed for Spark's own files, and for those that the tests have it write."""

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 1,
    "spark.sql.session.timeZone": "UTC",
    "spark.default.parallelism": 2,
    # The JVM's second compiler takes a core for a minute, which tests this short never regain.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Settings of a session that starts fast and leaves memory for the broker."""


def _missing() -> str:
    """Return the reason why the tests of this folder cannot run here; empty if they can."""
    if importlib.util.find_spec("pyspark") is None:
        return (
            "pyspark is not installed: ./scripts/test installs it if there is space, pip install 'flintmq[spark]' too"
        )
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < FREE_MIN_BYTES:
        return f"{folder} has {free >> 20} MiB free, tests with Spark want {FREE_MIN_BYTES >> 20}: set TMPDIR elsewhere"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder ``spark``; skip them, with the reason, if Spark cannot run."""
    mine = [item for item in items if item.path.is_relative_to(FOLDER)]
    reason = _missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.timeout(300))  # the first one starts the session
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a session with FlintMQ's sources and two cores; its warehouse and scratch files belong to this run."""
    folder = tmp_path_factory.mktemp("spark")
    own = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    running = session("flintmq-tests", master="local[2]", settings={**SETTINGS, **own})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """Return the environment for a Python process that starts a Spark session of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


# ---- the sink ----

_names = (f"sink-{number}" for number in itertools.count())


@pytest.fixture
def name() -> str:
    """Return the name of a topic that no other test of the sink uses."""
    return next(_names)


@pytest.fixture
def write(shared_broker: RunningBroker, name: str) -> Callable[..., None]:
    """Return ``write(frame, option=value, …)``, which appends to the test's topic; None removes an option."""

    def run(frame: Any, mode: str = "append", **options: Any) -> None:
        given = {"bootstrap": shared_broker.address, "topic": name, **options}
        given = {option: value for option, value in given.items() if value is not None}
        session = frame.sparkSession
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # a thread that a test starts has none
        frame.write.format("flintmq").mode(mode).options(**given).save()

    return run


@pytest.fixture
def bodies_of_range(spark: Any) -> Callable[..., Any]:
    """Return ``bodies_of_range(start, end, partitions=2, **columns)``: bodies "0", "1", … and columns made of `id`."""

    def frame(start: int, end: int, partitions: int = 2, **columns: str) -> Any:
        chosen = [f"{expression} AS {name}" for name, expression in columns.items()]
        return spark.range(start, end, 1, partitions).selectExpr("CAST(id AS string) AS body", *chosen)

    return frame


@pytest.fixture
def copy(spark: Any, shared_broker: RunningBroker, name: str, tmp_path: Path) -> Copy:
    """Return a query that copies the topic ``{name}-source`` to ``name``."""
    return Copy(spark, shared_broker, f"{name}-source", name, tmp_path / "checkpoint")
