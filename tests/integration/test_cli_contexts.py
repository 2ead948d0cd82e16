"""Contexts with user and TLS, programs that use FLINTMQ_BROKER, and completion, against real brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_UNREACHED, EXIT_USAGE
from tests.cli_tools import Cli, Terminal
from tests.conftest import BrokerFactory, RunningBroker
from tests.security_tools import PASSWORD, SCRAM, set_user
from tests.tls_tools import Authority


def test_a_context_keeps_user_password_file_and_tls_options(broker: BrokerFactory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    store = tmp_path / "store"
    set_user(store, "billing")
    running = broker(store=store, settings=SCRAM | authority.issue().broker_settings)
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    with Cli(tmp_path / "home") as cli:
        secret.chmod(0o644)
        options = ["--user", "billing", "--password-file", str(secret), "--tls-ca", authority.path]
        refused = cli.run("context", "add", "prod", running.address, *options)
        assert (refused.code, "chmod 600" in refused.err) == (EXIT_USAGE, True)
        secret.chmod(0o600)
        assert cli.run("context", "add", "prod", running.address, *options, "-o", "json", "--timeout", "30").code == 0
        assert cli.run("send", "orders", "hello").rows[0]["topic"] == "orders", "in use, and as JSON"
        assert cli.run("tail", "orders", "-n", "1", "-o", "plain").lines == ["hello"]
        row = cli.run("context", "list").rows[0]
        assert (row["user"], row["tls"], row["password_file"], row["timeout"]) == ("billing", True, str(secret), 30.0)
        assert PASSWORD not in (tmp_path / "home" / "flintmq" / "contexts.toml").read_text()
        assert cli.run("status", "-b", running.address).code == EXIT_UNREACHED, (
            "another broker does not get the context's options"
        )
        cli.variables = {"FLINTMQ_PASSWORD": "wrong"}
        assert cli.run("status", "--user", "billing").code == 0, "the context's password is this user's"
        assert cli.run("status", "--user", "shop").code == EXIT_ERROR


def test_a_program_connects_to_the_broker_of_the_variable(
    shared_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLINTMQ_BROKER", shared_broker.address)
    with Producer() as producer, Consumer() as consumer, Admin() as admin:
        producer.send(Message(topic, b"x"))
        assert topic in admin.topics()
        assert next(consumer.iter(topic)).body == b"x"


class TestCompletion:
    def _completed(self, cli: Cli, *words: str) -> list[str]:
        cli.variables = {
            "_FLINTMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["flintmq", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = cli.run()
        assert (done.code, done.err) == (0, "")
        return [line.partition(",")[2] for line in done.lines if line]

    def test_commands_options_topics_and_groups_are_completed(
        self, cli: Cli, shared_broker: RunningBroker, topic: str
    ) -> None:
        with Consumer(shared_broker.address) as consumer, Admin(shared_broker.address) as admin:
            admin.create_topic(topic, queues=1)
            consumer.commit(f"{topic}-group", topic, {0: 0})
            assert self._completed(cli, "to") == ["topic", "top"]
            assert self._completed(cli, "topic", "li") == ["list"]
            assert self._completed(cli, "tail", topic) == [topic]
            assert self._completed(cli, "tail", topic, "--fr") == ["--from"]
            assert self._completed(cli, "offset", "reset", topic) == [f"{topic}-group"]
            assert self._completed(cli, "group", "status", topic) == [f"{topic}-group"]
            assert self._completed(cli, "dlq", "show", topic) == [], "it has no dead letters"
            admin.create_topic(f"%DLQ%{topic}-group", queues=1)
            assert self._completed(cli, "dlq", "show", topic) == [f"{topic}-group"]
        assert self._completed(cli, "-o", "js") == ["json"]

    def test_settings_are_completed(self, cli: Cli) -> None:
        hot = self._completed(cli, "config", "set", "ret")
        assert "retention.file_reserved_hours=" in hot
        assert all(name.startswith("retention.") and name.endswith("=") for name in hot)
        known = self._completed(cli, "config", "get", "server.")
        assert "server.listen" in known
        assert all(name.startswith("server.") for name in known)
        assert self._completed(cli, "config", "set", "server.l") == [], "it cannot be set now"

    def test_positions_times_and_contexts_are_completed(self, cli: Cli) -> None:
        assert self._completed(cli, "tail", "orders", "--from", "ea") == ["earliest"]
        assert "@-1h" in self._completed(cli, "group", "reset", "g", "t", "--to", "@")
        assert "@now" in self._completed(cli, "query", "key", "t", "k", "--since", "@")
        cli.variables = {}
        assert cli.run("context", "add", "prod", "127.0.0.1:1").code == 0
        assert self._completed(cli, "context", "use", "pr") == ["prod"]

    def test_the_words_of_other_brokers_are_completed(self, cli: Cli, topic: str) -> None:
        assert cli.run("send", topic, "x").code == 0
        assert self._completed(cli, "consume", topic) == [topic]
        assert self._completed(cli, "help", "topic", "li") == ["list"]
        assert self._completed(cli, "help", "to") == ["topic", "top"]

    def test_completion_without_a_broker_prints_nothing(self, cli: Cli) -> None:
        assert self._completed(cli, "-b", "127.0.0.1:1", "tail", "x") == []
        assert self._completed(cli, "--context", "nope", "tail", "x") == []

    def test_completion_does_not_ask_for_a_password(self, cli: Cli) -> None:
        cli.variables = {
            "_FLINTMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": "flintmq tail x",
            "COMP_CWORD": "2",
            "FLINTMQ_USER": "billing",
        }
        with cli:
            terminal = Terminal(cli, [], 80)
            assert terminal.finish() == 0
        assert terminal.text.strip() == ""

    def test_the_brokers_program_is_completed(self) -> None:
        def completed(*words: str) -> list[str]:
            variables = {
                "_FLINTMQ_BROKER_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(["flintmq-broker", *words]),
                "COMP_CWORD": str(len(words)),
            }
            script = Path(sys.executable).with_name("flintmq-broker")
            done = subprocess.run([script], env=os.environ | variables, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            return [line.partition(",")[2] for line in done.stdout.splitlines()]

        assert completed("ser") == ["serve"]
        assert completed("serve", "--flush", "a") == ["async"]

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_lines_for_a_shell_are_printed(self, cli: Cli, shell: str) -> None:
        lines = cli.run("completion", shell).out
        assert f"_FLINTMQ_COMPLETE={shell}_source flintmq" in lines
        assert f"_FLINTMQ_BROKER_COMPLETE={shell}_source flintmq-broker" in lines
