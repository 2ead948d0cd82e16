"""``flintmq status``, ``top``, ``check`` and ``bench`` against a real broker: figures that differ from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.client import Admin, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_UNREACHED, EXIT_USAGE
from flintmq.protocol.commands import RUNTIME_INFO
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, RunningBroker
from tests.integration.test_cli_transcripts import documented
from tests.security_tools import PASSWORD, SCRAM, set_grants


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> str:
    """A topic with two queues and three messages in each."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(topic, queues=2)
        for queue in (0, 1):
            producer.send_bulk(topic, [b"x"] * 3, queue=queue, keys=["k"] * 3)
    return topic


class TestStatus:
    def test_json_contains_every_figure_of_the_protocol(self, cli: Cli, shared_broker: RunningBroker) -> None:
        row = cli.run("status", "-o", "json").rows[0]
        assert {name for name in row if not name.startswith("errors_")} == {"address", *RUNTIME_INFO}
        assert (row["address"], row["pid"]) == (shared_broker.address, shared_broker.process.pid)
        plain = dict(line.split("\t") for line in cli.run("status").lines)
        assert plain["pid"] == str(row["pid"])


class TestTop:
    def test_topics_of_groups_are_shown_only_on_request(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Admin(shared_broker.address) as admin:
            admin.create_topic(f"%DLQ%{topic}", queues=1)
        for options, shown in (((), False), (("--system",), True)):
            row = cli.run("top", "-n", "1", "-i", "100ms", "-o", "json", *options).rows[0]
            assert (f"%DLQ%{topic}" in {each["topic"] for each in row["topics"]}) is shown

    def test_each_interval_prints_rates_topics_and_groups(self, cli: Cli, filled: str) -> None:
        cli.run("offset", "reset", f"{filled}-g", filled, "--to", "1")
        rows = cli.run("top", "-n", "2", "-i", "100ms", "-o", "json").rows
        assert len(rows) == 2
        nested = {name for row in (*rows[0]["topics"], *rows[0]["groups"]) for name in row}
        assert set(rows[0]) | nested == documented("top")
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
        assert set(row) <= documented("check")

    def test_an_unavailable_figure_is_unknown(self, cli: Cli, filled: str) -> None:
        limits = ["--disk-warning", "0", "--disk-critical", "0", "--flush-warning", "1h", "--flush-critical", "2h"]
        nobody = cli.run("check", *limits, "--group", "nobody", "--lag-warning", "5")
        assert nobody.code == 3
        assert "lag – (UNKNOWN)" in nobody.out
        assert cli.run("check", "--topic", f"{filled}-not").code == 3
        wrong = cli.run("check", "--lag-warning", "x")
        assert (wrong.code, wrong.out) == (3, "")


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
            assert set(row) | set(figures) == documented("bench")
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


def test_connecting_to_the_metrics_port_is_explained(cli: Cli, shared_broker: RunningBroker) -> None:
    with Admin(shared_broker.address) as admin:
        metrics = admin.status()["metrics_address"]
    done = cli.run("-b", metrics, "status")
    assert done.code == EXIT_UNREACHED
    assert f"the server at {metrics} is not a FlintMQ broker: it responds with HTTP" in done.err
    assert "connect to the broker's own port" in done.err


@pytest.mark.parametrize("command", [["import", "{topic}"], ["offset", "import"]])
def test_a_line_that_is_nested_too_deep_is_refused(cli: Cli, filled: str, command: list[str]) -> None:
    done = cli.run(*(word.replace("{topic}", filled) for word in command), stdin="[" * 100_000)
    assert done.code == EXIT_USAGE
    assert "line 1 " in done.err


# ---- Users, some of whom may not see the broker; a transcript, ``withheld``, shows these.

CALM = ["--disk-warning", "0", "--disk-critical", "0"]


@pytest.fixture
def guarded(broker: BrokerFactory, tmp_path: Path) -> RunningBroker:
    store = tmp_path / "store"
    set_grants(
        store, {"watcher": [{"actions": ["query"], "broker": True}], "root": [{"actions": ["admin"], "broker": True}]}
    )
    return broker(store=store, settings=SCRAM)


def cli_of(user: str, running: RunningBroker, folder: Path) -> Cli:
    return Cli(folder / user, running.address, {"FLINTMQ_USER": user, "FLINTMQ_PASSWORD": PASSWORD})


def test_check_of_a_permitted_user_is_ok(guarded: RunningBroker, tmp_path: Path) -> None:
    done = cli_of("watcher", guarded, tmp_path).run("check", *CALM)
    assert (done.code, done.out[:11]) == (0, "FLINTMQ OK:"), done.out


def test_a_lag_that_no_group_has_is_unknown_with_a_reason(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    done = root.run("check", *CALM, "--lag-critical", "5")
    assert (done.code, "no group has consumed anything, or the user may not see it" in done.out) == (3, True), done.out
    assert root.run("topic", "create", "orders").code == 0
    done = root.run("check", *CALM, "--lag-critical", "5", "--group", "absent", "--topic", "orders")
    assert (done.code, "group absent has consumed nothing of topic orders" in done.out) == (3, True), done.out


def test_status_counts_groups_apart_from_those_with_members(guarded: RunningBroker, tmp_path: Path) -> None:
    root = cli_of("root", guarded, tmp_path)
    assert root.run("topic", "create", "orders").code == 0
    for group in ("one", "two"):
        assert root.run("offset", "reset", group, "orders", "--to", "earliest").code == 0
    row = root.run("status", "-o", "json").rows[0]
    assert (row["known_groups"], row["groups"], row["group_members"]) == (2, 0, 0)
    assert "2, of which none with live members" in root.run("status", "-o", "table").out


def test_the_start_prints_how_much_it_examined(broker: BrokerFactory, tmp_path: Path) -> None:
    first = broker(store=tmp_path / "banner")
    assert "after a clean stop; there were no messages to check" in "\n".join(first.output)
    cli = Cli(tmp_path / "home", first.address)
    assert cli.run("send", "orders", stdin="a\nb\nc\n").code == 0
    assert first.stop() == 0
    again = "\n".join(broker(store=tmp_path / "banner").output)
    assert "after a clean stop; the newest 3 messages of the log were checked, none had to be recovered" in again
