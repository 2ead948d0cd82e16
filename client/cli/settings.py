"""What every command is told: which broker, how long to wait, how to print."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .output import JSON, PLAIN, TABLE, Output

if TYPE_CHECKING:
    from ...protocol.commands import HelloAnswer
    from ..core.access import AccessOptions
    from ..core.outgoing import Flush
    from ..sync.admin import Admin
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer
    from .contexts import Options

DEFAULT_BROKER = "127.0.0.1:10911"
TIMEOUT_SECONDS = 10.0
REACH_SECONDS_MAX = 5.0
"""How long a broker may take to answer HELLO before it counts as not there."""


@dataclass
class Settings:
    """The common options as they were given; None: not given. Says where the broker is and opens clients.

    Opening one connects once, without trying again: a broker that is not there is said at once.
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
    """Whether somebody can be asked for a password."""

    @cached_property
    def output(self) -> Output:
        """How to print: as told, as the context says, else a table on a terminal, and plain elsewhere."""
        mode = self.mode or str(self.context_options.get("output") or "")
        return Output(mode or (TABLE if sys.stdout.isatty() else PLAIN), sys.stdout)

    @property
    def seconds(self) -> float:
        """How long to wait for an answer."""
        return self.timeout or float(self.context_options.get("timeout") or TIMEOUT_SECONDS)

    @property
    def is_json(self) -> bool:
        """Whether JSON was asked for."""
        return self.output.mode == JSON

    @cached_property
    def addresses(self) -> str:
        """Where the broker is: ``--broker``, ``--context``, ``FLINTMQ_BROKER``, the context in use, or loopback.

        Raises ``ConfigurationError`` for a context that is not there, ``InvalidArgument`` for what is no address.
        """
        from ..core.address import parse_addresses

        return ",".join(str(address) for address in parse_addresses(self._place[0]))

    @property
    def context_options(self) -> Options:
        """What the context says beside its broker's address; nothing if the address is not the context's: who a user is
        at one broker is not for another."""
        return self._place[1]

    @cached_property
    def _place(self) -> tuple[str, Options]:
        """The address(es) as they were given, and what their context says."""
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
        """How to get in: from the options, else from ``FLINTMQ_USER``, ``FLINTMQ_PASSWORD`` and so on.

        Raises ``ConfigurationError`` for a password that is nowhere.
        """
        from .access import access_options

        return access_options(self)

    @cached_property
    def hello(self) -> HelloAnswer:
        """What the broker says of itself, asked for by connecting once. Raises ``ConnectionFailed``."""
        from ..connection_log import ConnectionLog
        from ..core.access import access_of
        from ..core.address import parse_addresses
        from ..sync.pool import Dialer

        dialer = Dialer(parse_addresses(self.addresses), access_of(**self.access), ConnectionLog("flintmq"))
        connection = dialer.dial(min(self.seconds, REACH_SECONDS_MAX))
        try:
            return connection.limits
        finally:
            connection.close()

    def admin(self) -> Admin:
        """An admin of the broker, which was reached."""
        from ..sync.admin import Admin

        _ = self.hello
        return Admin(self.addresses, timeout=self.seconds, **self.access)

    def consumer(self) -> Consumer:
        """A consumer of the broker, which was reached."""
        from ..sync.consumer import Consumer

        _ = self.hello
        return Consumer(self.addresses, timeout=self.seconds, **self.access)

    def producer(self, flush: Flush | None = None) -> Producer:
        """A producer of the broker, which was reached."""
        from ..sync.producer import Producer

        _ = self.hello
        return Producer(self.addresses, delivery_timeout=self.seconds, flush=flush, **self.access)
