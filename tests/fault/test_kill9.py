"""kill -9 at random moments, during any operation of a store: nothing that was on the disk is lost.

``FLINTMQ_KILL_ROUNDS`` sets how often (default below), ``FLINTMQ_SEED`` makes another run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from tests.fault.kill_writer import QUEUES, TOPICS, message
from tests.store_tools import HOST, SMALL, Sent, assert_found, kill, matches, pull_all

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("FLINTMQ_SEED", "1"))


@pytest.fixture
def writers() -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks writers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fault.kill_writer"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0
    assert process.stdout is not None
    process.stdout.close()


def read_line(writers: subprocess.Popen[str]) -> str:
    assert writers.stdout is not None
    return writers.stdout.readline().rstrip("\n")


def write_and_kill(
    writers: subprocess.Popen[str], path: Path, source: random.Random, number: int, lines: int
) -> list[Sent]:
    """Let a writer print so many lines, kill it, and return everything it printed."""
    assert writers.stdin is not None
    writers.stdin.write(f"{path} {source.random()} {number}\n")
    writers.stdin.flush()
    word, pid = read_line(writers).split()
    assert word == "pid"
    heard = []
    while (line := read_line(writers)) != "ended":
        row = json.loads(line)
        assert isinstance(row, list), row["failed"]
        heard.append(Sent(row[1], row[2], row[3], row[4], row[5], message(row[0])))
        if len(heard) == lines:
            os.kill(int(pid), signal.SIGKILL)
    assert len(heard) >= lines
    return heard


def check(store: MessageStore, acknowledged: list[Sent], source: random.Random) -> int:
    """Check that everything acknowledged is there and every queue is dense; return the number of messages."""
    by_offset = {each.physical_offset: each for each in acknowledged}
    total = 0
    for topic in TOPICS:
        for queue in range(QUEUES) if store.topics.get(topic) is not None else ():
            records = list(pull_all(store, topic, queue))
            assert [record.queue_offset for record in records] == list(range(len(records)))
            total += len(records)
            for record in records:
                each = by_offset.pop(record.physical_offset, None)
                assert each is None or matches(record, each)
    assert not by_offset, f"{len(by_offset)} acknowledged messages are lost, such as {next(iter(by_offset.values()))}"
    for each in source.sample(acknowledged, min(40, len(acknowledged))):
        assert_found(store, [each])
    return total


def test_a_process_killed_many_times_loses_no_acknowledged_message(
    tmp_path: Path, writers: subprocess.Popen[str]
) -> None:
    source = random.Random(SEED)
    path = tmp_path / "store"
    acknowledged: list[Sent] = []
    for number in range(ROUNDS):
        acknowledged += write_and_kill(writers, path, source, number * 1_000_000, source.randrange(1, 150))
        if source.random() < 0.3:
            continue  # the next writer recovers it
        store = MessageStore(path, SMALL, store_host=HOST)
        report = store.open()
        assert report.rebuilt == []
        assert check(store, acknowledged, source) >= len(acknowledged)
        if source.random() < 0.5:
            store.close()
        else:
            kill(store)
    store = MessageStore(path, SMALL, store_host=HOST)
    store.open()
    assert check(store, acknowledged, source) >= len(acknowledged)
    assert len(acknowledged) > ROUNDS
    store.close()
