"""The registry in etcd: two keys for each set below ``/flintmq/CLUSTER/SET/``.

``config`` holds the configuration; its version is the key's mod_revision. ``lead`` holds the id of the member that has
the lease, and etcd deletes it when the lease ends. 64-bit numbers are strings in etcd's JSON, which leaves out fields
that are false, 0 or empty.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....protocol.text_files import first_line
from ..core.configuration import Proposal, ProposalOutcome, RegistryState
from .config_json import decode_config, encode_config
from .errors import EndpointError, MalformedRegistry, NotARegistry, OutcomeUnknown, RegistryError, RegistryRefused
from .gateway import EtcdGateway, Login
from .http_exchange import Endpoint
from .interface import LeaseAnswer, ProposalAnswer, RegistryView

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
        """Return the TLS settings."""
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
        """Return the prefix of the set's keys."""
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
