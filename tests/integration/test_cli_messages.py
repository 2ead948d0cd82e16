"""``flintmq send``, ``tail``, ``pull`` and ``query`` against a real broker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE
from tests.cli_tools import Cli
from tests.conftest import RunningBroker


@pytest.fixture
def cli(tmp_path: Path, shared_broker: RunningBroker) -> Iterator[Cli]:
    """Return a command line connected to the shared broker."""
    with Cli(tmp_path, shared_broker.address) as cli:
        yield cli


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
    def test_each_argument_is_a_message(self, cli: Cli, shared_broker: RunningBroker, topic: str) -> None:
        done = cli.run(
            "send", topic, "one", "zwei ü", "-k", "a", "-k", "b", "-t", "eu", "-p", "x=y", "--queue", "2", "-o", "json"
        )
        assert done.code == 0
        assert [(row["topic"], row["queue"], row["queue_offset"]) for row in done.rows] == [
            (topic, 2, 0),
            (topic, 2, 1),
        ]
        with Consumer(shared_broker.address) as consumer:
            first, second = consumer.pull(topic, 2).messages
        assert (first.body, second.body) == (b"one", "zwei ü".encode())
        assert (first.keys, first.tags, dict(first.user_properties)) == (("a", "b"), "eu", {"x": "y"})
        assert [row["message_id"] for row in done.rows] == [first.message_id, second.message_id]
        assert done.rows[0]["stored_at"].startswith(first.stored_at.isoformat()[:19])

    def test_each_line_is_a_message_without_its_end(self, cli: Cli, topic: str) -> None:
        done = cli.run("send", topic, "--queue", "0", stdin=b"one\n\ntwo\r\nlast")
        assert done.code == 0
        assert done.out == ""
        assert "sent 4 messages (11 B)" in done.err
        assert cli.run("pull", topic, "--queue", "0").lines == ["one", "", "two\\r", "last"]

    def test_a_line_end_at_the_end_makes_no_message(self, cli: Cli, topic: str) -> None:
        cli.run("send", topic, stdin="one\n")
        assert cli.run("pull", topic).lines == ["one"]
        assert cli.run("send", topic, stdin="").code == 0
        assert cli.run("pull", topic).lines == ["one"]

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

    def test_a_key_in_front_of_each_line_is_taken_off(self, cli: Cli, topic: str) -> None:
        assert cli.run("send", topic, "-K", "=", "-k", "common", "--queue", "0", stdin="o-1=a=b\nplain\n=x\n").code == 0
        assert cli.run("pull", topic, "--format", "%k|%v\\n").lines == ["common o-1|a=b", "common|plain", "common|x"]

    @pytest.mark.parametrize(
        ("key", "why"), [(b"\xff", "the key \\xff is not UTF-8"), (b"a b", "the key 'a b' has a space")]
    )
    def test_a_line_with_a_wrong_key_is_named_and_ends_the_command(
        self, cli: Cli, topic: str, key: bytes, why: str
    ) -> None:
        lines = b"\xef\xbb\xbfk1=1\nk2=2\n%b=3\nk4=4\n" % key
        done = cli.run("send", topic, "-K", "=", "--queue", "0", stdin=lines)
        assert done.code == EXIT_USAGE
        assert f"line 3: {why}" in done.err
        assert "the broker acknowledged 2 lines of standard input; the rest was not sent" in done.err
        assert cli.run("pull", topic, "--format", "%k|%v\\n").lines == ["k1|1", "k2|2"]
        assert cli.spawn("send", topic, "-K", "=", "k3=3", os.fsdecode(key) + "=4").code == EXIT_USAGE
        assert len(cli.run("pull", topic).lines) == 2, "nothing of a wrong command line is sent"

    def test_a_sharding_key_keeps_messages_together(self, cli: Cli, topic: str) -> None:
        cli.run("topic", "create", topic, "--queues", "8")
        for body in "abcdef":
            assert cli.run("send", topic, body, "--sharding-key", "customer").code == 0
        rows = cli.run("pull", topic, "-o", "json").rows
        assert len({row["queue"] for row in rows}) == 1
        assert [row["body"] for row in rows] == list("abcdef")
        assert rows[0]["sharding_key"] == "customer"

    def test_receipts_are_shown_on_request(self, cli: Cli, topic: str) -> None:
        assert len(cli.run("send", topic, "--receipts", stdin="a\nb\n").lines) == 2
        assert cli.run("send", topic, "--no-receipts", "a").out == ""
        quiet = cli.run("-q", "send", topic, stdin="a\n")
        assert (quiet.out, quiet.err) == ("", "")

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["a b", "x"], EXIT_USAGE, "topic 'a b' has characters that are not allowed"),
            (["{topic}", "x", "-k", "a b"], EXIT_USAGE, "the key 'a b' has a space"),
            (["{topic}", "x", "--queue", "77"], EXIT_NOT_FOUND, "QUEUE_NOT_EXIST (1017)"),
            (["rmq_sys_x", "x"], EXIT_ERROR, "NO_PERMISSION (16)"),
        ],
    )
    def test_an_unsendable_message_is_explained(
        self, cli: Cli, topic: str, arguments: list[str], code: int, said: str
    ) -> None:
        done = cli.run("send", *(argument.replace("{topic}", topic) for argument in arguments))
        assert done.code == code
        assert said in done.err
        assert len(done.err.splitlines()) <= 2

    def test_a_file_that_is_too_large_is_refused(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(os.urandom(600_000))
        done = cli.run("send", topic, "-f", str(tmp_path / "blob"))
        assert done.code == EXIT_ERROR
        assert "MESSAGE_ILLEGAL (13)" in done.err
        missing = cli.run("send", topic, "-f", str(tmp_path / "not-there"))
        assert missing.code == EXIT_USAGE
        assert "not-there" in missing.err

    def test_lines_after_an_unsendable_one_are_counted(self, cli: Cli, topic: str) -> None:
        cli.run("topic", "create", topic, "--perm", "r")
        done = cli.run("send", topic, stdin="a\nb\n")
        assert done.code == EXIT_ERROR
        assert "2 of 2 messages were not acknowledged" in done.err
        assert "NO_PERMISSION (16)" in done.err
        assert "sent 0 messages" in done.err


class TestTail:
    def test_the_last_ten_are_shown_in_the_order_of_storing(self, cli: Cli, filled: str) -> None:
        done = cli.run("tail", filled, "--count", "10", "--format", "%q%v ")
        assert done.out == "0b0 1b0 0b1 1b1 0b2 1b2 0b3 1b3 0b4 1b4 "
        assert cli.run("tail", filled, "--from", "-3", "--count", "3").lines == ["b3", "b4", "b4"]

    @pytest.mark.parametrize(
        ("from_", "until", "shown"),
        [
            ("earliest", "latest", 10),
            ("latest", "latest", 0),
            ("3", "latest", 4),
            ("0:3", "latest", 2),
            ("0:3,1:4", "1:5", 3),
            ("earliest", "2", 4),
            ("@-1h", "@now", 10),
            ("@2026-01-01", "@2026-01-02", 0),
            ("@+1h", "latest", 0),
        ],
    )
    def test_positions_limit_the_output(self, cli: Cli, filled: str, from_: str, until: str, shown: int) -> None:
        done = cli.run("tail", filled, "--from", from_, "--until", until)
        assert done.code == 0
        assert len(done.lines) == shown

    def test_a_tag_filters(self, cli: Cli, filled: str) -> None:
        assert sorted(cli.run("tail", filled, "--tag", "odd", "--until", "latest").lines) == ["b1", "b1", "b3", "b3"]
        assert len(cli.run("tail", filled, "--tag", "odd || even", "--until", "latest").lines) == 10

    def test_a_condition_filters(self, cli: Cli, filled: str) -> None:
        condition = "KEYS STARTSWITH 'k1-' AND TAGS = 'odd'"
        done = cli.run("tail", filled, "--filter", condition, "--until", "latest", "--format", "%q%v ")
        assert done.out == "1b1 1b3 "
        assert cli.run("tail", filled, "--filter", condition, "-t", "even", "--until", "latest").lines == []
        assert cli.run("tail", filled, "--filter", condition, "--count", "2").lines == ["b1", "b3"]
        assert cli.run("pull", filled, "--filter", condition).lines == ["b1", "b3"]
        assert cli.run("pull", filled, "--filter", condition, "--queue", "1").lines == ["b1", "b3"]

    @pytest.mark.parametrize("command", [["tail"], ["pull"], ["pull", "--queue", "0"]])
    def test_an_invalid_condition_gets_a_pointer_to_the_error(self, cli: Cli, filled: str, command: list[str]) -> None:
        done = cli.run(*command, filled, "--filter", "a > 5 AND b LIKE 'x'")
        assert done.code == EXIT_ERROR
        error, condition, mark, *_ = done.err.splitlines()
        assert "SUBSCRIPTION_PARSE_FAILED (23): " in error
        assert "column 13: expected CONTAINS" in error
        assert condition.index("LIKE") == mark.index("^")
        long = "a = 1 OR " * 100 + "b >"
        error, condition, mark, *_ = cli.run(*command, filled, "--filter", long).err.splitlines()
        assert mark.index("^") == len(condition.rstrip())
        assert len(condition) < 80

    def test_an_offset_that_no_queue_has_is_explained(self, cli: Cli, filled: str) -> None:
        done = cli.run("tail", filled, "--from", "99")
        assert done.code == EXIT_ERROR
        assert "PULL_OFFSET_MOVED (21): no queue of topic" in done.err
        assert "0 to 5" in done.err
        assert "queues 0 to 1, not 5" in cli.run("tail", filled, "--from", "5:0").err

    def test_a_missing_topic_suggests_an_existing_one(self, cli: Cli, filled: str) -> None:
        done = cli.run("tail", filled + "x")
        assert done.code == EXIT_NOT_FOUND
        assert f"TOPIC_NOT_EXIST (17): topic {filled}x does not exist" in done.err
        assert f"did you mean '{filled}'" in done.err

    def test_bodies_cannot_drive_a_terminal(self, cli: Cli, topic: str) -> None:
        evil = "\x1b]0;owned\x07\x1b[2J\u202e"
        cli.run("send", topic, evil, "-t", "\x1bt", "-k", "k\x07", "-p", "a=\x1b")
        for mode in ("table", "plain", "json"):
            out = cli.run("tail", topic, "--until", "latest", "-o", mode).out
            assert not set(out) & {"\x1b", "\x07", "\u202e"}, mode
        assert cli.run("tail", topic, "--until", "latest", "--raw").out == evil + "\n"


class TestPull:
    def test_one_queue_is_read_from_an_offset(self, cli: Cli, filled: str) -> None:
        assert cli.run("pull", filled, "--queue", "1", "--offset", "3").lines == ["b3", "b4"]
        assert cli.run("pull", filled, "--queue", "1", "--offset", "-2").lines == ["b3", "b4"]
        assert cli.run("pull", filled, "--queue", "1", "--offset", "1:4").lines == ["b4"]
        assert cli.run("pull", filled, "--queue", "1", "--offset", "@-1h", "-n", "2").lines == ["b0", "b1"]
        assert cli.run("pull", filled, "--queue", "1", "--offset", "latest").lines == []
        assert cli.run("pull", filled, "--queue", "1", "--tag", "odd").lines == ["b1", "b3"]

    def test_ten_messages_of_all_queues_are_read_unless_told_otherwise(self, cli: Cli, filled: str) -> None:
        assert sorted(cli.run("pull", filled).lines) == sorted(["b0", "b1", "b2", "b3", "b4"] * 2)
        assert len(cli.run("pull", filled, "-n", "3").lines) == 3

    def test_waiting_ends_if_no_message_arrives(self, cli: Cli, filled: str) -> None:
        done = cli.run("pull", filled, "--queue", "0", "--offset", "4", "--wait", "200ms")
        assert (done.code, done.lines) == (0, ["b4"])

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

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["--queue", "0", "--offset", "99"], EXIT_ERROR, "PULL_OFFSET_MOVED (21)"),
            (["--queue", "9"], EXIT_NOT_FOUND, "QUEUE_NOT_EXIST (1017)"),
            (["--queue", "0", "--offset", "1:3"], EXIT_USAGE, "names other queues than 0"),
        ],
    )
    def test_a_wrong_place_is_explained(
        self, cli: Cli, filled: str, arguments: list[str], code: int, said: str
    ) -> None:
        done = cli.run("pull", filled, *arguments)
        assert done.code == code
        assert said in done.err


class TestQuery:
    def test_all_messages_with_a_key_are_found_newest_first(self, cli: Cli, filled: str) -> None:
        done = cli.run("query", "key", filled, "all", "--format", "%q%v ")
        assert done.out == "1b4 0b4 1b3 0b3 1b2 0b2 1b1 0b1 1b0 0b0 "
        assert cli.run("query", "key", filled, "all", "-n", "3").lines == ["b4", "b4", "b3"]
        assert cli.run("query", "key", filled, "k0-3").lines == ["b3"]
        assert len(cli.run("query", "key", filled, "all", "--since", "-1h", "--until", "now").lines) == 10

    def test_more_than_a_page_is_found(self, cli: Cli, topic: str) -> None:
        cli.run("send", topic, "-k", "many", stdin="\n".join(map(str, range(150))))
        assert cli.run("query", "key", topic, "many", "--format", "%v ").out.split() == [
            str(number) for number in reversed(range(150))
        ]

    def test_a_key_without_messages_is_reported(self, cli: Cli, filled: str) -> None:
        done = cli.run("query", "key", filled, "absent", "--until", "2026-01-01")
        assert (done.code, done.out) == (EXIT_NOT_FOUND, "")
        assert f"topic {filled} has no message with the key absent until 2026-01-01" in done.err

    def test_an_id_finds_its_message(self, cli: Cli, filled: str) -> None:
        row = cli.run("query", "key", filled, "k1-2", "-o", "json").rows[0]
        whole = cli.run("query", "id", row["message_id"], "-o", "json").rows[0]
        assert row.items() <= whole.items()
        names = set(whole) - set(row)
        assert names == {"offset_id", "born_host", "stored_host", "stored_bytes", "reconsume_times", "noted"}
        assert (whole["reconsume_times"], whole["noted"]) == (0, {})
        assert whole["stored_host"] == cli.broker
        shown = cli.run("query", "id", row["message_id"], "-o", "table").out
        for label, value in (("id", row["message_id"]), ("tag", "even"), ("keys", "k1-2, all"), ("body", "b2")):
            assert re.search(rf"^{label} +{value}", shown, re.MULTILINE), shown
        for value in (filled, whole["born_host"], whole["offset_id"], "2 B of body"):
            assert value in shown
        assert cli.run("query", "id", row["message_id"], "--topic", filled).lines == ["b2"]
        missing = cli.run("query", "id", "7F00", "--topic", filled)
        assert missing.code == EXIT_NOT_FOUND
        assert "QUERY_NOT_FOUND (22)" in missing.err

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

    def test_a_time_finds_the_offsets_of_the_queues(self, cli: Cli, filled: str) -> None:
        rows = cli.run("query", "time", filled, "--offsets", "now", "-o", "json").rows
        assert [(row["queue"], row["queue_offset"], row["messages"]) for row in rows] == [(0, 5, 0), (1, 5, 0)]
