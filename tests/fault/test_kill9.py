"""kill -9 at random moments, in the middle of whatever a store does: nothing that was on the disk is lost.

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

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "15"))
SEED = int(os.environ.get("FLINTMQ_SEED", "1"))


@pytest.fixture
def writers() -> Iterator[subprocess.Popen[str]]:
    """The process that forks writers."""
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


def said(writers: subprocess.Popen[str]) -> str:
    assert writers.stdout is not None
    return writers.stdout.readline().rstrip("\n")


def write_and_kill(
    writers: subprocess.Popen[str], path: Path, source: random.Random, number: int, lines: int
) -> list[Sent]:
    """Let a writer say so many lines, kill it, and return all that it said."""
    assert writers.stdin is not None
    writers.stdin.write(f"{path} {source.random()} {number}\n")
    writers.stdin.flush()
    word, pid = said(writers).split()
    assert word == "pid"
    heard = []
    while (line := said(writers)) != "ended":
        row = json.loads(line)
        assert isinstance(row, list), row["failed"]
        heard.append(Sent(row[1], row[2], row[3], row[4], row[5], message(row[0])))
        if len(heard) == lines:
            os.kill(int(pid), signal.SIGKILL)
    assert len(heard) >= lines
    return heard


def check(store: MessageStore, acknowledged: list[Sent], source: random.Random) -> int:
    """Everything acknowledged is there, and every queue is dense; how many messages there are in all."""
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


def test_nothing_that_was_acknowledged_is_lost_however_often_the_process_is_killed(
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
