"""Contexts with user and TLS, programs that use FLINTMQ_BROKER, and completion, against real brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_program_connects_to_the_broker_of_the_variable(shared_broker: RunningBroker, topic: str) -> None:
    program = (
        "import sys\nfrom flintmq.client import Admin, Consumer, Message, Producer, PushConsumer\n"
        "topic = sys.argv[1]\n"
        "with Producer() as producer, Consumer() as consumer, Admin() as admin:\n"
        "    producer.send(Message(topic, b'x'))\n"
        "    assert topic in admin.topics()\n"
        "    print(next(consumer.iter(topic)).body.decode())\n"
    )
    environment = os.environ | {"FLINTMQ_BROKER": shared_broker.address}
    done = subprocess.run(
        [sys.executable, "-c", program, topic], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr


class TestCompletion:
    def _completed(self, cli: Cli, *words: str) -> list[str]:
        cli.variables = {
            "_FLINTMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["flintmq", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = cli.spawn()
        assert (done.code, done.err) == (0, "")
        return [line.partition(",")[2] for line in done.lines if line]

    def test_settings_are_completed(self, cli: Cli) -> None:
        hot = self._completed(cli, "config", "set", "ret")
        assert "retention.file_reserved_hours=" in hot
        assert all(name.startswith("retention.") and name.endswith("=") for name in hot)
        assert "server.listen" in self._completed(cli, "config", "get", "server.")
        assert self._completed(cli, "config", "set", "server.l") == [], "it cannot be set now"

    def test_positions_and_times_are_completed(self, cli: Cli) -> None:
        assert self._completed(cli, "tail", "orders", "--from", "ea") == ["earliest"]
        assert "@-1h" in self._completed(cli, "group", "reset", "g", "t", "--to", "@")
        assert "@now" in self._completed(cli, "query", "key", "t", "k", "--since", "@")

    def test_the_words_of_other_brokers_are_completed(self, cli: Cli, topic: str) -> None:
        cli.variables = {}
        assert cli.spawn("send", topic, "x").code == 0
        assert self._completed(cli, "consume", topic) == [topic]
        assert self._completed(cli, "help", "topic", "li") == ["list"]
        assert self._completed(cli, "help", "to") == ["topic", "top"]

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

    def test_the_broker_s_program_is_completed(self, tmp_path: Path) -> None:
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
        assert "--store" in completed("serve", "--st")
        assert completed("serve", "--flush", "a") == ["async"]
        lines = Cli(tmp_path).run("completion", "bash").out
        assert "_FLINTMQ_BROKER_COMPLETE=bash_source flintmq-broker" in lines
