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
    from ..sync.admin import Admin
    from ..sync.consumer import Consumer
    from ..sync.producer import Producer

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
    timeout: float = TIMEOUT_SECONDS
    mode: str | None = None
    quiet: bool = False
    user: str | None = None
    password_file: str | None = None
    tls: bool | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    @cached_property
    def output(self) -> Output:
        """How to print: a table on a terminal, plain elsewhere, unless told otherwise."""
        return Output(self.mode or (TABLE if sys.stdout.isatty() else PLAIN), sys.stdout)

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
        from .contexts import Contexts

        addresses = self.broker
        if not addresses and self.context:
            addresses = Contexts.load().broker_of(self.context)
        if not addresses:
            addresses = os.environ.get("FLINTMQ_BROKER", "")
        if not addresses:
            contexts = Contexts.load()
            addresses = contexts.broker_of(contexts.current) if contexts.current else DEFAULT_BROKER
        return ",".join(str(address) for address in parse_addresses(addresses))

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
        from ..core.access import access_of
        from ..core.address import parse_addresses
        from ..sync.pool import Dialer

        dialer = Dialer(parse_addresses(self.addresses), access_of(**self.access))
        connection = dialer.dial(min(self.timeout, REACH_SECONDS_MAX))
        try:
            return connection.limits
        finally:
            connection.close()

    def admin(self) -> Admin:
        """An admin of the broker, which was reached."""
        from ..sync.admin import Admin

        _ = self.hello
        return Admin(self.addresses, timeout=self.timeout, **self.access)

    def consumer(self) -> Consumer:
        """A consumer of the broker, which was reached."""
        from ..sync.consumer import Consumer

        _ = self.hello
        return Consumer(self.addresses, timeout=self.timeout, **self.access)

    def producer(self, flush: str | None = None) -> Producer:
        """A producer of the broker, which was reached."""
        from ..sync.producer import Producer

        _ = self.hello
        return Producer(self.addresses, delivery_timeout=self.timeout, flush=flush, **self.access)
