"""Settings of the console, checked before anything is opened."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from ...protocol.errors import ConfigurationError
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
        """Predicate: can other machines reach the console?"""
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
