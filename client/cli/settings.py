"""Settings of every command: broker, access, timeout and output.

A password is never an argument: other users of the machine could see it in the process list.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...protocol.display import JSON, PLAIN, TABLE
from ...protocol.errors import ConfigurationError
from ...protocol.text_files import first_line
from .output import Output

if TYPE_CHECKING:
    from ...protocol.commands import HelloAnswer
    from ..core.produce.packer import Flush
    from ..core.rpc.access import AccessOptions
    from ..sync.admin import Admin
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer
    from .contexts import Options

DEFAULT_BROKER = "127.0.0.1:10911"
TIMEOUT_SECONDS = 10.0
REACH_SECONDS_MAX = 5.0
"""Maximum seconds to wait for the response to HELLO before the broker counts as unreachable."""
PASSWORD_VARIABLE = "FLINTMQ_PASSWORD"  # noqa: S105 - a name
STDIN = "-"


def is_interactive() -> bool:
    """Return whether the command can prompt the user: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def given_password(file: str | None) -> str:
    """Return the first line of ``file``, else the value of ``FLINTMQ_PASSWORD``, else an empty string.

    Raises ``ConfigurationError`` if the file cannot be read or its first line is empty.
    """
    if not file:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        password = first_line(sys.stdin.buffer.readline() if file == STDIN else Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the password from {file!r}: {error}") from None
    if not password:
        raise ConfigurationError(f"the first line of {file!r} is empty; expected the password")
    return password


def _is_on(variable: str) -> bool:
    value = os.environ.get(variable, "").strip().lower()
    if value in ("", "0", "no", "off", "false"):
        return False
    if value in ("1", "yes", "on", "true"):
        return True
    raise ConfigurationError(f"{variable} must be 1 or 0, got {value!r}")


@dataclass
class BrokerChoice:
    """The common options; None: not given. Finds the broker's address and opens clients.

    Before opening a client, it connects without retries, so that an unreachable broker is reported at once.
    """

    broker: str | None = None
    context: str | None = None
    timeout: float | None = None
    mode: str | None = None
    quiet: bool = False
    user: str | None = None
    password_file: str | None = None
    tls: bool | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    may_ask: bool = True
    """False: fail instead of asking for a password, as completion must."""

    @cached_property
    def output(self) -> Output:
        """Output in the mode of the option or the context; else a table on a terminal, and plain elsewhere."""
        mode = self.mode or str(self.context_options.get("output") or "")
        return Output(mode or (TABLE if sys.stdout.isatty() else PLAIN), sys.stdout)

    @property
    def seconds(self) -> float:
        return self.timeout or float(self.context_options.get("timeout") or TIMEOUT_SECONDS)

    @property
    def is_json(self) -> bool:
        return self.output.mode == JSON

    @cached_property
    def addresses(self) -> str:
        """Address(es) from ``--broker``, ``--context``, ``FLINTMQ_BROKER``, the context in use, or the default.

        Raises ``ConfigurationError`` for an unknown context, and ``InvalidArgument`` for an invalid address.
        """
        from ..core.rpc.address import parse_addresses

        return ",".join(str(address) for address in parse_addresses(self._place[0]))

    @property
    def context_options(self) -> Options:
        """Other options of the context; empty if the address does not come from it, because the user and password for
        one broker must not be sent to another."""
        return self._place[1]

    @cached_property
    def _place(self) -> tuple[str, Options]:
        """Address(es) as given, and the other options of their context."""
        from .contexts import Contexts

        if self.broker:
            return self.broker, {}
        variable = os.environ.get("FLINTMQ_BROKER", "")
        if variable and not self.context:
            return variable, {}
        contexts = Contexts.load()
        name = self.context or contexts.current
        return (contexts.broker_of(name), contexts.options.get(name, {})) if name else (DEFAULT_BROKER, {})

    @cached_property
    def access(self) -> AccessOptions:
        """Access options from the command line, else from ``FLINTMQ_USER``, ``FLINTMQ_PASSWORD`` and so on. Prompts for
        the password on a terminal.

        Raises ``ConfigurationError`` if there is a user and no password.
        """
        options = self.tls_options
        user = self._chosen("user")
        if user:
            file = self.password_file
            if not file and user == self.context_options.get("user"):
                file = str(self.context_options.get("password_file") or "")
            options["user"] = user
            options["password"] = given_password(file) or self._ask(user)
        elif self.password_file:
            raise ConfigurationError("--password-file needs a user: pass --user or set FLINTMQ_USER")
        return options

    @property
    def tls_options(self) -> AccessOptions:
        """The access options without user and password."""
        options: AccessOptions = {}
        ca, certificate, key = map(self._chosen, ("tls_ca", "tls_certificate", "tls_key"))
        if ca:
            options["tls"] = ca
        elif self.tls or certificate or _is_on("FLINTMQ_TLS") or self.context_options.get("tls"):
            options["tls"] = True
        if certificate:
            options["tls_certificate"] = certificate
        if key:
            options["tls_key"] = key
        return options

    def _chosen(self, name: str) -> str:
        """Return the option; else the value of the ``--context`` context, the variable, or the context in use."""
        said = str(self.context_options.get(name) or "")
        variable = os.environ.get(f"FLINTMQ_{name.upper()}", "")
        return getattr(self, name) or (said if self.context else "") or variable or said

    def _ask(self, user: str) -> str:
        if not self.may_ask or not is_interactive():
            raise ConfigurationError(
                f"user {user!r} needs a password: set {PASSWORD_VARIABLE}, or pass --password-file FILE"
            )
        password: str = click.prompt(f"password for {user}", hide_input=True, err=True)
        return password

    @cached_property
    def hello(self) -> HelloAnswer:
        """The broker's response to HELLO, from a single connection attempt, or from several while a replica set elects
        its primary. Raises ``ConnectionFailed``."""
        from ...protocol.errors import ConnectionFailed, NotPrimary
        from ..core.rpc.access import access_of
        from ..core.rpc.address import parse_addresses
        from ..core.rpc.operation import Retries
        from ..endpoint import ConnectionLog
        from ..sync.rpc import Dialer

        dialer = Dialer(parse_addresses(self.addresses), access_of(**self.access), ConnectionLog("flintmq"))
        deadline = time.monotonic() + min(self.seconds, REACH_SECONDS_MAX)
        retries = Retries(deadline)
        while True:
            try:
                connection = dialer.dial(deadline - time.monotonic())
                break
            except ConnectionFailed as error:
                # Only a set without a primary is waited for: any other failure is reported at once.
                pause = retries.pause(error, time.monotonic()) if isinstance(error.__cause__, NotPrimary) else None
                if pause is None:
                    raise
            time.sleep(pause)
        connection.close()
        return connection.limits

    def admin(self) -> Admin:
        """Return an admin client, after checking that the broker is reachable."""
        from ..sync.admin import Admin

        _ = self.hello
        return Admin(self.addresses, timeout=self.seconds, **self.access)

    def consumer(self) -> Consumer:
        """Return a consumer, after checking that the broker is reachable."""
        from ..sync.consumer import Consumer

        _ = self.hello
        return Consumer(self.addresses, timeout=self.seconds, **self.access)

    def producer(self, flush: Flush | None = None) -> Producer:
        """Return a producer, after checking that the broker is reachable."""
        from ..sync.producer import Producer

        _ = self.hello
        return Producer(self.addresses, delivery_timeout=self.seconds, flush=flush, **self.access)


COMMON = tuple(each.name for each in fields(BrokerChoice) if each.name != "may_ask")
"""Names of the common options."""
