"""Entry point: the list of commands, and the exit code of every run."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from keyword import iskeyword
from typing import Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from ...protocol.display import escape
from ...protocol.standard_output import standard_output
from .command import (
    ALIASES,
    CONTEXT_SETTINGS,
    HELP,
    VERSION,
    CliCommand,
    CliGroup,
    advice,
    common_options,
    other_words,
    take_common_options,
    unknown_command,
)
from .failures import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, describe, exit_code, nearest
from .settings import BrokerChoice


class Lazy(NamedTuple):
    """A command that is imported when it is called. ``summary``: its line in the list of commands."""

    module: str
    summary: str


SECTIONS: dict[str, dict[str, Lazy]] = {
    "Messages": {
        "send": Lazy("send", "Send messages from arguments, lines of standard input, or files."),
        "pull": Lazy("reads", "Show stored messages."),
        "tail": Lazy("reads", "Follow a topic: show messages as they arrive."),
        "query": Lazy("reads", "Find messages by key, id or time."),
        "copy": Lazy("transfers", "Copy messages to another topic or to the same one."),
        "export": Lazy("transfers", "Print messages as JSON lines."),
        "import": Lazy("transfers", "Send messages from JSON lines."),
        "archive": Lazy("archive", "Show, search and check an archive of the log."),
    },
    "Topics and groups": {
        "topic": Lazy("topic", "List, inspect, create, change and delete topics."),
        "group": Lazy("group", "List, inspect, reset and delete consumer groups."),
        "dlq": Lazy("dlq", "List, show, resend and purge dead letters."),
        "offset": Lazy("group", "Show, reset, export and import committed offsets."),
        "tx": Lazy("undelivered", "List open and parked transactions; commit or roll back by hand."),
        "delay": Lazy("undelivered", "Count the messages waiting for later delivery."),
    },
    "Broker": {
        "status": Lazy("status", "Show the state of the broker."),
        "top": Lazy("top", "Show rates, lag and disk space live."),
        "check": Lazy("status", "Print one line and an exit code for a monitor."),
        "dev": Lazy("servers", "Run a broker and its console together, for development."),
        "console": Lazy("servers", "Serve a page for the browser: messages, topics, groups, dead letters."),
        "connections": Lazy("broker", "List the clients that are connected; close a connection."),
        "quarantine": Lazy("broker", "List damage of the broker's log, and the messages lost."),
        "replica": Lazy("broker", "Show the replica set; switch its primary; add and remove members."),
        "config": Lazy("broker", "List, show and change the broker's settings."),
        "bench": Lazy("bench", "Measure the running broker."),
        "user": Lazy("user", "Add, remove and list users, and grant permissions."),
        "whoami": Lazy("user", "Show as which user you are known, and what you may do."),
    },
    "Shell": {
        "context": Lazy("shell", "Save brokers under names and choose one."),
        "cheat": Lazy("shell", "Show examples by subject."),
        "completion": Lazy("shell", "Print the lines that switch on completion in a shell."),
    },
}
COMMANDS = {name: lazy for section in SECTIONS.values() for name, lazy in section.items()}


class Root(CliGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module = importlib.import_module(f"{__package__}.commands.{lazy.module}")
        found = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; also accepts the words of other brokers' command lines."""
        word, *rest = args
        if word == HELP:
            return self._help(ctx, rest)
        if word == VERSION and not ctx.resilient_parsing:
            option = next(param for param in self.params if param.name == VERSION)
            option.callback(ctx, option, True)  # type: ignore[misc] # prints it and ends
        return super().resolve_command(ctx, [*ALIASES.get(word, word).split(" "), *rest])

    def _help(self, ctx: click.Context, words: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve ``help``: show the help of the command that ``words`` name, or of ``flintmq`` if there are none."""
        if not words or words[0] == HELP:
            if not ctx.resilient_parsing:
                click.echo(ctx.get_help())
                ctx.exit()
            return HELP, self, words[1:]  # complete as after flintmq itself
        words = [*ALIASES.get(words[0], words[0]).split(" "), *words[1:]]
        if self.get_command(ctx, words[0]) is None:
            raise self.unknown(ctx, words[0])
        return super().resolve_command(ctx, words if ctx.resilient_parsing else [*words, "--help"])

    def unknown(self, ctx: click.Context, name: str) -> click.UsageError:
        """Return the error of a name that no command has: the command to type. The name may be meant as a topic's."""
        near = nearest(name.lower(), [*COMMANDS, *ALIASES, HELP, VERSION])
        as_topic = f"; for a topic, type flintmq tail {escape(name)} or flintmq send {escape(name)}"
        return unknown_command(ctx, name, [], advice(name) or near or as_topic)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options, which fill a screen."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without importing any."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.summary) for name, lazy in commands.items()])
        formatter.write_paragraph()
        formatter.write_text(other_words())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = [CompletionItem(name, help=COMMANDS[name].summary) for name in COMMANDS if name.startswith(incomplete)]
        if not incomplete or incomplete.startswith("-"):
            items += click.Command.shell_complete(self, ctx, incomplete)
        return items

    def main(  # type: ignore[override]  # click's overloads
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run one command line and exit. Errors take one or two lines."""
        extra["standalone_mode"] = False
        try:
            result = super().main(args, "flintmq", **extra)
            code = result if type(result) is int else EXIT_OK
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx is not None else "")
            code = EXIT_OK
        except click.ClickException as error:
            code = _usage_error(error)
        except click.Abort:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Its errors become lines on standard error and an exit code."""
        from ...protocol.errors import FlintError

        try:
            return super().invoke(ctx)
        except FlintError as error:
            for number, line in enumerate(describe(error)):
                click.echo(f"  {line}" if number else f"flintmq: {line}", err=True)
            return exit_code(error)


def _usage_error(error: click.ClickException) -> int:
    """Print the error in the command line and the command that shows its help; return the exit code."""
    ctx = getattr(error, "ctx", None)
    message = escape(error.format_message().rstrip("."))
    click.echo(f"flintmq: {message[:1].lower()}{message[1:]}", err=True)
    if not isinstance(error, click.UsageError):
        return EXIT_USAGE
    path = ctx.command_path if ctx is not None else "flintmq"
    click.echo(f"  try: {path} --help", err=True)
    command = ctx.command if ctx is not None else None
    return command.usage_exit_code if isinstance(command, CliCommand) else EXIT_USAGE


@click.group(cls=Root, context_settings=CONTEXT_SETTINGS, params=common_options())
@click.version_option(None, "-V", "--version", package_name="flintmq", prog_name="flintmq")
@click.pass_context
def root(ctx: click.Context, /, **options: Any) -> None:
    """The command line of FlintMQ.

    \b
        flintmq tail orders                     follow the topic orders
        echo hello | flintmq send orders        send a line to it
        flintmq tail orders --from earliest
        flintmq cheat                           more examples
    """
    ctx.obj = BrokerChoice()
    take_common_options(ctx)


def main() -> NoReturn:
    """Run the console script. Its output is UTF-8 in every locale."""
    with standard_output("flintmq", errors_too=True):
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        root.main()


if __name__ == "__main__":
    main()
