"""Access to the console: its options, the rules for each request's host and origin, and security headers."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocol.errors import ConfigurationError
from ...protocol.names import AllowedHosts
from ..core.rpc.access import AccessOptions


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Settings of one console.

    ``broker``: address(es) of the broker; ``tls``: access options of the broker connection without user and password,
    which each person types. ``host``, ``port``: the address to listen on; ``certificate``, ``key``: PEM files, for
    HTTPS; ``behind_proxy``: a proxy on this machine ends TLS and sets ``X-Forwarded-For``; ``hosts``: further names by
    which browsers may address the console; ``read_only``: refuse every change; ``no_bodies``: show only sizes of
    bodies; ``insecure``: allow a broker without users beyond loopback.
    """

    broker: str
    tls: AccessOptions
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    hosts: tuple[str, ...] = ()
    read_only: bool = False
    no_bodies: bool = False
    insecure: bool = False

    @property
    def is_encrypted(self) -> bool:
        """Predicate: do browsers reach the console by HTTPS?"""
        return self.certificate is not None or self.behind_proxy

    def check(self) -> None:
        """Raise ``ConfigurationError`` if the console would be reachable from other machines without TLS."""
        if self.key is not None and self.certificate is None:
            raise ConfigurationError("--https-key was given without --https-certificate; pass both")
        for name, path in (("--https-certificate", self.certificate), ("--https-key", self.key)):
            if path is not None and not path.is_file():
                raise ConfigurationError(f"{name}: there is no file {str(path)!r}")
        if not is_loopback(self.host) and not self.is_encrypted:
            raise ConfigurationError(
                f"the console would send passwords in clear text to other machines on {self.host}; pass "
                "--https-certificate FILE and --https-key FILE, or --behind-proxy if a proxy ends TLS, or listen on "
                "127.0.0.1"
            )

    @property
    def is_exposed(self) -> bool:
        return self.behind_proxy or not is_loopback(self.host)

    def check_access(self) -> None:
        """Raise ``ConfigurationError`` if other machines could use the console of a broker without users."""
        if self.is_exposed and not self.insecure:
            raise ConfigurationError(
                f"the broker {self.broker} has no users, so the console would give every visitor all rights; turn on "
                "the broker's authentication, listen on 127.0.0.1 without --behind-proxy, or pass --insecure"
            )


def is_loopback(host: str) -> bool:
    """Return whether every address of ``host`` is reachable only from this machine."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # a name that cannot be resolved now may turn out not to be loopback
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


SAFE_METHODS = frozenset({"GET", "HEAD"})
NONCE = "csp_nonce"
"""Name of the nonce in a request's state."""


def content_security_policy(nonce: str) -> str:
    """Return the policy of every page: own files only, no inline code, no frame, and no script that makes HTML out of
    strings, except htmx; the console's own loads htmx."""
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx flintmq"
    )


COMMON_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityPolicy:
    """ASGI middleware that refuses requests for a foreign host and changes from a foreign origin, and sets the security
    headers."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions) -> None:
        self._app = app
        self._options = options
        self._hosts = AllowedHosts((options.host, *options.hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it in plain text."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})[NONCE] = nonce
        refusal = self.refusal(scope, headers)
        sender = _with_headers(send, nonce, self._options.is_encrypted)
        if refusal:
            await _refuse(sender, *refusal)
            return
        await self._app(scope, receive, sender)

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return status and reason if the request must not be served."""
        host = headers.get("host", "")
        local = (scope.get("server") or ("", 0))[0]
        if not self._options.behind_proxy and not self._hosts.allows(host, local):
            return 421, (
                f"{host[:100]!a} is not a name of this console; to allow it, start the console with --host-name NAME"
            )
        if self._options.behind_proxy and self._options.hosts and not self._hosts.allows(host, local):
            return 421, f"{host[:100]!a} is not one of the names that --host-name allows"
        if scope["method"] in SAFE_METHODS:
            return None
        scheme = "https" if self._options.is_encrypted else "http"
        return origin_refusal(headers, f"{scheme}://{host}")


def origin_refusal(headers: Mapping[str, str], own_origin: str) -> tuple[int, str] | None:
    """Return status and reason if a change may come from another site.

    Browsers set ``Sec-Fetch-Site`` and no script can; over plain HTTP to a name they leave it out, and ``Origin``
    decides. A request with neither is refused if it has a cookie, because then it is a browser's.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        allowed = site == "same-origin"
    elif origin is not None:
        allowed = origin.lower() == own_origin.lower()
    else:
        allowed = "cookie" not in headers
    return None if allowed else (403, "this change was requested by another site; open the console and do it there")


def _with_headers(send: Send, nonce: str, is_encrypted: bool) -> Send:
    """Return a ``send`` that adds the security headers to a response."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            added = {**COMMON_HEADERS, "content-security-policy": content_security_policy(nonce)}
            added["cache-control"] = "no-store"
            if is_encrypted:
                added["strict-transport-security"] = "max-age=31536000"
            # Headers of the response itself, such as those of a download, take precedence.
            extra = [(name.encode(), value.encode()) for name, value in added.items() if name.encode() not in present]
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return with_headers


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = f"{reason}\n".encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def nonce_of(request: Request) -> str:
    """Return the nonce that the page's scripts carry."""
    return str(getattr(request.state, NONCE))
