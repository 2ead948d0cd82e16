"""The commands ``flintmq console`` and ``flintmq dev``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click

from ....protocol.errors import AuthenticationRequired, ConfigurationError, FlintError
from ..command import CliCommand, note, pass_settings
from ..settings import DEFAULT_BROKER, REACH_SECONDS_MAX, BrokerChoice

if TYPE_CHECKING:
    from ...console.policy import ConsoleOptions


# ---- The command ``flintmq console``.

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
    from ...console.policy import ConsoleOptions

    host, port = listen_address(listen)
    options = ConsoleOptions(broker=settings.addresses, tls=settings.tls_options, host=host, port=port, **given)
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


# ---- The command ``flintmq dev``.

PROGRAM = "from flintmq.broker.app.daemon import main; main(prog_name='flintmq-broker')"
TITLE, KERNELS, BANNER = "FlintMQ ", "kernels: ", "listening on "
"""Beginnings of the lines with which the broker says that it has started, that it is slow at first, and its address."""
STOP_SECONDS = 15.0
PR_SET_PDEATHSIG = 1
"""Option of prctl, from linux/prctl.h."""
FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("dev", cls=CliCommand)
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="The store.  [default: a temporary one]"
)
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT_BROKER, show_default=True, help="Address of the broker.")
@click.option("--console", "page", metavar="HOST:PORT", help=f"Address of the page.  [default: {LISTEN}]")
@pass_settings
def dev(settings: BrokerChoice, /, store: Path | None, listen: str, page: str | None) -> None:
    """Run a broker and its console, if that is installed, for development. Ctrl-C ends both.

    Without --store, the messages are deleted at the end.
    """
    missing = missing_library()
    if page is not None:
        require_libraries()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with contextlib.ExitStack() as opened:
        folder = store or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-dev-")))
        settings.broker = opened.enter_context(running_broker(folder, listen))

        def ready(url: str) -> None:
            chosen = "" if settings.broker == DEFAULT_BROKER else f" -b {settings.broker}"
            click.echo(f"broker:  {settings.broker}   store: {folder}{'' if store else ' (deleted at the end)'}")
            click.echo(f"console: {url}\n")
            click.echo(f"  flintmq{chosen} send orders hello     sends a message")
            click.echo(f"  flintmq{chosen} tail orders           follows the topic\n\nCtrl-C ends both.")

        if missing:
            _wait_for_signal(lambda: ready("not installed: pip install 'flintmq[console]'"))
        else:
            from ...console.server import serve

            serve(console_options(settings, page or LISTEN), ready)


def _stop(number: int, stack: object) -> NoReturn:
    sys.exit(0)  # the broker and its temporary store end with this process


def _wait_for_signal(ready: Callable[[], None]) -> None:
    """Call ``ready`` and wait for Ctrl-C or SIGTERM, as the console does."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ready()
    ended.wait()


def _stop_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent ends (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


STOPPED_WITH_PARENT = _stop_with_parent if sys.platform == "linux" else None


@contextlib.contextmanager
def running_broker(store: Path, listen: str) -> Iterator[str]:
    """Run a broker as a process of its own and yield its address; stop it at the end.

    Progress of a long start goes to standard error. If the broker ends by itself, this process is told to stop too.

    Raises ``ConfigurationError`` if it does not start; it has printed the reason.
    """
    command = [sys.executable, "-c", PROGRAM, "serve", "--store", str(store), "--listen", listen]
    # Ctrl-C in a terminal must reach this process alone, which then stops the broker: hence a process group. The broker
    # also stops on Linux if this process is killed; no other thread runs here yet, so preexec_fn is safe.
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, text=True, preexec_fn=STOPPED_WITH_PARENT, process_group=0
    ) as process:
        stopping = threading.Event()

        def watch() -> None:
            code = process.wait()
            if not stopping.is_set():
                click.echo(f"flintmq: the broker ended by itself with exit code {code}", err=True)
                os.kill(os.getpid(), signal.SIGTERM)

        watcher = threading.Thread(target=watch, daemon=True)
        try:
            address = _address(process)
            watcher.start()
            yield address
        finally:
            stopping.set()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)


def _address(process: subprocess.Popen[str]) -> str:
    """Return the address of a broker that starts, and print its progress."""
    assert process.stdout is not None
    has_started = False
    for line in process.stdout:
        has_started = has_started or line.startswith(TITLE)
        if line.startswith(BANNER):
            return line.removeprefix(BANNER).strip()
        if not has_started or line.startswith(KERNELS):
            click.echo(line, nl=False, err=True)
    raise ConfigurationError(f"the broker did not start (exit code {process.wait()}); its reason is above")
