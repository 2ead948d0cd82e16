"""Pages of the reference with every command, its arguments and its options, from click."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from flintmq.broker.app.daemon import main as broker_program
from flintmq.client.cli.command import common_options
from flintmq.client.cli.main import SECTIONS, root
from flintmq.client.cli.settings import COMMON

from .code_pages import prose, table


def client_command_page() -> str:
    """Return the commands of ``flintmq``."""
    ctx = click.Context(root, info_name="flintmq")
    parts = [
        "# `flintmq`: every command",
        "How the commands work together, positions, output formats and `--format`: [the command line](cli.md). Every "
        "command takes the common options, before or after its name:",
        _options(common_options(), ctx),
    ]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}")
        for name in names:
            command = root.get_command(ctx, name)
            assert command is not None
            parts += _command(command, click.Context(command, info_name=name, parent=ctx))
    return "\n\n".join(parts)


def broker_command_page() -> str:
    """Return the commands of ``flintmq-broker``."""
    ctx = click.Context(broker_program, info_name="flintmq-broker")
    parts = ["# `flintmq-broker`: every command", "The broker itself, and the tools for its store."]
    for name in sorted(broker_program.commands):
        command = broker_program.commands[name]
        parts += _command(command, click.Context(command, info_name=name, parent=ctx))
    return "\n\n".join(parts)


def _command(command: click.Command, ctx: click.Context, depth: int = 3) -> Iterator[str]:
    """Yield the parts of a command's description, and of those below it."""
    yield f"{'#' * depth} `{ctx.command_path}`"
    yield prose(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            if not below.hidden:
                yield from _command(below, click.Context(below, info_name=name, parent=ctx), depth + 1)
        return
    yield f"```text\n{' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)])}\n```"
    own = [param for param in command.params if param.name not in COMMON]
    if options := _options(own, ctx):
        yield options


def _options(params: list[click.Parameter], ctx: click.Context) -> str:
    records = [record for param in params if (record := param.get_help_record(ctx)) and record[1]]
    rows = [(f"`{option}`", meaning.replace("<", "&lt;").replace("*", "\\*")) for option, meaning in records]
    return table("option | meaning", rows) if rows else ""
