"""A broker with many topics: creating one more costs no more than the first, and a crash loses none."""

from __future__ import annotations

from pathlib import Path

from flintmq.protocol.commands import DELETE_TOPIC_IN_BROKER, GET_ALL_TOPIC_CONFIG, UPDATE_AND_CREATE_TOPIC
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker

TOPICS = 1_000


def written_bytes(running: RunningBroker) -> int:
    """Return the bytes that the process has written to files and sockets."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{running.process.pid}/io").read_text().splitlines())
    return int(fields["wchar"])


def test_topics_that_are_made_one_after_another_are_not_all_written_each_time(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    connection = connect(running)
    before = written_bytes(running)
    for number in range(TOPICS):
        connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": f"topic-{number}"}).raise_for_error()
    assert written_bytes(running) - before < 10_000_000, "all of them each time are more than 100 MB"
    running.kill()
    again = connect(broker(store=running.store))
    assert again.call(GET_ALL_TOPIC_CONFIG).raise_for_error().fields["count"] >= TOPICS


def test_deletions_that_are_asked_for_at_once_share_their_writes(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker()
    connection = connect(running)
    fields = [{"topic": f"topic-{number}"} for number in range(300)]
    for command in (UPDATE_AND_CREATE_TOPIC, DELETE_TOPIC_IN_BROKER):
        before = written_bytes(running)
        for each in fields:
            connection.send(command, each)
        for _ in fields:
            connection.receive().raise_for_error()
        assert written_bytes(running) - before < 2_000_000
    left = connection.call(GET_ALL_TOPIC_CONFIG).raise_for_error().fields["count"]
    running.kill()
    again = connect(broker(store=running.store))
    assert again.call(GET_ALL_TOPIC_CONFIG).raise_for_error().fields["count"] == left
