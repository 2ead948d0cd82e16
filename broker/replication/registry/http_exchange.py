"""One HTTP/1.1 request and its response, on a connection of its own, with bounded memory.

A connection for each request: there are about two requests a second, a handshake takes a millisecond or two, and a
kept connection that the server has just closed would make the outcome of a change unknown for nothing.

h11 parses the protocol. It depends on nothing, and asyncio does the rest: httpx would bring six packages, and would
not say whether a request had left when it failed.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from .errors import EndpointError, NotARegistry, RegistryCredentialsRejected, RegistryUnreachable

try:
    import h11
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("a broker of a replica set needs h11: pip install 'flintmq[replication]'") from error

HEADER_BYTES_MAX = 16 * 1024
READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a server, and how to reach it."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    """TLS settings, for ``https``."""

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext) -> Endpoint:
        """Return the endpoint of a URL like ``https://host:2379``. Raise ``ValueError`` if it is no such URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
            raise ValueError(f"expected an endpoint like https://host:2379, got {url!r}")
        return cls(url.rstrip("/"), parts.hostname, parts.port or 2379, tls if parts.scheme == "https" else None)


class HttpExchange:
    """A request and its response. Use it as a context; leaving it closes the connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.sent = False
        """True if a byte of the request may have left."""

    async def __aenter__(self) -> Self:
        endpoint = self.endpoint
        try:
            self._reader, self._writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=endpoint.tls)
        except OSError as error:
            raise self._failed(error) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # a goodbye over TLS would wait for a server that may be silent

    async def request(self, target: str, body: bytes | None, headers: dict[str, str]) -> int:
        """Send a POST, or a GET if there is no body, and return the status of the response."""
        assert self._writer is not None
        head = [("Host", f"{self.endpoint.host}:{self.endpoint.port}"), ("Connection", "close"), *headers.items()]
        if body is not None:
            head += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="GET" if body is None else "POST", target=target, headers=head)
        parts = [
            self._http.send(request),
            self._http.send(h11.Data(data=body or b"")),
            self._http.send(h11.EndOfMessage()),
        ]
        # Before the write, because some bytes may have left although it fails.
        self.sent = True
        try:
            self._writer.write(b"".join(part for part in parts if part))
            await self._writer.drain()
        except OSError as error:
            raise self._failed(error) from error
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        assert isinstance(event, h11.Response)
        return event.status_code

    async def chunk(self) -> bytes:
        """Return the next piece of the response's body, empty at its end."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def body(self, limit: int) -> bytes:
        """Return the whole body. Raise ``NotARegistry`` if it is longer than ``limit`` bytes."""
        collected = bytearray()
        while chunk := await self.chunk():
            collected += chunk
            if len(collected) > limit:
                raise NotARegistry(f"{self.endpoint.url} sent a response of more than {limit:,} bytes")
        return bytes(collected)

    async def _event(self) -> h11.Event:
        """Return the next event of the response."""
        assert self._reader is not None
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(READ_BYTES))
                    continue
                if isinstance(event, h11.Event) and not isinstance(event, h11.ConnectionClosed):
                    return event
                raise RegistryUnreachable(f"{self.endpoint.url} closed the connection before the end of its response")
        except h11.RemoteProtocolError as error:
            # h11 reports a connection that ends in the middle of a response as an error of the protocol, too.
            if self._http.their_state is h11.ERROR and self._reader.at_eof():
                raise RegistryUnreachable(
                    f"{self.endpoint.url} closed the connection before the end of its response"
                ) from error
            raise NotARegistry(f"{self.endpoint.url} does not speak HTTP ({error})") from error
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> EndpointError | RegistryCredentialsRejected:
        """Return the error for one of the connection."""
        url = self.endpoint.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return RegistryUnreachable(f"the certificate of {url} cannot be trusted: {error.verify_message}")
        if isinstance(error, ssl.SSLError):
            if "ALERT" in (error.reason or "").upper():
                return RegistryCredentialsRejected(f"{url} refuses this broker's certificate ({error.reason})")
            return RegistryUnreachable(f"{url} does not speak TLS ({error.reason})")
        return RegistryUnreachable(f"{url} cannot be reached: {error.strerror or str(error) or type(error).__name__}")
