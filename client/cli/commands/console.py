"""The command ``flintmq console``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ....protocol.errors import AuthenticationRequired, ConfigurationError, FlintError
from ..access import tls_options
from ..command import CliCommand, note, pass_settings
from ..settings import REACH_SECONDS_MAX, BrokerChoice

if TYPE_CHECKING:
    from ...console.options import ConsoleOptions

DEFAULT_PORT = 10980
LISTEN = f"127.0.0.1:{DEFAULT_PORT}"
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("console", cls=CliCommand)
@click.option("--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="Address of the page.")
@click.option("--https-certificate", "certificate", type=FILE, help="PEM certificate, to serve HTTPS.")
@click.option("--https-key", "key", type=FILE, help="Key of that certificate, unless it is in the same file.")
@click.option("--behind-proxy", is_flag=True, help="A proxy on this machine ends TLS and sets X-Forwarded-For.")
@click.option("--host-name", "hosts", multiple=True, metavar="NAME", help="Further name of the page; repeatable.")
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--no-bodies", is_flag=True, help="Show sizes of message bodies, not the bodies.")
@click.option("--insecure", is_flag=True, help="Let other machines use it although the broker has no users.")
@pass_settings
def console(settings: BrokerChoice, /, **given: Any) -> None:
    """Serve a page for the browser: messages, topics, groups, dead letters.

    If the broker has users, everyone logs in as one of them; the console has no password of its own.
    """
    options = console_options(settings, **given)
    from ...console.server import serve

    check_reach(settings, options)
    serve(options, lambda url: click.echo(f"console: {url}"))


def check_reach(settings: BrokerChoice, options: ConsoleOptions) -> None:
    """Raise ``ConfigurationError`` if other machines could use the console without a login. A broker that does not
    answer yet is only noted: the console checks again when it does."""
    from ...sync.admin import Admin

    try:
        with Admin(options.broker, timeout=REACH_SECONDS_MAX, **options.tls) as admin:
            admin.status()
    except AuthenticationRequired:
        return
    except FlintError as error:
        note(settings, f"the broker does not answer yet: {error}")
        return
    options.check_access()


def missing_library() -> str:
    """Return the name of a library of the extra that is not installed; empty if all are."""
    try:
        import jinja2  # noqa: F401 - only whether it is there
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        return error.name or "unknown"
    return ""


def require_libraries() -> None:
    """Raise ``ConfigurationError`` if the libraries of the extra are not installed."""
    if missing := missing_library():
        raise ConfigurationError(
            f"the console's libraries are not installed ({missing}); install them with pip install 'flintmq[console]'"
        )


def console_options(settings: BrokerChoice, listen: str, **given: Any) -> ConsoleOptions:
    """Return the options of a console for the chosen broker. ``given``: further fields of ``ConsoleOptions``.

    Raises ``ConfigurationError``.
    """
    require_libraries()
    from ...console.options import ConsoleOptions

    host, port = listen_address(listen)
    options = ConsoleOptions(broker=settings.addresses, tls=tls_options(settings), host=host, port=port, **given)
    options.check()
    return options


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``HOST``. Raises ``ConfigurationError``."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"--listen {text}: {error}; expected HOST:PORT") from None
    if not parts.hostname or parts.path or parts.query or parts.username is not None:
        raise ConfigurationError(f"--listen {text}: expected HOST:PORT, for example {LISTEN}")
    return parts.hostname, DEFAULT_PORT if port is None else port
