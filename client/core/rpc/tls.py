"""TLS on the client's side: contexts, and the causes of failed handshakes. Imported only if TLS is used."""

from __future__ import annotations

import ssl
from pathlib import Path

from ....protocol.errors import ConnectionFailed
from ...errors import InvalidArgument, TlsFailed
from .address import Address

_OPENSSL_HINTS = {
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; omit tls, or set security.tls_certificate on the broker",
    "UNSUPPORTED_PROTOCOL": "client and broker have no TLS version in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "client and broker have no TLS version in common",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a certificate; pass tls_certificate and tls_key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the broker may require a certificate; pass tls_certificate and tls_key",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the CA of this client's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this client's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker does not accept this client's certificate",
}
_EXPIRED = 10
_NOT_YET_VALID = 9
_WRONG_NAMES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def stats_of(*paths: bool | str) -> list[tuple[int, int, int]]:
    """Return values that differ between versions of the files; zeros for a path that is not a file."""
    stats = []
    for path in paths:
        try:
            found = Path(path).expanduser().stat() if isinstance(path, str) and path else None
        except OSError:
            found = None
        stats.append((found.st_ino, found.st_mtime_ns, found.st_size) if found else (0, 0, 0))
    return stats


def context_of(tls: bool | str, certificate: str, key: str) -> ssl.SSLContext:
    """Return a context that trusts the CA in the file ``tls`` (True: those that this machine trusts) and presents the
    certificate. Raises ``InvalidArgument`` if a file cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if isinstance(tls, str):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no CA but the given one
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(Path(tls).expanduser())
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise InvalidArgument(f"tls = {tls!r} cannot be used as a CA file: {_reason(error)}") from None
    if certificate:
        certificate_path = Path(certificate).expanduser()
        key_path = Path(key).expanduser() if key else None
        try:
            context.load_cert_chain(certificate_path, key_path, password=_refuse_encrypted)
        except (OSError, ValueError) as error:
            named = f"tls_certificate = {certificate!r}" + (f" and tls_key = {key!r}" if key else "")
            raise InvalidArgument(
                f"{named} cannot be used: {_reason(error)}; they must be PEM files that belong together"
            ) from None
    return context


def _refuse_encrypted() -> bytes:
    raise ValueError("the key is encrypted; pass an ssl.SSLContext with the decrypted key")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return getattr(error, "strerror", None) or str(error)


def handshake_failed(address: Address, error: OSError) -> ConnectionFailed:
    """Return the error that callers see for a failed handshake."""
    prefix = f"TLS with the broker at {address} failed: "
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(prefix + _distrust(error))
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError):
        return ConnectionFailed(
            f"{prefix}the connection was lost during the handshake ({_reason(error)}); client and broker may have no "
            "TLS version in common, or the broker may require a certificate: see its log"
        )
    hint = _OPENSSL_HINTS.get(error.reason or "")
    return TlsFailed(prefix + (f"{hint} ({error.reason})" if hint else str(error)))


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"its certificate has expired ({said}); renew it"
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet ({said}); check the clocks"
    if error.verify_code in _WRONG_NAMES:
        return f"its certificate is for another host ({said}); connect by a name in it, or issue it again with this one"
    return f"its certificate is not trusted ({said}); pass the file of the CA that signed it with tls='ca.pem'"
