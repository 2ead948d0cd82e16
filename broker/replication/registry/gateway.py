"""Requests to etcd's HTTP/JSON gateway: the choice of an endpoint, the login, and the meaning of errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import (
    EndpointError,
    NotARegistry,
    OutcomeUnknown,
    RegistryCredentialsRejected,
    RegistryError,
    RegistryPermissionDenied,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsafeRegistry,
)
from .http_exchange import Endpoint, HttpExchange

RESPONSE_BYTES_MAX = 1 << 20
"""Maximum length of a response, and of a line of a stream."""
SAFE_VERSIONS = "3.4.22 or newer of 3.4, 3.5.6 or newer of 3.5, or 3.6"

_UNAUTHENTICATED = 16
_PERMISSION_DENIED = 7
_TOKEN_ERRORS = (b"invalid auth token", b"revision of auth store is old")
_LOGIN_ERRORS = ("authentication failed", "user name is empty", "authentication is not enabled", "password")


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for etcd."""

    user: str
    password: str = field(repr=False)


class _TokenExpired(Exception):
    """Etcd no longer knows the token; it did nothing."""


class EtcdGateway:
    """Sends requests to the endpoint that answered last, and to the next one if it fails."""

    def __init__(self, endpoints: Sequence[Endpoint], login: Login | None) -> None:
        self._endpoints = list(endpoints)
        self._login = login
        self._token: str | None = None
        self._safe: set[str] = set()
        """Endpoints whose version is known to be safe. One that fails leaves: its next start may be of another."""
        self._cluster: str | None = None
        """Etcd's id of the cluster that answered first."""

    async def call(self, path: str, body: dict[str, Any], limit_s: float, *, change: bool = False) -> dict[str, Any]:
        """Return etcd's response to a POST. Each endpoint has ``limit_s`` seconds. A ``change`` is sent only once:
        raise ``OutcomeUnknown`` if it was sent and no response says what became of it."""
        failures: list[EndpointError] = []
        # A copy: ``_put_last`` reorders the list meanwhile.
        attempts = list(self._endpoints)
        while attempts:
            endpoint = attempts.pop(0)
            # Outside the ``try``: whether it was sent must be known after a failure.
            exchange = HttpExchange(endpoint)
            try:
                async with asyncio.timeout(limit_s):
                    await self._prepare(endpoint)
                    return await self._post(exchange, path, body)
            except _TokenExpired:
                attempts.insert(0, endpoint)
                continue
            except TimeoutError:
                failure: EndpointError = RegistryUnreachable(f"{endpoint.url} did not answer within {limit_s:g} s")
            except EndpointError as error:
                failure = error
            self._put_last(endpoint)
            # It may have been applied, so no other endpoint gets it.
            if change and exchange.sent:
                raise OutcomeUnknown(str(failure)) from failure
            failures.append(failure)
        raise _combined(failures)

    async def stream(self, path: str, body: dict[str, Any], silence_s: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the lines of etcd's response to a POST to the endpoint that answered last. It ends after ``silence_s``
        seconds without one: only a request of its own shows whether a quiet connection still lives."""
        endpoint = self._endpoints[0]
        async with HttpExchange(endpoint) as exchange:
            line = bytearray()
            try:
                async with asyncio.timeout(silence_s):
                    await self._prepare(endpoint)
                    await self._request(exchange, path, body)
                while True:
                    async with asyncio.timeout(silence_s):
                        chunk = await exchange.chunk()
                    if not chunk:
                        raise RegistryUnreachable(f"{endpoint.url} ended the watch")
                    # Etcd writes one object a line, and a chunk may end anywhere.
                    *complete, rest = (bytes(line) + chunk).split(b"\n")
                    for each in complete:
                        yield _result(endpoint, each)
                    line[:] = rest
                    if len(line) > RESPONSE_BYTES_MAX:
                        raise NotARegistry(f"{endpoint.url} sent a line of more than {RESPONSE_BYTES_MAX:,} bytes")
            except TimeoutError:
                return
            except EndpointError:
                self._put_last(endpoint)
                raise

    def _put_last(self, endpoint: Endpoint) -> None:
        """Try the other endpoints first from now on."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)
        self._safe.discard(endpoint.url)

    async def _prepare(self, endpoint: Endpoint) -> None:
        """Check the version of the endpoint, and log in, unless this is done."""
        if endpoint.url not in self._safe:
            async with HttpExchange(endpoint) as exchange:
                await exchange.request("/version", None, {})
                found = _decoded(endpoint, await exchange.body(RESPONSE_BYTES_MAX)).get("etcdserver")
            if not isinstance(found, str):
                raise NotARegistry(f"{endpoint.url} is not etcd: its version is missing")
            if not is_safe_version(found):
                raise UnsafeRegistry(
                    f"{endpoint.url} runs etcd {found[:40]}, which may lose what it has acknowledged: "
                    f"use {SAFE_VERSIONS}"
                )
            self._safe.add(endpoint.url)
        if self._login is not None and self._token is None:
            login = {"name": self._login.user, "password": self._login.password}
            response = await self._post(HttpExchange(endpoint), "/v3/auth/authenticate", login)
            token = response.get("token")
            # It becomes a header, where a line break would begin another one.
            if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
                raise NotARegistry(f"{endpoint.url} answers a login with {str(token)[:40]!r}: a token is expected")
            self._token = token

    async def _post(self, exchange: HttpExchange, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a POST over a new connection."""
        async with exchange:
            await self._request(exchange, path, body)
            response = _decoded(exchange.endpoint, await exchange.body(RESPONSE_BYTES_MAX))
        self._check_cluster(exchange.endpoint, response.get("header"))
        return response

    def _check_cluster(self, endpoint: Endpoint, header: object) -> None:
        """Raise ``NotARegistry`` if the endpoint belongs to another cluster: two registries may name two primaries."""
        if isinstance(header, dict) and isinstance(cluster := header.get("cluster_id"), str):
            self._cluster = self._cluster or cluster
            if cluster != self._cluster:
                raise NotARegistry(f"{endpoint.url} belongs to another etcd cluster than the other endpoints")

    async def _request(self, exchange: HttpExchange, path: str, body: dict[str, Any]) -> None:
        """Send a POST; raise the error that the head of its response says."""
        # The bare token: etcd's gateway wants no scheme before it.
        headers = {} if self._token is None else {"Authorization": self._token}
        status = await exchange.request(path, json.dumps(body).encode(), headers)
        if status != 200:
            content = await exchange.body(RESPONSE_BYTES_MAX)
            # A token may have ended, or etcd may have started again without it. Nothing was done, so it is sent again.
            if self._token is not None and any(text in content for text in _TOKEN_ERRORS):
                self._token = None
                raise _TokenExpired
            raise _error(exchange.endpoint, status, content)


def is_safe_version(version: str) -> bool:
    """Return whether etcd of this version keeps what it answers.

    3.5.0 to 3.5.2 forget acknowledged changes of a member that is killed (etcd #13766), up to 3.5.5 and 3.4.21 members
    may differ after a defragmentation. Two members that differ could let two brokers lead, so a warning would not do.
    """
    match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?!\d)", version, re.ASCII)
    if match is None:
        return False
    major, minor, patch = map(int, match.groups())
    return (major, minor, patch) >= ((3, 5, 6) if minor == 5 and major == 3 else (3, 4, 22))


def _decoded(endpoint: Endpoint, content: bytes) -> dict[str, Any]:
    """Return the JSON object of a response."""
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise NotARegistry(f"{endpoint.url} is not etcd: it answers {content[:40]!r}")
    return decoded


def _result(endpoint: Endpoint, line: bytes) -> dict[str, Any]:
    """Return the result in a line of a stream."""
    decoded = _decoded(endpoint, line)
    if isinstance(decoded.get("result"), dict):
        return dict(decoded["result"])
    raise _error(endpoint, 500, line)


def _error(endpoint: Endpoint, status: int, content: bytes) -> RegistryError:
    """Return the error that a response or a line of a stream says."""
    try:
        error = _decoded(endpoint, content)
    except NotARegistry as not_json:
        return RegistryUnavailable(f"{endpoint.url} answers with HTTP status {status}") if status >= 500 else not_json
    if isinstance(error.get("error"), dict):  # in a stream
        error = error["error"]
    message = str(error.get("message") or error.get("error") or f"HTTP status {status}")
    code = error.get("code", error.get("grpc_code"))
    text = f"{endpoint.url} answers: {message}"
    if code == _PERMISSION_DENIED:
        return RegistryPermissionDenied(f"{text}. Grant the user readwrite on the prefix of the set")
    if code == _UNAUTHENTICATED or any(each in message for each in _LOGIN_ERRORS):
        return RegistryCredentialsRejected(f"{text}. Check user and password")
    # Only these say for certain that nothing was done: after any other, etcd may still apply a change.
    if status in (400, 401, 403, 404, 412, 429):
        return RegistryRefused(text)
    return RegistryUnavailable(text)


def _combined(failures: Sequence[EndpointError]) -> EndpointError:
    """Return one error for those of all endpoints, of the type that a person must act on, if there is one."""
    waiting = (RegistryUnreachable, RegistryUnavailable)
    worst = next((each for each in failures if not isinstance(each, waiting)), failures[-1])
    return type(worst)("; ".join(str(each) for each in failures))
