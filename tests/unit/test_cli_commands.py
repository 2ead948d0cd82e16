"""The command line itself: its commands, imports, suggestions and documentation."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from flintmq.client.cli import failures
from flintmq.client.cli.commands.shell import EXAMPLES
from flintmq.client.cli.failures import TLS_STEP, describe
from flintmq.client.cli.main import COMMANDS, root
from flintmq.client.cli.messages import DIRECTIVES
from flintmq.client.core.rpc.address import Address
from flintmq.client.core.rpc.connection_errors import closed_here, not_greeted
from flintmq.protocol import standard_output
from tests.cli_tools import Cli

README = (Path(__file__).parents[2] / "client" / "cli" / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return a command line without a broker."""
    return Cli(tmp_path, "127.0.0.1:1")


def _all_commands() -> dict[str, click.Command]:
    """Return every command by the words that call it, including those of groups."""
    found: dict[str, click.Command] = {}
    ctx = click.Context(root, info_name="flintmq")
    for name in COMMANDS:
        command = root.get_command(ctx, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": command.commands[sub] for sub in command.commands}
    return found


ALL_COMMANDS = _all_commands()


def test_the_list_of_commands_fits_a_terminal_of_80_columns(cli: Cli) -> None:
    assert max(map(len, cli.run("--help").lines)) <= 80
    for lazy in COMMANDS.values():
        assert lazy.summary.endswith(".")


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_command_has_help_with_the_common_options(cli: Cli, name: str) -> None:
    done = cli.run(*name.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: flintmq {name} ")
    if not isinstance(ALL_COMMANDS[name], click.Group):
        assert "Common options:" in done.out
        assert "--broker" in done.out


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_option_and_argument_has_help(name: str) -> None:
    command = ALL_COMMANDS[name]
    assert command.help
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"{name} {param.opts}"


def test_help_lists_commands_before_options(cli: Cli) -> None:
    out = cli.run("--help").out
    assert out.index("Messages:") < out.index("Also: ") < out.index("Options:")


def test_without_arguments_the_command_line_prints_help(cli: Cli) -> None:
    assert cli.run().out == cli.run("--help").out
    assert cli.run("topic").code == 0
    assert cli.run("topic").out.startswith("Usage: flintmq topic")


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    assert re.fullmatch(r"flintmq, version \d+\.\d+\.\d+\n", cli.run("--version").out)


def test_help_and_completion_of_commands_import_neither_rich_nor_a_client() -> None:
    script = (
        "import sys\nfrom flintmq.client.cli.main import root\n"
        "try:\n    root.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = [n for n in sys.modules if n.split('.')[0] in ('rich', 'msgpack', 'asyncio', 'socket') "
        "or n.startswith(('flintmq.client.sync', 'flintmq.client.core', 'flintmq.client.cli.commands.'))]\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    for variables in ({}, {"_FLINTMQ_COMPLETE": "bash_complete", "COMP_WORDS": "flintmq t", "COMP_CWORD": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", script, "--help"], capture_output=True, text=True, env=variables, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "tail" in done.stdout


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for _, line in lines])
def test_every_example_is_a_valid_command_line(line: str) -> None:
    typed = next(part for part in re.split(r"\| *|\$\(", line) if part.strip().startswith("flintmq"))
    words = shlex.split(typed.rstrip(')"').split(" > ")[0])
    if words[1] == "-b":
        words[1:3] = []
    name = next((name for name in (" ".join(words[1:3]), words[1]) if name in ALL_COMMANDS), "")
    arguments = words[1 + len(name.split()) :]
    arguments = ["/dev/null" if word.endswith((".png", ".jsonl")) else word for word in arguments]
    with ALL_COMMANDS[name].make_context(name, arguments) as ctx:
        assert ctx.params


class TestReadme:
    def test_every_command_is_described(self) -> None:
        for name, command in ALL_COMMANDS.items():
            if not isinstance(command, click.Group):
                assert f"`{name}" in README, name

    def test_every_directive_is_described(self) -> None:
        described = dict(re.findall(r"^\| `%(\w)` \| (.*?) \|$", README, re.MULTILINE))
        assert described == {letter: meaning for letter, (meaning, _) in DIRECTIVES.items()}

    def test_every_exit_code_is_described(self) -> None:
        described = {int(code) for code in re.findall(r"^\| (\d+) \| ", README, re.MULTILINE)}
        codes = vars(failures) | vars(standard_output)
        assert described == {value for name, value in codes.items() if name.startswith("EXIT_")}


@pytest.mark.parametrize("tls", [True, False])
def test_an_error_that_may_come_from_missing_tls_names_the_options(tls: bool) -> None:
    here = Address("127.0.0.1", 10911)
    assert describe(not_greeted(closed_here(here), tls=tls))[-1] == f"next: {TLS_STEP}"


def test_a_lost_connection_does_not_mention_tls() -> None:
    assert len(describe(closed_here(Address("127.0.0.1", 10911)))) == 1
