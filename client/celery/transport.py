"""The transport: its URL, its connection, and how a worker waits for messages."""

from __future__ import annotations

import os
import re
import time
from typing import Any
from urllib.parse import unquote

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import flintmq
from flintmq.client import BrokerError, InvalidArgument, InvalidMessage

from .channel import Channel
from .clients import CONNECTION_ERRORS, ClientPool
from .envelope import Arrivals
from .readers import Binding

DEFAULT_PORT = 10911
_ACCESS_OPTIONS = ("user", "password", "tls", "tls_certificate", "tls_key", "client_name")
_SSL_OPTIONS = {"ca_certs": "tls", "certfile": "tls_certificate", "keyfile": "tls_key"}
"""Keys of Celery's ``broker_use_ssl``, and the options of FlintMQ's clients that they stand for."""


class Transport(virtual.Transport):
    """kombu's transport for ``flintmq://[user:password@]host[:port][,host[:port]…]//``.

    Several addresses are those of a replica set. Transport options: those of ``Channel``, and the access options of
    FlintMQ's clients (``user``, ``password``, ``tls``, ``tls_certificate``, ``tls_key``, ``client_name``).
    """

    Channel = Channel
    can_parse_url = True
    default_port = DEFAULT_PORT
    driver_type = driver_name = "flintmq"
    polling_interval = None
    connection_errors = recoverable_connection_errors = CONNECTION_ERRORS
    channel_errors = (ChannelError, BrokerError, InvalidMessage)
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    tls = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.arrivals = Arrivals()
        self.local_queues: dict[str, list[Binding]] = {}
        """Queues that belong to this connection alone, with their bindings."""
        self.undecided: set[str] = set()
        """Queues that were declared, and of which the first binding decides whether they are local."""
        self.known_topics: set[str] = set()
        """Topics that exist."""
        self.clients = self._client_pool()
        self._pid = os.getpid()
        self._loop: Any = None

    def _client_pool(self) -> ClientPool:
        url = self.client.hostname or "flintmq://"
        scheme, _, address = (url if "://" in url else f"flintmq://{url}").partition("://")
        # A password may contain any character, also those that end the host: only the last "@" is before it.
        credentials, _, address = address.rpartition("@")
        hosts, _, rest = address.partition("/")
        rest = rest.strip("/")
        if rest:
            raise InvalidArgument(
                f"the broker URL ends with {rest!r}, but FlintMQ has no virtual hosts and takes no options there: end "
                "it after the address, and pass options as broker_transport_options"
            )
        user, _, password = (unquote(part) for part in credentials.partition(":"))
        access: dict[str, Any] = {}
        if user := user or self.client.userid:
            access["user"], access["password"] = user, password or self.client.password
            # What Celery shows of its connection has this address, and never the password.
            self.client.hostname = f"{scheme}://{address}"
            self.client.userid, self.client.password = access["user"], access["password"]
        access |= self._tls_options()
        options = self.client.transport_options
        access |= {name: options[name] for name in _ACCESS_OPTIONS if name in options}
        return ClientPool(with_ports(hosts), access, self.client.connect_timeout or 5)

    def _tls_options(self) -> dict[str, Any]:
        given = self.client.ssl
        options: dict[str, Any] = {"tls": True} if self.tls or given else {}
        if isinstance(given, dict):
            for name, value in given.items():
                if name not in _SSL_OPTIONS:
                    raise InvalidArgument(
                        f"broker_use_ssl has {name!r}; FlintMQ's client takes {', '.join(_SSL_OPTIONS)}, or an "
                        "ssl.SSLContext as broker_transport_options['tls']"
                    )
                options[_SSL_OPTIONS[name]] = value
        return options

    def driver_version(self) -> str:
        return str(flintmq.__version__)

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for display, without the password."""
        uri = uri if include_password else re.sub(r"//([^:@/]*):.*@", rf"//\1:{mask}@", uri, flags=re.S)
        return uri if "://" in uri else f"flintmq://{uri}"

    # ---- the connection

    def establish_connection(self) -> Transport:
        """Return the connection, which is this transport, after the broker has answered."""
        self.clients.admin.whoami()
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        self.unregister_from_event_loop(connection, self._loop)
        self.arrivals.close()
        self.clients.close()

    def _collect(self, connection: Transport | None) -> None:
        """Drop a connection after an error, or the parent's connection after a fork."""
        if connection is not None and os.getpid() == self._pid:
            self.close_connection(connection)

    # ---- messages

    def drain_events(self, connection: Transport, timeout: float | None = None, **kwargs: Any) -> None:
        """Wait for a message and hand it over. Raises ``TimeoutError`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (arrival := self.arrivals.take(deadline)) is not None:
            if arrival():
                return
        raise TimeoutError(f"no message within {timeout} s")

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Have a worker's event loop hand over what arrives."""
        self._loop = loop
        loop.add_reader(self.arrivals.watch(), self._turn)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        """Undo ``register_with_event_loop``."""
        if self._loop is not None:
            self._loop.remove_reader(self.arrivals.watch())
            self._loop = None

    def _turn(self) -> None:
        for _ in range(self.arrivals.turn()):
            arrival = self.arrivals.take(0.0)
            if arrival is not None:
                arrival()


class SecureTransport(Transport):
    """The transport with TLS, ``flintmqs://``. The CAs are the machine's, unless ``broker_use_ssl`` names one."""

    tls = True


def with_ports(hosts: str) -> str | None:
    """Return the addresses of a URL, each with its port, or None."""
    if not hosts:
        return None
    return ",".join(host if re.search(r":\d+$", host) else f"{host}:{DEFAULT_PORT}" for host in hosts.split(","))
