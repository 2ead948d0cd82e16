"""``flintmq send``, ``tail``, ``pull`` and ``query`` against a real broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flintmq.client import Admin, Message, Producer
from flintmq.client.cli.failures import EXIT_ERROR
from tests.cli_tools import Cli
from tests.conftest import RunningBroker


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """Create a topic of two queues; each has ``b0`` to ``b4`` with keys, and tags by parity."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for number in range(5):
            for queue in (0, 1):
                tag = "odd" if number % 2 else "even"
                message = Message(topic, f"b{number}".encode(), keys=[f"k{queue}-{number}", "all"], tags=tag)
                producer.send(message, queue=queue)
    return topic


class TestSend:
    def test_files_are_sent_whole(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        blob = bytes(range(256)) * 10 + b"\n"
        (tmp_path / "blob").write_bytes(blob)
        assert cli.run("send", topic, "-f", str(tmp_path / "blob"), "--queue", "0").code == 0
        assert cli.spawn("send", topic, "-f", "-", "--queue", "0", stdin=b"a\nb\n").code == 0
        row, other = cli.run("pull", topic, "-o", "json").rows
        assert row["body_bytes"] == len(blob)
        assert "body" not in row
        assert other["body"] == "a\nb\n"
        process = cli.start("pull", topic, "-n", "1", "--raw", "--format", "%v")
        assert process.communicate()[0] == blob

    def test_a_file_that_is_too_large_is_refused(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(os.urandom(600_000))
        done = cli.run("send", topic, "-f", str(tmp_path / "blob"))
        assert done.code == EXIT_ERROR
        assert "MESSAGE_ILLEGAL (13)" in done.err


class TestPull:
    def test_waiting_ends_with_the_message_that_comes(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        process = cli.start("pull", filled, "--queue", "0", "--offset", "4", "--wait", "60s", "-n", "2")
        assert process.stdout is not None
        assert process.stdout.readline() == b"b4\n"
        with Producer(shared_broker.address) as producer:
            producer.send(Message(filled, b"late"), queue=0)
        assert process.communicate()[0] == b"late\n"
        assert process.returncode == 0


class TestQuery:
    def test_more_than_a_page_is_found(self, cli: Cli, topic: str) -> None:
        cli.run("send", topic, "-k", "many", stdin="\n".join(map(str, range(150))))
        assert cli.run("query", "key", topic, "many", "--format", "%v ").out.split() == [
            str(number) for number in reversed(range(150))
        ]
