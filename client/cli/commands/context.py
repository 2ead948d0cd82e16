"""The command ``flintmq context``."""

from __future__ import annotations

import click

from ....protocol.display import TABLE
from ..command import CliGroup, note, pass_settings
from ..contexts import OPTIONS, Contexts
from ..output import TableColumn
from ..params import CONTEXT
from ..settings import BrokerChoice

COLUMNS = (
    TableColumn("current", "", lambda current: "*" if current else ""),
    TableColumn("context", "CONTEXT"),
    TableColumn("broker", "BROKER"),
    TableColumn("user", "USER"),
    TableColumn("tls", "TLS", lambda tls: "yes" if tls else ""),
)
DATA_COLUMNS = (*COLUMNS, *(TableColumn(key, key) for key in OPTIONS if key not in ("user", "tls")))


@click.group(cls=CliGroup)
def context() -> None:
    """Save brokers under names, with user and TLS options, and choose one.

    Contexts are stored in $XDG_CONFIG_HOME/flintmq/contexts.toml, or in ~/.config/flintmq/contexts.toml.
    FLINTMQ_BROKER, --context and --broker override the context in use. The options of a context apply only to its own
    broker.
    """


@context.command("add")
@pass_settings
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--use", is_flag=True, help="Make it the context in use.")
def add(settings: BrokerChoice, name: str, address: str, use: bool) -> None:
    """Save the address of a broker, or several (a:1,b:2), under a name. The first context is used at once.

    The context also saves these options if they are given: --user, --password-file, --tls, --tls-ca,
    --tls-certificate, --tls-key, --timeout and --output. It never saves a password, only the path of a file that no
    other user can read.

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
def use(settings: BrokerChoice, name: str) -> None:
    """Make a context the one in use."""
    contexts = Contexts.load()
    broker = contexts.broker_of(name)
    contexts.current = name
    contexts.save()
    note(settings, f"context {name} is now in use: {broker}")


@context.command("list")
@pass_settings
def list_contexts(settings: BrokerChoice) -> None:
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
        empty="there are no contexts; flintmq context add NAME HOST:PORT adds one",
    )


@context.command("remove")
@pass_settings
@click.argument("name", type=CONTEXT)
def remove(settings: BrokerChoice, name: str) -> None:
    """Remove a context."""
    contexts = Contexts.load()
    contexts.remove(name)
    contexts.save()
    note(settings, f"removed context {name}")
