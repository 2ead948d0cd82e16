"""The programs and commands of the READMEs and of ``docs/`` run as they stand, against real brokers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Consumer, TopicNotExist
from flintmq.testing.started_broker import broker_environment
from tests.cli_tools import Cli
from tests.conftest import STOP_TIMEOUT_S, BrokerFactory
from tests.group_tools import until
from tests.processes import free_port
from tests.security_tools import PASSWORD, SCRAM, set_user

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TESTING = ROOT / "docs" / "testing.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "client" / "README.md"]
COMMAND_TIMEOUT_S = 100.0
ELSEWHERE = ("./scripts/", "pip ", "git clone")
"""Beginnings of commands that other tests cover, or that need a network."""


def blocks(document: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(program: str, address: str, folder: Path) -> str:
    """Run a Python program of a document in a process of its own; return its output."""
    path = folder / "first.py"
    path.write_text(program.replace("127.0.0.1:10911", address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=100, env=broker_environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Shell:
    """A reader who types the commands of one document, one after the other.

    A broker runs in the background until the next one starts; addresses, hosts and folders are replaced by ones of the
    test; ``...`` as a password is the password that a command printed last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._broker: subprocess.Popen[str] | None = None
        self._password = ""
        binaries = str(Path(sys.executable).parent)
        self._environment = broker_environment(
            HOME=str(folder), PATH=f"{binaries}:{os.environ['PATH']}", FLINTMQ_METRICS__LISTEN="127.0.0.1:0"
        )

    def run(self, block: str) -> None:
        """Run each command of a block; every one must exit with 0."""
        for command in block.replace("\\\n", " ").splitlines():
            if command.strip() and not command.startswith(ELSEWHERE):
                self._run_command(self._replaced(command))

    def close(self) -> None:
        """Stop the broker; it must exit with 0."""
        if self._broker is not None:
            broker, self._broker = self._broker, None
            broker.send_signal(signal.SIGTERM)
            broker.communicate(timeout=STOP_TIMEOUT_S)
            assert broker.returncode == 0

    def _replaced(self, command: str) -> str:
        command = command.replace(".venv/bin/", "")
        command = re.sub(r"(127\.0\.0\.1|0\.0\.0\.0|broker\.example):10911", f"127.0.0.1:{self._port}", command)
        command = command.replace("/var/lib/", f"{self._folder}/").replace("/backup/", f"{self._folder}/backup-")
        return re.sub(r"(FLINTMQ_PASSWORD=)\.\.\.", rf"\g<1>{self._password}", command)

    def _run_command(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] == "export":
            self._environment.update({name: value for name, _, value in (word.partition("=") for word in words[1:])})
        elif words[:2] == ["flintmq-broker", "serve"]:
            self._serve(words, "listening on")
        elif words[:2] == ["flintmq", "dev"]:
            self._serve([*words, "--console", "127.0.0.1:0"], "console: http://")
        else:
            done = subprocess.run(
                words,
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            if "--generate" in words:
                self._password = done.stdout.split()[-1]
            if words[:3] == ["flintmq", "user", "add"] and "--store" in words:
                self._wait_for_user(words[3])

    def _wait_for_user(self, name: str) -> None:
        """Wait until the running broker has noticed a user that a command added to its store."""
        login = {"FLINTMQ_USER": name, "FLINTMQ_PASSWORD": self._password}
        command = ["flintmq", "-b", f"127.0.0.1:{self._port}", "whoami"]
        environment = self._environment | login
        until(lambda: subprocess.run(command, env=environment, capture_output=True).returncode == 0, "the user's login")

    def _serve(self, words: list[str], banner: str) -> None:
        """Run a broker in the background from the line that contains ``banner`` on."""
        self.close()
        if "--listen" not in words:
            words = [*words, "--listen", f"127.0.0.1:{self._port}"]
        self._broker = subprocess.Popen(
            words, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._broker.stdout is not None
        output = []
        for line in self._broker.stdout:
            output.append(line)
            if banner in line:
                return
        raise AssertionError("".join(output))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def test_the_first_program_prints_the_readmes_output(broker: BrokerFactory, tmp_path: Path) -> None:
    outputs = blocks(README, "text")
    assert run(blocks(README, "python")[0], broker().address, tmp_path) in outputs


def test_the_failing_listener_of_the_readme_fills_the_dead_letters(broker: BrokerFactory, tmp_path: Path) -> None:
    address = broker().address
    first, listener = blocks(README, "python")
    run(first, address, tmp_path)
    command = [sys.executable, "-c", listener.replace("127.0.0.1:10911", address)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=broker_environment()) as process,
        Consumer(address) as consumer,
    ):
        until(lambda: _reasons(consumer) == {f"ValueError: no account for o-{number}" for number in (1, 2, 3)})
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def _reasons(consumer: Consumer) -> set[str | None]:
    try:
        return {row.properties.get("RETRY_REASON") for row in consumer.browse("%DLQ%billing")}
    except TopicNotExist:
        return set()


PROGRAMS = [
    pytest.param(program, id=f"{document.stem} {number}")
    for document in DOCUMENTS
    for number, program in enumerate(blocks(document, "python"))
    # The README's listener runs until a signal, and the first block of the page on tests is for pytest: see below.
    if not (document is README and number) and not (document == TESTING and not number)
]


def test_the_tests_of_the_page_on_tests_pass(tmp_path: Path) -> None:
    path = tmp_path / "test_orders.py"
    path.write_text(blocks(TESTING, "python")[0], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=broker_environment())
    assert done.stdout.splitlines()[-1].startswith("3 passed"), done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_documents_runs(broker: BrokerFactory, tmp_path: Path, program: str) -> None:
    assert run(program, broker().address, tmp_path)


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if blocks(each, "sh")], ids=lambda each: each.stem)
def test_the_commands_of_a_document_run_one_after_the_other(shell: Shell, document: Path) -> None:
    for block in blocks(document, "sh"):
        if block.startswith("openssl") and not shutil.which("openssl"):
            pytest.skip("the last block needs openssl, which is not installed; the blocks before it ran")
        shell.run(block)


def test_the_first_administrator_is_created_on_a_machine_without_a_store(shell: Shell) -> None:
    everything = blocks(ROOT / "docs" / "operations.md", "sh")
    first = next(number for number, block in enumerate(everything) if "security.auth=scram" in block)
    for block in everything[first : first + 3]:
        shell.run(block)


@pytest.mark.parametrize(
    "document", [README, *DOCUMENTS[-1:], *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda each: each.stem
)
def test_every_block_has_a_language_that_is_tested(document: Path) -> None:
    fences = re.findall(r"^```.*$", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences[::2]) <= {"```python", "```sh", "```text"}
    assert set(fences[1::2]) <= {"```"}


def test_a_send_beyond_loopback_explains_how_to_create_topics(broker: BrokerFactory, tmp_path: Path) -> None:
    """A broker that other machines reach has ``topics.auto_create`` off; the error names the command that helps."""
    set_user(tmp_path / "store", "ops")
    running = broker(store=tmp_path / "store", settings=SCRAM | {"topics.auto_create": "false"})
    cli = Cli(tmp_path / "home", running.address, {"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD})
    refused = cli.run("send", "orders", "hello")
    assert refused.code != 0
    (said,) = re.findall(r"`flintmq (topic create \S+)`", refused.err)
    assert "topics.auto_create is false" in refused.err
    assert cli.run(*said.split()).code == 0
    assert cli.run("send", "orders", "hello").code == 0
