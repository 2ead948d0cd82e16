"""The shape of every command: the common options, the nearest name for an unknown one, settings for who asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from ...protocol.errors import FlintError, GroupNotExist, TopicNotExist
from ...protocol.escaping import escape
from .failures import EXIT_ERROR, EXIT_USAGE, nearest
from .output import MODES
from .settings import TIMEOUT_SECONDS, Settings
from .words import SUBCOMMAND_ALIASES, advice

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ACCESS = ("user", "password_file", "tls", "tls_ca", "tls_certificate", "tls_key")
COMMON = ("broker", "context", "timeout", "mode", "quiet", *_ACCESS)
"""The names of the common options."""


def common_options() -> list[click.Parameter]:
    """The options that every command has, before its name or behind it."""
    return [
        click.Option(["-b", "--broker"], metavar="HOST:PORT", help="The broker, or several: a:1,b:2."),
        click.Option(["--context"], metavar="NAME", help="The broker of this context (flintmq context)."),
        click.Option(
            ["--timeout"], type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help=f"How long to wait for an answer.  [default: {TIMEOUT_SECONDS:g}]",
        ),
        click.Option(
            ["-o", "--output", "mode"], type=click.Choice(MODES), help="How to print.  [default: plain in a pipe]"
        ),
        click.Option(["-q", "--quiet"], is_flag=True, default=None, help="No progress and no summaries."),
        click.Option(["--user"], metavar="NAME", help="Who you are.  [FLINTMQ_USER; password: FLINTMQ_PASSWORD]"),
        click.Option(["--password-file"], metavar="FILE", help="Its first line is the password; -: standard input."),
        click.Option(["--tls"], is_flag=True, default=None, help="Speak TLS.  [FLINTMQ_TLS=1]"),
        click.Option(["--tls-ca"], metavar="FILE", help="The CA of the broker's certificate.  [FLINTMQ_TLS_CA]"),
        click.Option(["--tls-certificate"], metavar="FILE", help="Your certificate.  [FLINTMQ_TLS_CERTIFICATE]"),
        click.Option(["--tls-key"], metavar="FILE", help="Its key.  [FLINTMQ_TLS_KEY]"),
    ]  # fmt: skip


class Command(click.Command):
    """A command with the common options; ``usage_exit_code``: what a wrong command line ends with."""

    usage_exit_code = EXIT_USAGE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()
        self.context_settings = {**CONTEXT_SETTINGS, **self.context_settings}

    def invoke(self, ctx: click.Context) -> Any:
        """Run it, with the common options in the settings."""
        settings = take_common_options(ctx)
        try:
            return super().invoke(ctx)
        except TopicNotExist as error:
            _suggest(error, ctx.params.get("topic") or ctx.params.get("name"), lambda: _topics(settings))
            raise
        except GroupNotExist as error:
            _suggest(error, ctx.params.get("group"), lambda: _groups(settings))
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own options first, then the common ones."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                (common if param.name in (*COMMON, "help") else own).append(record)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        with formatter.section("Common options"):
            formatter.write_dl(common)


class Group(click.Group):
    """Commands about one thing."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**CONTEXT_SETTINGS, **self.context_settings}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; suggests the nearest for one that is not there."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        for meant in SUBCOMMAND_ALIASES.get(name, ()):
            if self.get_command(ctx, meant) is not None:
                return super().resolve_command(ctx, [meant, *args[1:]])
        return self.unknown(ctx, args)

    def unknown(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """What to do with a name that no command has: refuse it."""
        refuse_command(ctx, args[0], self.list_commands(ctx))


def refuse_command(ctx: click.Context, name: str, known: list[str], also: str = "") -> NoReturn:
    """Raise for a command that is not there."""
    suggestion = advice(name) or nearest(name.lower(), known) or f"; there are {', '.join(known)}"
    place = " ".join([*ctx.command_path.split()[1:], name])
    raise click.UsageError(f"there is no command {escape(place)}{also}{suggestion}", ctx)


def _topics(settings: Settings) -> list[str]:
    with settings.admin() as admin:
        return list(admin.topics())


def _groups(settings: Settings) -> list[str]:
    with settings.admin() as admin:
        return [info.group for info in admin.groups()]


def _suggest(error: FlintError, asked: Any, known: Callable[[], list[str]]) -> None:
    """Add to an error the names that are there and resemble the one that was asked for."""
    if not isinstance(asked, str):
        return
    try:
        suggestion = nearest(asked, known())
    except FlintError:
        return  # the first error is the one to show
    if suggestion:
        error.add_note(suggestion.removeprefix("; "))


def take_common_options(ctx: click.Context) -> Settings:
    """Move the common options from a command's parameters to the settings, over those given further left."""
    settings = ctx.find_object(Settings)
    if settings is None:
        settings = ctx.find_root().obj = ctx.obj = Settings()
    for name in COMMON:
        value = ctx.params.pop(name, None)
        if value is not None:
            setattr(settings, name, value)
    return settings


pass_settings = click.make_pass_decorator(Settings, ensure=True)
"""Gives a command the settings as its first argument."""


def command(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], Command]:
    """A command of the root, whose function takes the settings first."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(name, cls=Command, **attrs)(pass_settings(function))
        assert isinstance(made, Command)
        return made

    return decorate


def note(settings: Settings, text: str) -> None:
    """A line on standard error for the person in front of it; not with ``--quiet``."""
    if not settings.quiet:
        click.echo(text, err=True)


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, does: str = "deletes", done: str = "deleted") -> None:
    """Ask; the command ends where the answer is not yes. ``does``, ``done``: what ``--yes`` does, and what was not."""
    if not is_interactive():
        raise click.UsageError(f"nobody can be asked here; --yes {does} without asking", click.get_current_context())
    if not click.confirm(question, err=True):
        click.echo(f"nothing was {done}", err=True)
        raise click.exceptions.Exit(EXIT_ERROR)
