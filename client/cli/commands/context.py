"""``flintmq context``."""

from __future__ import annotations

import click

from ..command import Group, note, pass_settings
from ..contexts import Contexts
from ..output import Column
from ..params import CONTEXT
from ..settings import Settings

COLUMNS = (
    Column("current", "", lambda current: "*" if current else ""),
    Column("context", "CONTEXT"),
    Column("broker", "BROKER"),
)


@click.group(cls=Group)
def context() -> None:
    """Name brokers and choose one.

    Contexts are kept in $XDG_CONFIG_HOME/flintmq/contexts.toml, else ~/.config/flintmq/contexts.toml. FLINTMQ_BROKER,
    --context and --broker count more than the context in use.
    """


@context.command("add")
@pass_settings
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--use", is_flag=True, help="Use it from now on.")
def add(settings: Settings, name: str, address: str, use: bool) -> None:
    """Name a broker, or several addresses of one: a:1,b:2. The first context is used at once."""
    contexts = Contexts.load()
    contexts.add(name, address)
    if use or not contexts.current:
        contexts.current = name
    contexts.save()
    in_use = ", in use" if contexts.current == name else ""
    note(settings, f"context {name} is {contexts.brokers[name]}{in_use} ({contexts.path})")


@context.command("use")
@pass_settings
@click.argument("name", type=CONTEXT)
def use(settings: Settings, name: str) -> None:
    """Use a context from now on."""
    contexts = Contexts.load()
    broker = contexts.broker_of(name)
    contexts.current = name
    contexts.save()
    note(settings, f"context {name} is in use: {broker}")


@context.command("list")
@pass_settings
def list_contexts(settings: Settings) -> None:
    """List the contexts; * marks the one in use."""
    contexts = Contexts.load()
    settings.output.rows(
        COLUMNS,
        (
            {"current": name == contexts.current, "context": name, "broker": broker}
            for name, broker in sorted(contexts.brokers.items())
        ),
        empty="there are no contexts; flintmq context add NAME HOST:PORT makes one",
    )


@context.command("remove")
@pass_settings
@click.argument("name", type=CONTEXT)
def remove(settings: Settings, name: str) -> None:
    """Forget a context."""
    contexts = Contexts.load()
    contexts.remove(name)
    contexts.save()
    note(settings, f"context {name} is gone")
