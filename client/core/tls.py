"""TLS on the client's side: contexts, and what a failed handshake means. Imported where TLS is asked for."""

from __future__ import annotations

import ssl
from pathlib import Path

from ...protocol.errors import ConnectionFailed
from ..errors import InvalidArgument, TlsFailed
from .address import Address

_OPENSSL_HINTS = {
    "WRONG_VERSION_NUMBER": "what listens there speaks no TLS; leave tls out, or set security.tls_certificate there",
    "UNSUPPORTED_PROTOCOL": "the two have no version of TLS in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the two have no version of TLS in common",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker asks for a certificate; give tls_certificate and tls_key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the broker may ask for a certificate; give tls_certificate and tls_key",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the CA of this client's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this client's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker does not accept this client's certificate",
}
_EXPIRED = 10
_NOT_YET_VALID = 9
_WRONG_NAMES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def stats_of(*paths: bool | str) -> list[tuple[int, int, int]]:
    """What tells one version of the files from another; zeros for what is none."""
    stats = []
    for path in paths:
        try:
            found = Path(path).expanduser().stat() if isinstance(path, str) and path else None
        except OSError:
            found = None
        stats.append((found.st_ino, found.st_mtime_ns, found.st_size) if found else (0, 0, 0))
    return stats


def context_of(tls: bool | str, certificate: str, key: str) -> ssl.SSLContext:
    """A context that believes the CA in the file ``tls`` (True: those that this machine trusts) and shows the
    certificate. Raises ``InvalidArgument`` for a file that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if isinstance(tls, str):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # that CA and no other
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(Path(tls).expanduser())
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise InvalidArgument(f"tls = {tls!r} cannot be used as the file of a CA: {_reason(error)}") from None
    if certificate:
        certificate_path = Path(certificate).expanduser()
        key_path = Path(key).expanduser() if key else None
        try:
            context.load_cert_chain(certificate_path, key_path, password=_refuse_encrypted)
        except (OSError, ValueError) as error:
            named = f"tls_certificate = {certificate!r}" + (f" and tls_key = {key!r}" if key else "")
            raise InvalidArgument(
                f"{named} cannot be used: {_reason(error)}; they must be PEM, and belong together"
            ) from None
    return context


def _refuse_encrypted() -> bytes:
    raise ValueError("the key is encrypted; give an ssl.SSLContext that has it")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return getattr(error, "strerror", None) or str(error)


def handshake_failed(address: Address, error: OSError) -> ConnectionFailed:
    """Why no TLS came about, as the error that callers see."""
    prefix = f"no TLS with the broker at {address}: "
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(prefix + _distrust(address, error))
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError):
        return ConnectionFailed(
            f"{prefix}the connection went during the handshake ({_reason(error)}); perhaps the two have no version of "
            "TLS in common, or the broker asks for a certificate: its log says why"
        )
    hint = _OPENSSL_HINTS.get(error.reason or "")
    return TlsFailed(prefix + (f"{hint} ({error.reason})" if hint else str(error)))


def _distrust(address: Address, error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code == _EXPIRED:
        return f"its certificate has expired ({said}); it needs a new one"
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet ({said}); are the clocks right?"
    if error.verify_code in _WRONG_NAMES:
        return f"its certificate is for another host ({said}); connect by a name that is in it, or have it made anew"
    return f"its certificate is not trusted ({said}); give the file of the CA that signed it with tls='ca.pem'"
