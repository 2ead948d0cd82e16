"""Words of other brokers' command lines: each leads to a command and is not taken for a topic's name."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from flintmq.client.cli.command import ALIASES, BROKER_WORDS, OTHER_NAMES, SUBCOMMAND_ALIASES, looks_like_command
from flintmq.client.cli.failures import EXIT_USAGE
from flintmq.client.cli.main import COMMANDS, root
from tests.cli_tools import Cli

KNOWN = [*COMMANDS, *ALIASES, "help", "version"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return a command line without a broker."""
    return Cli(tmp_path, "127.0.0.1:1")


def _command(path: str) -> click.Command | None:
    """Return the command with this name."""
    ctx = click.Context(root, info_name="flintmq")
    first, *rest = path.split()
    command = root.get_command(ctx, first)
    for word in rest:
        assert isinstance(command, click.Group), path
        command = command.get_command(ctx, word)
    return command


@pytest.mark.parametrize("meant", sorted({*ALIASES.values(), *OTHER_NAMES.values()} - {"help"}))
def test_each_word_leads_to_an_existing_command(meant: str) -> None:
    assert _command(meant) is not None


@pytest.mark.parametrize("word", [*ALIASES, *OTHER_NAMES, *BROKER_WORDS])
def test_no_word_is_the_name_of_a_command(word: str) -> None:
    assert word not in COMMANDS


@pytest.mark.parametrize(("word", "meant"), ALIASES.items())
def test_an_alias_is_the_command_itself(cli: Cli, word: str, meant: str) -> None:
    assert cli.run(word, "--help").out == cli.run(*meant.split(), "--help").out
    assert cli.run("help", word).out == cli.run(*meant.split(), "--help").out
    assert f"{word}" in cli.run("--help").out.partition("Also: ")[2]


@pytest.mark.parametrize(("word", "meant"), SUBCOMMAND_ALIASES.items())
def test_a_group_of_commands_has_aliases_too(cli: Cli, word: str, meant: tuple[str, ...]) -> None:
    tried = 0
    for name in COMMANDS:
        command = _command(name)
        if not isinstance(command, click.Group) or word in command.commands:
            continue
        if first := next((each for each in meant if each in command.commands), None):
            assert cli.run(name, word, "--help").out == cli.run(name, first, "--help").out
            tried += 1
    assert tried


def test_help_prints_the_help_of_the_named_command(cli: Cli) -> None:
    assert cli.run("help").out == cli.run("--help").out
    assert cli.run("help", "topic").out == cli.run("topic", "--help").out
    assert cli.run("help", "topic", "list").out == cli.run("topic", "list", "--help").out
    unknown = cli.run("help", "stauts")
    assert (unknown.code, unknown.out) == (EXIT_USAGE, "")
    assert "there is no command stauts; did you mean 'status'" in unknown.err
    assert cli.run("version").out == cli.run("--version").out


@pytest.mark.parametrize(
    ("word", "looks"),
    [
        ("help", True),
        ("HELP", True),
        ("hlep", True),
        ("verison", True),
        ("list", True),
        ("topics", True),
        ("serve", True),
        ("consumer", True),
        ("ls", True),
        ("pubs", True),
        ("orders", False),
        ("events", False),
        ("metrics", False),
        ("payments", False),
        ("help-desk", False),
        ("topic-0", False),
    ],
)
def test_a_word_that_may_mean_a_command_is_recognized(word: str, looks: bool) -> None:
    assert looks_like_command(word, KNOWN) is looks
