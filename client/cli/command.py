"""Base classes of all commands: common options, suggestions for unknown names, and the settings object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...protocol.display import MODES, escape
from ...protocol.errors import FlintError, GroupNotExist, TopicNotExist
from ..operator.display import shown_name
from .failures import EXIT_ERROR, EXIT_USAGE, nearest
from .params import RealType
from .settings import COMMON, TIMEOUT_SECONDS, BrokerChoice, is_interactive

if TYPE_CHECKING:
    from ..sync.admin import Admin

# ---- Words from other brokers' command lines: aliases for commands, and words that only lead to a suggestion.

ALIASES = {"produce": "send", "pub": "send", "consume": "tail", "sub": "tail", "ls": "topic list"}
"""Command by alias."""

HELP, VERSION = "help", "version"
"""Words for ``--help`` and ``--version``."""

SUBCOMMAND_ALIASES = {"describe": ("status", "show"), "ls": ("list",), "rm": ("delete", "remove")}
"""Subcommands by alias; the first that a group of commands has is meant."""

OTHER_NAMES = {
    word: meant
    for meant, words in {
        "bench": "latency perf",
        "check": "health ping",
        "config": "configs",
        "context": "profile",
        "context add": "connect login",
        "group": "consumer",
        "group list": "consumer-groups consumers lag",
        "offset": "offsets",
        "offset reset": "reset",
        "pull": "browse cat get peek read receive",
        "send": "producer publish publisher put write",
        "status": "cluster info server-info stats",
        "tail": "follow kcat subscribe subscriber",
        "top": "monitor watch",
        "topic": "queue schema stream",
        "topic create": "create",
        "topic delete": "delete drop purge rm",
        "topic list": "list metadata queues streams topics",
        "topic status": "describe partitions show",
        "topic update": "alter edit update",
        "tx": "transaction",
        "tx list": "transactions",
        "user grant": "acl",
        "user list": "users",
    }.items()
    for word in words.split()
}
"""Command to suggest, by a word that is not a command."""

OTHER_SUBCOMMANDS = {
    "add": ("create",),
    "alter": ("update",),
    "drop": ("delete", "remove"),
    "edit": ("update",),
    "get": ("show", "status"),
    "info": ("status", "show"),
    "new": ("create", "add"),
}
"""Subcommands to suggest, by a word that is none; a group of commands has at most one of them."""

BROKER_WORDS = ("serve", "server", "start", "run", "backup", "restore", "verify", "repair", "rebuild")
"""Commands of ``flintmq-broker``, and words that a user may type to start a broker."""


def other_words() -> str:
    words = {meant: ", ".join(word for word in ALIASES if ALIASES[word] == meant) for meant in ALIASES.values()}
    return f"Also: {'; '.join(f'{names} = {meant}' for meant, names in words.items())}; version; help [COMMAND]."


def advice(word: str) -> str:
    """Return ``; did you mean 'topic list'?`` for a word with another name here; empty for any other word."""
    lower = word.lower()
    if lower in OTHER_NAMES:
        return f"; did you mean '{OTHER_NAMES[lower]}'?"
    if lower in BROKER_WORDS:
        return "; flintmq-broker serve starts a broker, and flintmq-broker --help lists its tools"
    return ""


F = TypeVar("F", bound=Callable[..., Any])

CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SUMMARY_CHARS_MAX = 200


def common_options() -> list[click.Parameter]:
    return [
        click.Option(["-b", "--broker"], metavar="HOST:PORT", help="Address of the broker, or several: a:1,b:2."),
        click.Option(["--context"], metavar="NAME", help="Use the broker of this context (flintmq context)."),
        click.Option(
            ["--timeout"],
            type=RealType(min=0, min_open=True),
            metavar="SECONDS",
            help=f"How long to wait for a response.  [default: {TIMEOUT_SECONDS:g}]",
        ),
        click.Option(
            ["-o", "--output", "mode"],
            type=click.Choice(MODES),
            metavar="FORMAT",
            help=f"{', '.join(MODES[:-1])} or {MODES[-1]}.  [default: table on a terminal, else plain]",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, default=None, help="Print no progress and no summaries."),
        click.Option(["--user"], metavar="NAME", help="User name.  [FLINTMQ_USER; password: FLINTMQ_PASSWORD]"),
        click.Option(["--password-file"], metavar="FILE", help="Password in the first line of FILE (-: stdin)."),
        click.Option(["--tls"], is_flag=True, default=None, help="Connect with TLS.  [FLINTMQ_TLS=1]"),
        click.Option(["--tls-ca"], metavar="FILE", help="CA that signed the broker's certificate.  [FLINTMQ_TLS_CA]"),
        click.Option(["--tls-certificate"], metavar="FILE", help="Client certificate.  [FLINTMQ_TLS_CERTIFICATE]"),
        click.Option(["--tls-key"], metavar="FILE", help="Key of the client certificate.  [FLINTMQ_TLS_KEY]"),
    ]


class CliCommand(click.Command):
    """A command with the common options. ``usage_exit_code``: exit code for an invalid command line."""

    usage_exit_code = EXIT_USAGE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()
        self.context_settings = {**CONTEXT_SETTINGS, **self.context_settings}

    def invoke(self, ctx: click.Context) -> Any:
        """Move the common options to the settings and run the command."""
        settings = take_common_options(ctx)
        try:
            return super().invoke(ctx)
        except TopicNotExist as error:
            _suggest(error, ctx.params.get("topic") or ctx.params.get("name"), settings, lambda admin: admin.topics())
            raise
        except GroupNotExist as error:
            _suggest(error, ctx.params.get("group"), settings, lambda admin: [info.group for info in admin.groups()])
            raise

    def get_short_help_str(self, limit: int = SUMMARY_CHARS_MAX) -> str:
        """Return the whole first sentence for the list of commands, where click would cut it after 45 characters."""
        return super().get_short_help_str(max(limit, SUMMARY_CHARS_MAX))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then the common ones."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            # Newer releases of click list arguments too, without any text; the line "Usage" names them already.
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                (common if param.name in (*COMMON, "help") else own).append(record)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        with formatter.section("Common options"):
            formatter.write_dl(common)


class CliGroup(click.Group):
    command_class = CliCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**CONTEXT_SETTINGS, **self.context_settings}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant. Raises ``UsageError`` with a suggestion if there is none."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        for meant in SUBCOMMAND_ALIASES.get(name, ()) if ctx.parent is not None else ():
            if self.get_command(ctx, meant) is not None:
                return super().resolve_command(ctx, [meant, *args[1:]])
        raise self.unknown(ctx, name)

    def unknown(self, ctx: click.Context, name: str) -> click.UsageError:
        """Return the error of a name that no command has; ``Root`` overrides this."""
        known = self.list_commands(ctx)
        meant = [each for each in OTHER_SUBCOMMANDS.get(name.lower(), ()) if each in known]
        return unknown_command(ctx, name, known, f"; did you mean '{meant[0]}'?" if meant else "")


class CommandGroup(CliCommand, CliGroup):
    """A group that is a command too, if none of its commands is named."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, invoke_without_command=True, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


def unknown_command(ctx: click.Context, name: str, known: list[str], suggestion: str) -> click.UsageError:
    """Return the error of a command that does not exist. ``suggestion``: empty to make one."""
    suggestion = suggestion or nearest(name.lower(), known) or f"; the commands are {', '.join(known)}"
    place = " ".join([*ctx.command_path.split()[1:], name])
    return click.UsageError(f"there is no command {escape(place)}{suggestion}", ctx)


def _suggest(error: FlintError, asked: Any, settings: BrokerChoice, known: Callable[[Admin], Iterable[str]]) -> None:
    """Add the existing names that resemble ``asked``, as people type them, to the error."""
    if not isinstance(asked, str):
        return
    try:
        with settings.admin() as admin:
            suggestion = nearest(shown_name(asked), map(shown_name, known(admin)))
    except FlintError:
        return  # the user must see the first error, not this one
    if suggestion:
        error.add_note(suggestion.removeprefix("; "))


def take_common_options(ctx: click.Context) -> BrokerChoice:
    """Move the common options from a command's parameters to the settings.

    They override options that were given before the command's name.
    """
    settings = ctx.find_object(BrokerChoice)
    if settings is None:
        settings = ctx.find_root().obj = ctx.obj = BrokerChoice()
    for name in COMMON:
        value = ctx.params.pop(name, None)
        if value is not None:
            setattr(settings, name, value)
    return settings


pass_settings = click.make_pass_decorator(BrokerChoice, ensure=True)
"""Decorator that passes the settings to a command as its first argument."""


def command(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], CliCommand]:
    """Return a decorator for a command of the root, whose function takes the settings first."""

    def decorate(function: Callable[..., Any]) -> CliCommand:
        made = click.command(name, cls=CliCommand, **attrs)(pass_settings(function))
        assert isinstance(made, CliCommand)
        return made

    return decorate


def options(*decorators: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options to a command, for those that several commands have."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


flush_option = click.option(
    "--flush", type=click.Choice(["sync", "async"]), help="sync: acknowledge after the flush; async: broker's policy."
)


def note(settings: BrokerChoice, text: str) -> None:
    """Escape and print a line for the user on standard error, unless ``--quiet`` is set."""
    if not settings.quiet:
        click.echo(escape(text), err=True)


def confirm(question: str, does: str = "deletes", done: str = "deleted") -> None:
    """Ask the user, and end the command unless the answer is yes.

    ``does``, ``done``: the verb in the two messages ("--yes *deletes* without asking", "nothing was *deleted*").
    """
    if not is_interactive():
        raise click.UsageError(
            f"cannot ask for confirmation without a terminal; --yes {does} without asking", click.get_current_context()
        )
    if not click.confirm(escape(question), err=True):
        click.echo(f"nothing was {done}", err=True)
        raise click.exceptions.Exit(EXIT_ERROR)
