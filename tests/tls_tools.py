"""Certificates for tests, issued by temporary CAs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Certificate:
    """Paths of a certificate's two files."""

    certificate: str
    key: str

    @property
    def broker_settings(self) -> dict[str, Any]:
        """Return the settings of a broker with this certificate."""
        return {"security.tls_certificate": self.certificate, "security.tls_key": self.key}


class Authority:
    """A CA. ``path``: the CA file for those who trust it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.path = str(self._folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str = "broker", host: str = HOST, *, expired: bool = False) -> Certificate:
        """Issue a certificate for ``host``; replaces the files of an earlier one of this name."""
        leaf = self._ca.issue_cert(host, not_after=LONG_AGO if expired else None)
        made = Certificate(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        leaf.private_key_pem.write_to_path(made.key)
        Path(made.key).chmod(0o600)
        leaf.cert_chain_pems[0].write_to_path(made.certificate)
        return made
