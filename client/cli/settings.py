"""Settings of every command: broker, access, timeout and output."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...protocol.display import JSON, PLAIN, TABLE
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
COMMON = (
    "broker",
    "context",
    "timeout",
    "mode",
    "quiet",
    "user",
    "password_file",
    "tls",
    "tls_ca",
    "tls_certificate",
    "tls_key",
)
"""Names of the common options, which are those of ``BrokerChoice``."""


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
    """Predicate: may the command prompt for a password?"""

    @cached_property
    def output(self) -> Output:
        """Output in the mode of the option or the context; else a table on a terminal, and plain elsewhere."""
        mode = self.mode or str(self.context_options.get("output") or "")
        return Output(mode or (TABLE if sys.stdout.isatty() else PLAIN), sys.stdout)

    @property
    def seconds(self) -> float:
        """Seconds to wait for a response."""
        return self.timeout or float(self.context_options.get("timeout") or TIMEOUT_SECONDS)

    @property
    def is_json(self) -> bool:
        """Predicate: is the output JSON?"""
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
        """Access options from the command line, else from ``FLINTMQ_USER``, ``FLINTMQ_PASSWORD`` and so on.

        Raises ``ConfigurationError`` if there is a user and no password.
        """
        from .access import access_options

        return access_options(self)

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
