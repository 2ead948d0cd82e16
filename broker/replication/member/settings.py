"""A member and its registry, as ``[replication]`` of the settings names them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from ....protocol.errors import ConfigurationError
from ...config import Settings
from ..core.limits import Limits
from .identity import MemberIdentity
from .primary_link import LinkAccess

if TYPE_CHECKING:
    from ..registry.etcd import EtcdRegistry


def identity_of(settings: Settings) -> MemberIdentity:
    """Return this broker's place in its set. Raises ``ConfigurationError`` if a certificate cannot be used."""
    replication = settings.replication
    access = LinkAccess(f"member {replication.member}", replication.user, replication.password_file, _tls_of(settings))
    limits = Limits(
        lease_s=replication.lease_ms / 1000,
        lag_s=replication.lag_max_ms / 1000,
        quick_takeover=replication.quick_takeover,
    )
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
