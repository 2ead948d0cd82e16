"""The registry in etcd: two keys for each set below ``/flintmq/CLUSTER/SET/``.

``config`` holds the configuration; its version is the key's mod_revision. ``lead`` holds the id of the member that has
the lease, and etcd deletes it when the lease ends. 64-bit numbers are strings in etcd's JSON, which leaves out fields
that are false, 0 or empty.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from ....protocol.text_files import first_line
from ..core.configuration import Proposal, ProposalOutcome, RegistryState
from .interface import (
    EndpointError,
    LeaseAnswer,
    MalformedRegistry,
    NotARegistry,
    OutcomeUnknown,
    ProposalAnswer,
    RegistryCredentialsRejected,
    RegistryError,
    RegistryPermissionDenied,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnreachable,
    RegistryView,
    UnsafeRegistry,
    decode_config,
    encode_config,
)

# ---- One HTTP/1.1 request and its response, on a connection of its own, with bounded memory.
#
# A connection for each request: there are about two requests a second, a handshake takes a millisecond or
# two, and a kept connection that the server has just closed would make the outcome of a change unknown for
# nothing.
#
# h11 parses the protocol. It depends on nothing, and asyncio does the rest: httpx would bring six packages,
# and would not say whether a request had left when it failed.

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


# ---- Requests to etcd's HTTP/JSON gateway: the choice of an endpoint, the login, and the meaning of errors.

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
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise NotARegistry(f"{endpoint.url} is not etcd: it answers {content[:40]!r}")
    return decoded


def _result(endpoint: Endpoint, line: bytes) -> dict[str, Any]:
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


logger = logging.getLogger(__name__)

READ_LIMIT_S = 1.0
"""Time within which one endpoint must answer a read, or a request that may be repeated."""
CHANGE_LIMIT_S = 2.0
TAKE_ATTEMPTS = 3
"""Maximum number of attempts to take the lease while the configuration changes beside it."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0
"""Pause of a watch after a failure; it doubles with each one."""


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Settings of a registry in etcd."""

    endpoints: tuple[str, ...]
    """URLs of etcd's members, ``http://host:2379`` or ``https://…``."""
    cluster: str
    replica_set: str
    lease_s: int = 5
    """Time after which a lease that is not renewed ends. Etcd counts whole seconds."""
    silence_s: float = 2.0
    """Time without news after which a watch asks again, in case the connection broke silently."""
    ca_file: str | None = None
    """CA of etcd's certificates; without it, the CAs of the system."""
    certificate_file: str | None = None
    """This broker's certificate, with ``key_file``."""
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context

    def login(self) -> Login | None:
        """Return user and password, None without a user."""
        if self.user is None:
            return None
        if self.password_file is None:
            raise ValueError("a user of etcd needs a password file")
        return Login(self.user, first_line(Path(self.password_file).read_bytes()))

    def prefix(self) -> str:
        for name in (self.cluster, self.replica_set):
            if not name or "/" in name:
                raise ValueError(f"the name of a cluster or a set must not be empty or contain '/', got {name!r}")
        return f"/flintmq/{self.cluster}/{self.replica_set}/"


@dataclass(frozen=True, slots=True)
class _Read:
    """The two keys at one moment."""

    view: RegistryView
    revision: int
    """Etcd's revision at that moment."""
    lead_lease: int
    """Etcd's number of the lease that is held; 0 if the set is vacant."""


@dataclass(slots=True)
class _Lease:
    """The lease that this member was granted, whether it holds the key or not."""

    number: int
    member: str
    epoch: int


class EtcdRegistry:
    """The configuration and the lease of one set in etcd; see ``interface.Registry`` for what each verb promises."""

    def __init__(self, settings: EtcdSettings) -> None:
        tls, prefix = settings.tls(), settings.prefix().encode()
        if not settings.endpoints:
            raise ValueError("a registry in etcd needs an endpoint")
        self._settings = settings
        self._gateway = EtcdGateway([Endpoint.parse(url, tls) for url in settings.endpoints], settings.login())
        self._config_key, self._lead_key = _base64(prefix + b"config"), _base64(prefix + b"lead")
        self._prefix, self._prefix_end = _base64(prefix), _base64(prefix[:-1] + b"0")  # "0" follows "/"
        self._both = [{"request_range": {"key": self._config_key}}, {"request_range": {"key": self._lead_key}}]
        self._lease: _Lease | None = None
        self._last_failure = ""

    def _log_failure(self, action: str, error: Exception) -> None:
        """Log a failure that is tried again, once for an outage."""
        if self._last_failure != type(error).__name__:
            self._last_failure = type(error).__name__
            logger.warning("cannot %s the registry, will try again: %s", action, error)

    # ---- configuration ----

    async def read(self) -> RegistryView:
        """Return configuration and holder of the lease as of one moment after the call."""
        return (await self._read()).view

    async def _read(self) -> _Read:
        # One transaction, so that configuration and holder belong together; etcd reads linearizably in it.
        return self._decoded(await self._gateway.call("/v3/kv/txn", {"success": self._both}, READ_LIMIT_S))

    async def propose(self, proposal: Proposal, addresses: Mapping[str, str]) -> ProposalAnswer:
        """Replace the configuration if its version is the proposal's."""
        compare = [_compare(self._config_key, proposal.if_version)]
        if proposal.if_vacant:
            compare.append(_compare(self._lead_key, 0))
        value = _base64(encode_config(proposal.config, addresses))
        put = {"request_put": {"key": self._config_key, "value": value}}
        try:
            version = await self._change({"compare": compare, "success": [put]})
        except OutcomeUnknown as error:
            return ProposalAnswer(ProposalOutcome.UNKNOWN, reason=str(error))
        return ProposalAnswer(ProposalOutcome.DONE if version else ProposalOutcome.LOST, version)

    async def _change(self, transaction: dict[str, Any]) -> int:
        """Send a transaction that writes; return the revision that it made, 0 if a compare failed."""
        response = await self._gateway.call("/v3/kv/txn", transaction, CHANGE_LIMIT_S, change=True)
        try:
            revision = int(response["header"]["revision"])
        except (KeyError, TypeError, ValueError) as error:
            raise OutcomeUnknown("the response has no revision") from error
        return revision if response.get("succeeded") is True else 0

    # ---- lease ----

    async def hold_lease(self, member: str, epoch: int) -> LeaseAnswer:
        """Take or renew the lease, if the configuration names the member and the epoch."""
        if self._lease is not None and (self._lease.member, self._lease.epoch) != (member, epoch):
            await self.release_lease()
        try:
            if self._lease is not None:
                await self._renew(self._lease)
            answer = await self._take(member, epoch)
        # Other errors are for a person, and are raised.
        except (EndpointError, OutcomeUnknown) as error:
            self._log_failure("hold the lease in", error)
            return LeaseAnswer.UNKNOWN
        self._last_failure = ""
        return answer

    async def _renew(self, lease: _Lease) -> None:
        """Renew the lease; forget it if it has ended."""
        # Unlike a change, a renewal may be sent more than once: renewing twice does no harm.
        response = await self._gateway.call("/v3/lease/keepalive", {"ID": str(lease.number)}, READ_LIMIT_S)
        result = response.get("result")
        if not isinstance(result, dict):
            raise NotARegistry(f"unexpected response to a renewal: {str(response)[:100]}")
        # Etcd does not refuse to renew a lease that has ended: it answers without a time.
        if _number(result, "TTL") <= 0:
            self._lease = None

    async def _take(self, member: str, epoch: int) -> LeaseAnswer:
        """Put this member's id into the key of the lease, unless it is there with this lease already.

        It reads the key after the renewal: if this member holds it now, it does so for a whole lease, counted from
        before the renewal. The put replaces the id of another member and moves the key to the new lease: that member
        led an earlier epoch, and will be refused. Otherwise every takeover or switch would wait for the end of a lease.
        """
        for _ in range(TAKE_ATTEMPTS):
            read = await self._read()
            config = read.view.state.config
            if config is None or (config.primary, config.epoch) != (member, epoch):
                return LeaseAnswer.REFUSED
            if self._lease is None:
                self._lease = _Lease(await self._grant(), member, epoch)
            elif read.lead_lease == self._lease.number:
                return LeaseAnswer.HELD
            put = {"key": self._lead_key, "value": _base64(member.encode()), "lease": str(self._lease.number)}
            # The configuration may have changed since the read.
            compare = [_compare(self._config_key, read.view.state.version)]
            if await self._change({"compare": compare, "success": [{"request_put": put}]}):
                return LeaseAnswer.HELD
        return LeaseAnswer.UNKNOWN

    async def _grant(self) -> int:
        lease_s = self._settings.lease_s
        response = await self._gateway.call("/v3/lease/grant", {"TTL": str(lease_s)}, READ_LIMIT_S)
        # Etcd may grant a different time than requested, and the core relies on the full time.
        if _number(response, "TTL") < lease_s or _number(response, "ID") == 0:
            raise RegistryRefused(f"etcd does not grant a lease of {lease_s} s")
        return _number(response, "ID")

    async def release_lease(self) -> None:
        """Give the lease back; without a response it ends by itself."""
        if self._lease is None:
            return
        # Forgotten first: whatever becomes of the call, this lease is not renewed again.
        lease, self._lease = self._lease, None
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease.number)}, READ_LIMIT_S)
        except RegistryRefused:
            pass  # it has ended already
        except RegistryError as error:
            logger.warning("the lease could not be given back, it ends in %d s: %s", self._settings.lease_s, error)

    # ---- watch ----

    async def watch(self) -> AsyncGenerator[RegistryView, None]:
        """Yield the present view, then one after each change."""
        last, pause = None, PAUSE_MIN_S
        while True:
            try:
                read = await self._read()
                # A wait also ends after a silence, in which nothing may have changed.
                if read.view != last:
                    last = read.view
                    yield last
                await self._wait_for_change(read.revision)
                self._last_failure, pause = "", PAUSE_MIN_S
            except RegistryError as error:
                self._log_failure("watch", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    async def _wait_for_change(self, revision: int) -> None:
        """Return after a change of the set's keys since ``revision``, or when it is time to read again.

        The caller reads the change instead of taking it from the event: the etcd member that sends the event may lag
        behind, and a read may already know more.
        """
        # The read has shown what changed at ``revision`` itself.
        request = {"key": self._prefix, "range_end": self._prefix_end, "start_revision": str(revision + 1)}
        stream = self._gateway.stream("/v3/watch", {"create_request": request}, self._settings.silence_s)
        async with aclosing(stream):
            async for result in stream:
                # Etcd also cancels a watch whose start it has compacted; then the next read has a newer one.
                if result.get("canceled") and not result.get("compact_revision"):
                    raise RegistryRefused(f"etcd ends the watch: {result.get('cancel_reason', 'it does not say why')}")
                if result.get("events") or result.get("canceled"):
                    return

    # ---- responses ----

    def _decoded(self, response: dict[str, Any]) -> _Read:
        """Return what the response to a read of both keys says."""
        try:
            revision = int(response["header"]["revision"])
            config_range, lead_range = (each["response_range"] for each in response["responses"])
            # A key that does not exist has no ``kvs``.
            config_pair, lead_pair = ((each.get("kvs") or [{}])[0] for each in (config_range, lead_range))
            version, lead_lease = _number(config_pair, "mod_revision"), _number(lead_pair, "lease")
            value, lead = b64decode(config_pair.get("value", "")), b64decode(lead_pair.get("value", ""))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NotARegistry(f"unexpected response to a read: {str(response)[:100]}") from error
        config, addresses = decode_config(value) if version else (None, {})
        try:
            holder = lead.decode() if lead_pair else None
        except UnicodeDecodeError as error:
            raise MalformedRegistry(f"the key of the lease holds {lead[:40]!r}, which is not a member's id") from error
        state = RegistryState(config, version, holder)
        return _Read(RegistryView(state, addresses), revision, lead_lease)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _compare(key: str, revision: int) -> dict[str, Any]:
    """Return the condition that the key was last changed at ``revision``, or does not exist if that is 0."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _number(fields: dict[str, Any], name: str) -> int:
    """Return a 64-bit number, which is left out if it is 0."""
    try:
        return int(fields.get(name, 0))
    except (TypeError, ValueError) as error:
        raise NotARegistry(f"unexpected response: {name} is {str(fields[name])[:40]!r}") from error
