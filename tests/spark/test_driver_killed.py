"""Recovery from the checkpoint alone: after a kill, a driver continues where its last micro-batch ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Producer
from tests.conftest import BrokerFactory

MESSAGES = 4000
QUEUES = 3
ROWS_A_BATCH = 500
BATCHES_BEFORE = 3
"""Number of finished micro-batches when the driver is killed; another one is in progress then."""
TIMEOUT_S = 240
ROOT = Path(__file__).resolve().parents[2]


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start the application in a process group of its own: a kill includes its Java and its Python workers."""
    command = [sys.executable, "-m", "tests.spark.copy_app", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def kill(application: subprocess.Popen[str]) -> None:
    os.killpg(application.pid, signal.SIGKILL)
    application.communicate()


@pytest.mark.long(seconds=60)
def test_each_message_is_there_exactly_once_after_a_kill_of_the_driver(
    spark: Any, spark_environment: dict[str, str], broker: BrokerFactory, tmp_path: Path
) -> None:
    running = broker()
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", queues=QUEUES)
        receipts = producer.send_bulk("orders", [b"%d" % number for number in range(MESSAGES)])
    arguments = ("local[2]", running.address, "orders", str(tmp_path), str(ROWS_A_BATCH))
    application = start(spark_environment, *arguments)
    try:
        assert application.stdout is not None
        seen = 0
        for line in application.stdout:
            seen += line.startswith("batch")
            if seen == BATCHES_BEFORE:
                break
        assert seen == BATCHES_BEFORE, "it ended before it could be killed"
    finally:
        kill(application)
    last = start(spark_environment, *arguments)
    try:
        output, _ = last.communicate(timeout=TIMEOUT_S)
        assert last.returncode == 0
        assert output.splitlines()[-1] == "done"
    finally:
        if last.poll() is None:
            kill(last)
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    expected = {(receipt.queue, receipt.queue_offset): str(number) for number, receipt in enumerate(receipts)}
    assert len(rows) == MESSAGES
    assert {(row.queue, row.queue_offset): row.body for row in rows} == expected
