"""``flintmq context``."""

from __future__ import annotations

import click

from ..command import Group, note, pass_settings
from ..contexts import OPTIONS, Contexts
from ..output import TABLE, Column
from ..params import CONTEXT
from ..settings import Settings

COLUMNS = (
    Column("current", "", lambda current: "*" if current else ""),
    Column("context", "CONTEXT"),
    Column("broker", "BROKER"),
    Column("user", "USER"),
    Column("tls", "TLS", lambda tls: "yes" if tls else ""),
)
DATA_COLUMNS = (*COLUMNS, *(Column(key, key) for key in OPTIONS if key not in ("user", "tls")))


@click.group(cls=Group)
def context() -> None:
    """Name brokers, with user and TLS, and choose one.

    Contexts are kept in $XDG_CONFIG_HOME/flintmq/contexts.toml, else ~/.config/flintmq/contexts.toml. FLINTMQ_BROKER,
    --context and --broker count more than the context in use, and what a context says is for its own broker alone.
    """


@context.command("add")
@pass_settings
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--use", is_flag=True, help="Use it from now on.")
def add(settings: Settings, name: str, address: str, use: bool) -> None:
    """Name a broker, or several addresses of one: a:1,b:2. The first context is used at once.

    The context keeps those of these options that are given: --user, --password-file, --tls, --tls-ca,
    --tls-certificate, --tls-key, --timeout and --output. A password is never kept, only the path of a file that nobody
    else can read.

    \b
        flintmq context add prod mq.example.com:10911 --user billing --password-file ~/.billing --tls-ca ca.pem
    """
    contexts = Contexts.load()
    given = {key: getattr(settings, "mode" if key == "output" else key) for key in OPTIONS}
    contexts.add(name, address, {key: value for key, value in given.items() if value is not None})
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
        COLUMNS if settings.output.mode == TABLE else DATA_COLUMNS,
        (
            {
                "current": name == contexts.current,
                "context": name,
                "broker": broker,
                **{key: options.get(key) for key in OPTIONS},
                "user": options.get("user", ""),
                "tls": any(key.startswith("tls") for key in options),
            }
            for name, broker in sorted(contexts.brokers.items())
            for options in (contexts.options.get(name, {}),)
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
