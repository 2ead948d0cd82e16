"""One Spark session for all tests of this ring: it takes 5 to 25 s to start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flintmq.client.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
FREE_MIN_BYTES = 1 << 30
"""What Spark's own files, and those that the tests have it write, may take."""

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.default.parallelism": 2,
    # The JVM's second compiler takes a core for a minute, which tests this short do not get back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Of a session that starts soon and leaves room for the broker beside it."""


def _missing() -> str:
    """Why the tests of this ring cannot run here; empty where they can."""
    if importlib.util.find_spec("pyspark") is None:
        return (
            "pyspark is not installed: ./scripts/test installs it where there is room, pip install 'flintmq[spark]' too"
        )
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < FREE_MIN_BYTES:
        return f"{folder} has {free >> 20} MiB free, tests with Spark want {FREE_MIN_BYTES >> 20}: set TMPDIR elsewhere"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder ``spark``; skip them, with the reason, where Spark cannot run."""
    mine = [item for item in items if item.path.is_relative_to(FOLDER)]
    reason = _missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.timeout(300))  # the first one starts the session
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with FlintMQ's sources and two cores; its warehouse and scratch files are this run's own."""
    folder = tmp_path_factory.mktemp("spark")
    own = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    running = session("flintmq-tests", master="local[2]", settings={**SETTINGS, **own})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """The environment for a Python process that starts a Spark session of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
