"""Words of other brokers' command lines: each leads to a command."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from flintmq.client.cli.command import ALIASES, BROKER_WORDS, OTHER_NAMES, OTHER_SUBCOMMANDS, SUBCOMMAND_ALIASES
from flintmq.client.cli.failures import EXIT_USAGE
from flintmq.client.cli.main import COMMANDS, root
from tests.cli_tools import Cli


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
    assert cli.run("version").out == cli.run("--version").out


@pytest.mark.parametrize(("word", "meant"), OTHER_NAMES.items())
def test_a_word_of_another_tool_is_answered_with_the_command_to_type(cli: Cli, word: str, meant: str) -> None:
    for typed in (word, word.upper()):
        done = cli.run(typed, "orders")
        assert (done.code, done.out) == (EXIT_USAGE, "")
        assert done.err.startswith(f"flintmq: there is no command {typed}; did you mean '{meant}'?\n")


@pytest.mark.parametrize(("word", "meant"), OTHER_SUBCOMMANDS.items())
def test_a_group_of_commands_answers_such_words_too(cli: Cli, word: str, meant: tuple[str, ...]) -> None:
    for name in COMMANDS:
        command = _command(name)
        if isinstance(command, click.Group) and word not in command.commands:
            done = cli.run(name, word)
            assert done.code == EXIT_USAGE
            wanted = [each for each in meant if each in command.commands]
            assert not wanted or f"there is no command {name} {word}; did you mean '{wanted[0]}'?" in done.err
