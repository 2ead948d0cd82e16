"""``flintmq send``, ``tail``, ``pull`` and ``query`` against a real broker."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE
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

    def test_a_sharding_key_keeps_messages_together(self, cli: Cli, topic: str) -> None:
        cli.run("topic", "create", topic, "--queues", "8")
        for body in "abcdef":
            assert cli.run("send", topic, body, "--sharding-key", "customer").code == 0
        rows = cli.run("pull", topic, "-o", "json").rows
        assert len({row["queue"] for row in rows}) == 1
        assert [row["body"] for row in rows] == list("abcdef")
        assert rows[0]["sharding_key"] == "customer"

    def test_a_file_that_is_too_large_is_refused(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(os.urandom(600_000))
        done = cli.run("send", topic, "-f", str(tmp_path / "blob"))
        assert done.code == EXIT_ERROR
        assert "MESSAGE_ILLEGAL (13)" in done.err
        missing = cli.run("send", topic, "-f", str(tmp_path / "not-there"))
        assert missing.code == EXIT_USAGE
        assert "not-there" in missing.err


class TestTail:
    def test_bodies_cannot_drive_a_terminal(self, cli: Cli, topic: str) -> None:
        evil = "\x1b]0;owned\x07\x1b[2J\u202e"
        cli.run("send", topic, evil, "-t", "\x1bt", "-k", "k\x07", "-p", "a=\x1b")
        for mode in ("table", "plain", "json"):
            out = cli.run("tail", topic, "--until", "latest", "-o", mode).out
            assert not set(out) & {"\x1b", "\x07", "\u202e"}, mode
        assert cli.run("tail", topic, "--until", "latest", "--raw").out == evil + "\n"


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

    def test_a_time_finds_the_first_messages_from_then_on(
        self, cli: Cli, shared_broker: RunningBroker, filled: str
    ) -> None:
        assert cli.run("query", "time", filled, "@-1h", "-n", "3").lines == ["b0", "b0", "b1"]
        with Consumer(shared_broker.address) as consumer:
            third = consumer.pull(filled, 0, 2).messages[0]
        moment = third.stored_at.astimezone(UTC).isoformat()
        row = cli.run("query", "time", filled, moment, "-o", "json").rows[0]
        assert datetime.fromisoformat(row["stored_at"]) >= third.stored_at
        assert cli.run("query", "time", filled, "+1h").code == EXIT_NOT_FOUND
