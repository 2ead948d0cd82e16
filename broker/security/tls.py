"""The broker's side of TLS: its certificate, the CA of its clients, and reloading of both without a restart."""

from __future__ import annotations

import logging
import ssl
import stat
from pathlib import Path
from typing import NoReturn

from ...protocol.errors import ConfigurationError

log = logging.getLogger(__name__)

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsFiles:
    """A TLS context from a certificate (with its chain), its key and, for mutual TLS, the CA of the clients.

    New connections use ``context``. ``refresh`` creates a new context after a file changed; if that fails, the old one
    stays. Runs on the event loop.
    """

    def __init__(self, certificate: str, key: str, client_ca: str, least_version: str) -> None:
        self._certificate = Path(certificate).expanduser()
        self._key = Path(key).expanduser()
        self._client_ca = Path(client_ca).expanduser() if client_ca else None
        self._least_version = _VERSIONS[least_version]
        self._seen = self._stats()
        self.context = self._make()
        self.reloads = 0
        self.reload_failures = 0

    def refresh(self, *, force: bool = False) -> None:
        """Reload the files if one changed, or always with ``force``."""
        seen = self._stats()
        if seen == self._seen and not force:
            return
        # Before the attempt, so that files that cannot be used are logged once and not at each look.
        self._seen = seen
        try:
            self.context = self._make()
        except ConfigurationError as error:
            self.reload_failures += 1
            log.error("keeping the previous certificate: %s", error)
            return
        self.reloads += 1
        log.info("reloaded the certificate in %s: new connections use it", self._certificate)

    def _stats(self) -> list[tuple[int, int, int]]:
        """Return (inode, mtime, size) of each file, by which a new version is detected; zeros for a missing file."""
        stats = []
        for path in (self._certificate, self._key, *([self._client_ca] if self._client_ca else ())):
            try:
                found = path.stat()
                stats.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError:
                stats.append((0, 0, 0))
        return stats

    def _make(self) -> ssl.SSLContext:
        """Create a context from the files. Raises ``ConfigurationError`` that names an unusable file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._least_version
        # In TLS 1.2 a client could ask for one handshake after the other, each of which costs the broker more than
        # itself.
        context.options |= ssl.OP_NO_RENEGOTIATION
        for setting, path in (("tls_certificate", self._certificate), ("tls_key", self._key)):
            _check_readable(setting, path)
        try:
            # Without the callback, OpenSSL would ask for the password of an encrypted key at the terminal.
            context.load_cert_chain(self._certificate, self._key, password=_refuse_encrypted)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"security.tls_certificate {self._certificate} and security.tls_key {self._key} cannot be used: "
                f"{_reason(error)}; both must be PEM, the broker's own certificate must be the first of the chain, and "
                "the key must belong to it"
            ) from None
        if stat.S_IMODE(self._key.stat().st_mode) & stat.S_IROTH:
            log.warning("every user of this machine can read the key %s; run chmod o= on it", self._key)
        if self._client_ca is not None:
            _check_readable("tls_client_ca", self._client_ca)
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ConfigurationError(
                    f"security.tls_client_ca {self._client_ca} cannot be used: {_reason(error)}; it must be PEM"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _check_readable(setting: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise ConfigurationError(
            f"security.{setting} = {str(path)!r}: cannot read the file: {error.strerror}"
        ) from None


def _refuse_encrypted() -> NoReturn:
    raise ValueError("the key is encrypted, and the broker cannot ask for its password; use an unencrypted key")


def _reason(error: Exception) -> str:
    return (isinstance(error, ssl.SSLError) and error.reason) or str(error)


def handshake_failure(error: OSError) -> str:
    """Return why a handshake failed, in words for an operator."""
    if not isinstance(error, ssl.SSLError):
        return str(error) or type(error).__name__
    known = {
        "HTTP_REQUEST": "the client spoke HTTP",
        "WRONG_VERSION_NUMBER": "the client did not use TLS; does it set tls=True?",
        "UNSUPPORTED_PROTOCOL": "the client supports only versions of TLS that are too old",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, but security.tls_client_ca requires one",
        "CERTIFICATE_VERIFY_FAILED": "the client's certificate has expired or is not signed by security.tls_client_ca",
        "TLSV1_ALERT_UNKNOWN_CA": "the client does not know the CA of this broker's certificate",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client reports that this broker's certificate has expired",
        "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this broker's certificate",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this broker's certificate",
    }
    return known.get(error.reason or "", str(error))
