"""The place of a broker in a replica set, and the broker around its member."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ....protocol.commands import SetMember
from ....protocol.errors import BrokerError, ConfigurationError, NotEnoughReplicas, NotPrimary
from ...config import Settings
from ..core.replica import Replica, Role
from ..core.rules import Limits
from .primary_link import LinkAccess

if TYPE_CHECKING:
    from ..registry.etcd import EtcdRegistry

BUSY_RETRY_MS = 100
"""Time after which a client should ask again while there is no primary, or while it reaches too few members."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member's set and id, and how it connects to the others."""

    replica_set: str
    member: str
    access: LinkAccess
    limits: Limits

    def not_primary(self, leader: str, stop_reason: str) -> NotPrimary:
        """Return the error for a request that only the primary answers. ``leader``: its address, empty if unknown."""
        if stop_reason:
            why = f", and takes no part in it: {stop_reason}"
        else:
            why = f"; that is at {leader}" if leader else "; it has none at the moment"
        return NotPrimary(
            f"{self.member} is not the primary of replica set {self.replica_set}{why}",
            retry_after_ms=0 if leader else BUSY_RETRY_MS,
            primary=leader,
        )

    def not_enough(self, needed: int) -> NotEnoughReplicas:
        """Return the error for a message that could not be acknowledged."""
        return NotEnoughReplicas(
            f"the primary {self.member} of replica set {self.replica_set} reaches fewer than {needed} members, itself "
            "included, so nothing can be acknowledged; nothing was written. Start the other members",
            retry_after_ms=BUSY_RETRY_MS,
        )


def member_rows(replica: Replica, addresses: Mapping[str, str], now: float) -> list[SetMember]:
    """Return what a member knows of each member of its set. ``now``: see ``Replica``."""
    config, primary = replica.config, replica.primary
    rows = []
    for member in sorted(config.members) if config is not None else ():
        connected, flushed, behind_s = primary.lag_of(member, now) if primary is not None else (False, -1, -1.0)
        in_sync = config is not None and member in config.in_sync
        rows.append(SetMember(member, addresses.get(member, ""), in_sync, connected, flushed, int(behind_s * 1000)))
    return rows


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A set as one member sees it; see ``ReplicaStatusAnswer``."""

    role: str
    epoch: int
    primary: str
    min_in_sync: int
    end: int
    confirmed: int
    reason: str
    rows: list[SetMember]
    follows: bool
    """True if the stream of the primary runs here."""

    def standby_problem(self, member: str) -> str:
        """Return why ``member``, which sees the set like this and does not lead it, could not take over; "" if it is in
        sync."""
        why = f": {self.reason}" if self.reason else ""
        if self.role == Role.STOPPED.value:
            return f"stopped{why}"
        if not self.rows:
            return f"{self.role}: the registry has not answered yet{why}"
        if self.role != Role.FOLLOWER.value:
            return f"{self.role}: it begins to lead epoch {self.epoch}"
        if not self.follows:
            return f"follower: it has no connection to the primary {self.primary}{why}"
        if not any(row.in_sync for row in self.rows if row.member == member):
            return f"follower: it is not in sync with the primary {self.primary} yet{why}"
        return ""


class MemberOwner(Protocol):
    """The broker around a member. All methods are called on the loop."""

    def lead(self) -> None:
        """Begin to serve clients: everything in the log is confirmed."""

    def step_down(self, error: BrokerError) -> None:
        """Serve no client any more, at once: every request that waits gets ``error``, and connections end."""

    def reopen(self, reason: str) -> None:
        """End this life: close the store, and open it again."""

    def fatal(self, part: str, error: BaseException) -> None:
        """End the process."""


# ---- A member and its registry, as ``[replication]`` of the settings names them.


def identity_of(settings: Settings) -> MemberIdentity:
    """Return this broker's place in its set. Raises ``ConfigurationError`` if a certificate cannot be used."""
    replication = settings.replication
    access = LinkAccess(f"member {replication.member}", replication.user, replication.password_file, _tls_of(settings))
    limits = Limits(lease_s=replication.lease_ms / 1000, lag_s=replication.lag_max_ms / 1000)
    return MemberIdentity(replication.set, replication.member, access, limits)


def _tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS settings with which members connect to each other; None if they do not use TLS."""
    security, ca = settings.security, settings.replication.tls_ca
    if not security.tls_certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
        # The member's own certificate, for brokers that require one of every client.
        context.load_cert_chain(security.tls_certificate, security.tls_key)
    except OSError as error:
        raise ConfigurationError(
            f"replication.tls_ca = {ca!r}: cannot set up TLS to the other members: {error}"
        ) from error
    return context


def registry_of(settings: Settings) -> EtcdRegistry:
    """Return the registry of the set. Raises ``ConfigurationError``."""
    try:
        # Imported here, because a broker without a set needs no h11.
        from ..registry.etcd import EtcdRegistry, EtcdSettings
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "replication.set is set, but h11 is missing: install the extra, pip install 'flintmq[broker,replication]'"
        ) from error
    replication = settings.replication
    try:
        return EtcdRegistry(
            EtcdSettings(
                tuple(url.strip() for url in replication.etcd.split(",") if url.strip()),
                replication.cluster,
                replication.set,
                lease_s=replication.lease_ms // 1000,
                ca_file=replication.etcd_ca or None,
                certificate_file=replication.etcd_certificate or None,
                key_file=replication.etcd_key or None,
                user=replication.etcd_user or None,
                password_file=replication.etcd_password_file or None,
            )
        )
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"[replication]: {error}") from error
