"""Rules that hold for every request: its host, its origin, and the headers of every response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocol.names import AllowedHosts
from .options import ConsoleOptions

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
