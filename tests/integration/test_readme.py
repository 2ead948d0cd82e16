"""The first programs of the README run as they stand, against a real broker, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_tools import Cli
from tests.conftest import BrokerFactory
from tests.forked import broker_environment
from tests.security_tools import PASSWORD, SCRAM, set_user

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def run(program: str, address: str, folder: Path) -> str:
    """Run a program of the README in a process of its own; return what it printed."""
    path = folder / "first.py"
    path.write_text(program.replace("127.0.0.1:10911", address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=100, env=broker_environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_first_program_prints_what_the_readme_shows(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    assert run(blocks("python")[0], running.address, tmp_path) == blocks("text")[0]


@pytest.mark.parametrize("number", range(1, len(blocks("python"))))
def test_a_program_of_the_readme_runs(broker: BrokerFactory, tmp_path: Path, number: int) -> None:
    assert run(blocks("python")[number], broker().address, tmp_path)


def test_beyond_loopback_a_send_says_how_topics_are_made_and_that_works(broker: BrokerFactory, tmp_path: Path) -> None:
    """The lines of "Users and TLS", with ``topics.auto_create`` as it is for a broker that other machines reach."""
    set_user(tmp_path / "store", "ops")
    running = broker(store=tmp_path / "store", settings=SCRAM | {"topics.auto_create": "false"})
    cli = Cli(tmp_path / "home", running.address, {"FLINTMQ_USER": "ops", "FLINTMQ_PASSWORD": PASSWORD})
    refused = cli.run("send", "orders", "hello")
    assert refused.code != 0
    (said,) = re.findall(r"`flintmq (topic create \S+)`", refused.err)
    assert "topics.auto_create is false" in refused.err
    assert cli.run(*said.split()).code == 0
    assert cli.run("send", "orders", "hello").code == 0
