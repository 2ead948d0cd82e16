"""``flintmq topic``, ``offset``, ``status``, ``top``, ``check``, ``bench`` and ``context`` against a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE
from flintmq.protocol.commands import RUNTIME_INFO
from tests.cli_tools import Cli
from tests.conftest import RunningBroker

README = (Path(__file__).parents[2] / "client" / "cli" / "README.md").read_text(encoding="utf-8")


def described(command: str) -> set[str]:
    """Return the names that the documentation lists for a command's JSON."""
    names = README.partition("### Names in JSON")[2]
    found = re.search(rf"^\| `{command}`[^|]* \| (.*) \|$", names, re.MULTILINE)
    assert found, command
    return set(re.findall(r"`(\w+)`", found[1]))


@pytest.fixture
def cli(tmp_path: Path, shared_broker: RunningBroker) -> Iterator[Cli]:
    """The command line, connected to the shared broker."""
    with Cli(tmp_path, shared_broker.address) as cli:
        yield cli


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """A topic with two queues and three messages in each."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for queue in (0, 1):
            producer.send_bulk(topic, [b"x"] * 3, queue=queue, keys=["k"] * 3)
    return topic


class TestTopic:
    def test_a_topic_is_created_changed_and_deleted(self, cli: Cli, topic: str) -> None:
        created = cli.run("topic", "create", topic, "--queues", "2", "-o", "json")
        queues = {"read_queues": 2, "write_queues": 2}
        keeps = {"retention_hours": 0, "retention_bytes": 0}
        assert created.rows == [{"topic": topic, "permission": "rw"} | queues | keeps]
        changed = cli.run("topic", "update", topic, "--queues", "5", "-o", "json")
        assert changed.rows[0] == created.rows[0] | {"read_queues": 5, "write_queues": 5}
        readable = cli.run("topic", "update", topic, "--perm", "r", "-o", "json")
        assert readable.rows[0] == changed.rows[0] | {"permission": "r"}
        deleted = cli.run("topic", "delete", topic, "--yes")
        assert (deleted.code, deleted.err) == (0, f"deleted topic {topic} with 0 messages\n")
        assert cli.run("topic", "status", topic).code == EXIT_NOT_FOUND

    def test_topics_are_listed_with_queues_and_messages(self, cli: Cli, filled: str) -> None:
        rows = cli.run("topic", "list", filled, "--messages", "--system", "-o", "json").rows
        assert len(rows) == 1
        assert set(rows[0]) == described("topic list")
        assert rows[0]["messages"] == 6
        assert cli.run("topic", "list", f"{filled[:-1]}*", "-o", "plain").out.count(filled + "\t2\t2\trw\t0\t0\n") == 1
        assert cli.run("topic", "list", "no-such*", "-o", "table").out == "no topic matches no-such*\n"

    def test_system_topics_are_listed_only_on_request(self, cli: Cli) -> None:
        assert not any(row["topic"].startswith("rmq_sys") for row in cli.run("topic", "list", "-o", "json").rows)

    def test_status_shows_each_queue(self, cli: Cli, filled: str) -> None:
        rows = cli.run("topic", "status", filled, "-o", "json").rows
        assert set(rows[0]) == described("topic status")
        assert [(row["queue"], row["min_offset"], row["max_offset"], row["messages"]) for row in rows] == [
            (0, 0, 3, 3),
            (1, 0, 3, 3),
        ]
        table = cli.run("topic", "status", filled, "-o", "table").lines
        assert table[0].split()[:2] == ["TOPIC", "QUEUE"]
        assert table[-1].split()[:5] == [filled, "all", "–", "–", "6"]

    def test_an_existing_topic_is_not_created_again(self, cli: Cli, filled: str) -> None:
        again = cli.run("topic", "create", filled)
        assert again.code == EXIT_ERROR
        assert "TOPIC_EXIST_ALREADY (18)" in again.err
        assert cli.run("topic", "create", filled, "--if-not-exists", "--queues", "9").code == 0
        assert len(cli.run("topic", "status", filled).lines) == 2

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["create", "a b"], EXIT_ERROR, "INVALID_PARAMETER (29): topic 'a b' has characters"),
            (["create", "TBW102"], EXIT_ERROR, "NO_PERMISSION (16)"),
            (["update", "{topic}", "--queues", "1"], EXIT_USAGE, "because queues hold messages"),
            (["update", "{topic}-not", "--queues", "1"], EXIT_NOT_FOUND, "TOPIC_NOT_EXIST (17)"),
            (["delete", "{topic}-not", "--yes"], EXIT_NOT_FOUND, "TOPIC_NOT_EXIST (17)"),
            (["delete", "{topic}"], EXIT_USAGE, "--yes deletes without asking"),
        ],
    )
    def test_an_impossible_command_is_explained(
        self, cli: Cli, filled: str, arguments: list[str], code: int, said: str
    ) -> None:
        done = cli.run("topic", *(argument.replace("{topic}", filled) for argument in arguments))
        assert done.code == code
        assert said in done.err


class TestOffset:
    def test_a_group_is_reset_and_shown(self, cli: Cli, shared_broker: RunningBroker, filled: str) -> None:
        group = f"{filled}-g"
        reset = cli.run("offset", "reset", group, filled, "--to", "latest", "-o", "json")
        assert set(reset.rows[0]) == described("offset reset")
        assert [(row["queue"], row["before"], row["after"]) for row in reset.rows] == [(0, None, 3), (1, None, 3)]
        cli.run("offset", "reset", group, filled, "--to", "1", "--queue", "1")
        shown = cli.run("offset", "show", group, "-o", "json")
        assert set(shown.rows[0]) == described("offset show")
        assert [(row["queue"], row["committed"], row["lag"]) for row in shown.rows] == [(0, 3, 0), (1, 1, 2)]
        assert shown.rows == cli.run("offset", "show", "--topic", filled, "-o", "json").rows
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(group, filled) == {0: 3, 1: 1}

    @pytest.mark.parametrize(
        ("to", "after"),
        [
            ("earliest", {0: 0, 1: 0}),
            ("latest", {0: 3, 1: 3}),
            ("2", {0: 2, 1: 2}),
            ("0:1", {0: 1}),
            ("@-1h", {0: 0, 1: 0}),
            ("@+1h", {0: 3, 1: 3}),
        ],
    )
    def test_a_group_can_be_reset_to_any_position(
        self, cli: Cli, shared_broker: RunningBroker, filled: str, to: str, after: dict[int, int]
    ) -> None:
        assert cli.run("offset", "reset", f"{filled}-g", filled, "--to", to).code == 0
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-g", filled) == after

    def test_a_dry_run_commits_nothing(self, cli: Cli, shared_broker: RunningBroker, filled: str) -> None:
        done = cli.run("offset", "reset", f"{filled}-g", filled, "--to", "latest", "--dry-run")
        assert len(done.lines) == 2
        assert "nothing was committed" in done.err
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-g", filled) == {}

    @pytest.mark.parametrize(
        ("to", "code", "said"),
        [
            ("9", EXIT_ERROR, "has offset 9; its 2 queues hold"),
            ("1:9", EXIT_ERROR, "offset 9 is not in queue 1"),
            ("7:0", EXIT_USAGE, "queues 0 to 1, not 7"),
            ("-3", EXIT_USAGE, "counts messages of the topic"),
        ],
    )
    def test_an_invalid_position_is_explained(self, cli: Cli, filled: str, to: str, code: int, said: str) -> None:
        done = cli.run("offset", "reset", f"{filled}-g", filled, "--to", to)
        assert done.code == code
        assert said in done.err

    def test_exported_offsets_can_be_imported(
        self, cli: Cli, shared_broker: RunningBroker, filled: str, tmp_path: Path
    ) -> None:
        group = f"{filled}-g"
        cli.run("offset", "reset", group, filled, "--to", "0:1,1:2")
        exported = cli.run("offset", "export", group)
        assert exported.rows == [
            {"group": group, "topic": filled, "queue": 0, "offset": 1},
            {"group": group, "topic": filled, "queue": 1, "offset": 2},
        ]
        assert set(exported.rows[0]) == described("offset export")
        file = tmp_path / "offsets.jsonl"
        file.write_text(exported.out, encoding="utf-8-sig")
        cli.run("offset", "reset", group, filled, "--to", "latest")
        dry = cli.run("offset", "import", str(file), "--dry-run")
        assert (dry.code, dry.err) == (0, "could be committed: 2 offsets of 1 group\n")
        assert cli.run("offset", "import", stdin=file.read_text() + "\n").code == 0
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(group, filled) == {0: 1, 1: 2}

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("no json", "line 2 of"),
            ('{"group": "g", "topic": "t", "queue": 0}', "'offset'"),
            ('{"group": "g", "topic": "t", "queue": 0, "offset": "1"}', "queue and offset integers"),
            ("[]", "line 2 of"),
            ("[" * 100_000, "line 2 of"),
            (b'{"group": "\xff", "topic": "{topic}", "queue": 0, "offset": 1}', "can't decode byte 0xff"),
            ('{"group": "g", "topic": "{topic}", "queue": 1, "offset": 9}', "offset 9 cannot be committed for queue 1"),
            ('{"group": "g", "topic": "{topic}", "queue": 7, "offset": 0}', "has the queues 0 to 1, not 7"),
        ],
    )
    def test_an_invalid_line_is_named_and_nothing_is_imported(
        self, cli: Cli, shared_broker: RunningBroker, filled: str, line: str | bytes, said: str
    ) -> None:
        good = json.dumps({"group": f"{filled}-g", "topic": filled, "queue": 0, "offset": 2}).encode()
        line = (line.encode() if isinstance(line, str) else line).replace(b"{topic}", filled.encode())
        done = cli.run("offset", "import", stdin=b"%b\n%b\n" % (good, line))
        assert done.code == EXIT_USAGE
        assert said in done.err
        with Consumer(shared_broker.address) as consumer:
            assert consumer.committed(f"{filled}-g", filled) == {}


class TestStatus:
    def test_json_contains_every_figure_of_the_protocol(self, cli: Cli, shared_broker: RunningBroker) -> None:
        row = cli.run("status", "-o", "json").rows[0]
        assert {name for name in row if not name.startswith("errors_")} == {"address", *RUNTIME_INFO}
        assert (row["address"], row["pid"]) == (shared_broker.address, shared_broker.process.pid)
        plain = dict(line.split("\t") for line in cli.run("status").lines)
        assert plain["pid"] == str(row["pid"])

    def test_the_table_formats_the_figures(self, cli: Cli, shared_broker: RunningBroker) -> None:
        shown = cli.run("status", "-o", "table").out
        for wanted in (shared_broker.address, "CommitLog", "behind", "sync", str(shared_broker.store), "free of"):
            assert wanted in shown


class TestTop:
    def test_each_interval_prints_rates_topics_and_groups(self, cli: Cli, filled: str) -> None:
        cli.run("offset", "reset", f"{filled}-g", filled, "--to", "1")
        rows = cli.run("top", "-n", "2", "-i", "100ms", "-o", "json").rows
        assert len(rows) == 2
        nested = {name for row in (*rows[0]["topics"], *rows[0]["groups"]) for name in row}
        assert set(rows[0]) | nested == described("top")
        held = {row["topic"]: row["messages"] for row in rows[0]["topics"]}
        assert held[filled] == 6
        assert {(row["group"], row["topic"]): row["lag"] for row in rows[0]["groups"]}[f"{filled}-g", filled] == 4
        assert len(cli.run("top", "-n", "1", "-i", "100ms").lines[0].split("\t")) == 11


class TestCheck:
    def test_a_healthy_broker_is_ok_in_one_line(self, cli: Cli) -> None:
        done = cli.run("check", "--disk-warning", "0", "--disk-critical", "0", "--flush-warning", "1h")
        assert done.code == 0, done.out
        assert done.out.startswith("FLINTMQ OK: ")
        assert "| reput_behind=0 " in done.out
        assert done.out.count("\n") == 1

    def test_a_figure_beyond_its_limit_comes_first_and_sets_the_exit_code(self, cli: Cli, filled: str) -> None:
        group = f"{filled}-g"
        cli.run("offset", "reset", group, filled, "--to", "earliest")
        limits = ["--disk-warning", "0", "--disk-critical", "0", "--flush-warning", "1h", "--flush-critical", "2h"]
        warning = cli.run("check", *limits, "--group", group, "--lag-warning", "5", "--lag-critical", "50")
        assert warning.code == 1
        assert warning.out.startswith("FLINTMQ WARNING: lag 6 (WARNING), ")
        critical = cli.run("check", *limits, "--group", group, "--lag-critical", "5", "-o", "json")
        assert critical.code == 2
        row = critical.rows[0]
        assert (row["state"], row["bad"], row["lag"]) == ("CRITICAL", ["lag"], 6)
        assert set(row) <= described("check")

    def test_an_unavailable_figure_is_unknown(self, cli: Cli, filled: str) -> None:
        limits = ["--disk-warning", "0", "--disk-critical", "0", "--flush-warning", "1h", "--flush-critical", "2h"]
        nobody = cli.run("check", *limits, "--group", "nobody", "--lag-warning", "5")
        assert nobody.code == 3
        assert "lag – (UNKNOWN)" in nobody.out
        assert cli.run("check", "--topic", f"{filled}-not").code == 3
        wrong = cli.run("check", "--lag-warning", "x")
        assert (wrong.code, wrong.out) == (3, "")

    def test_an_unreachable_broker_is_critical(self, cli: Cli) -> None:
        done = cli.run("check", "-b", "127.0.0.1:1")
        assert done.code == 2
        assert done.out.startswith("FLINTMQ CRITICAL: CONNECTION_FAILED: cannot reach a broker at 127.0.0.1:1")


class TestBench:
    @pytest.mark.parametrize(
        ("arguments", "messages", "of"),
        [
            ("produce -n 2500 --batch 100 --producers 2 --size 20", 2500, {"batch"}),
            ("pull -n 2500 --batch 100", 2500, {"pull"}),
            ("query -n 50 --messages 500", 50, {"query"}),
            ("latency -n 30 --rate 1000", 30, {"acknowledged", "received"}),
        ],
    )
    def test_a_run_prints_figures_and_leaves_nothing_behind(
        self, cli: Cli, arguments: str, messages: int, of: set[str]
    ) -> None:
        row = cli.run("bench", *arguments.split(), "-o", "json").rows[0]
        assert row["messages"] == messages
        assert row["seconds"] > 0
        assert set(row["latency_seconds"]) == of
        for figures in row["latency_seconds"].values():
            assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"] <= figures["p99_9"] <= figures["max"]
            assert set(row) | set(figures) == described("bench")
        assert row["topic"] not in {topic["topic"] for topic in cli.run("topic", "list", "-o", "json").rows}

    def test_an_existing_topic_is_kept(self, cli: Cli, filled: str) -> None:
        shown = cli.run("bench", "pull", "--topic", filled, "-o", "table")
        assert shown.out.startswith("pull: 6 messages in ")
        assert "p99.9" in shown.out
        assert "█" in shown.out
        assert cli.run("bench", "query", "--topic", filled, "-n", "5").code == 0
        assert cli.run("topic", "status", filled).code == 0

    def test_a_topic_without_keys_cannot_be_queried(self, cli: Cli, topic: str) -> None:
        cli.run("send", topic, "x")
        done = cli.run("bench", "query", "--topic", topic)
        assert done.code == EXIT_ERROR
        assert "have no keys" in done.err

    def test_the_topic_is_kept_on_request(self, cli: Cli) -> None:
        done = cli.run("bench", "produce", "-n", "10", "--keep", "-o", "json")
        name = done.rows[0]["topic"]
        assert f"kept topic {name}" in done.err
        assert cli.run("topic", "delete", name, "--yes").err == f"deleted topic {name} with 10 messages\n"


def test_a_context_contains_the_broker_address(cli: Cli, shared_broker: RunningBroker) -> None:
    cli.broker = ""
    assert "(" in cli.run("context", "add", "away", "127.0.0.1:1").err
    cli.run("context", "add", "here", shared_broker.address)
    assert cli.run("status").code == 3, "the first context is in use"
    assert cli.run("--context", "here", "status").code == 0
    assert cli.run("context", "use", "here").code == 0
    assert cli.run("status").code == 0
    rows = cli.run("context", "list", "-o", "json").rows
    assert set(rows[0]) == described("context list")
    assert [(row["context"], row["current"]) for row in rows] == [("away", False), ("here", True)]
    assert cli.run("context", "remove", "here").code == 0
    assert cli.run("context", "use", "here").code == EXIT_USAGE
    assert len(cli.run("context", "list").lines) == 1


def test_examples_are_shown_by_subject(cli: Cli) -> None:
    rows = cli.run("cheat", "-o", "json").rows
    assert set(rows[0]) == described("cheat")
    one = cli.run("cheat", "offset").lines
    assert one[0] == "offset"
    assert all(row["line"] in "\n".join(one) for row in rows if row["subject"] == "offset")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_its_shell_code(cli: Cli, shell: str) -> None:
    assert f"_FLINTMQ_COMPLETE={shell}_source" in cli.run("completion", shell).out
