"""Stable codes of errors, for people who search for them and for programs that compare them."""

from __future__ import annotations

from ...protocol.errors import BrokerError, ConnectionFailed, FlintError, RequestTimeout
from ..core.produce.receipts import DeliveryFailed
from ..errors import CorruptMessage

_NAMES = (
    (ConnectionFailed, "CONNECTION_FAILED"),
    (RequestTimeout, "REQUEST_TIMEOUT"),
    (DeliveryFailed, "DELIVERY_FAILED"),
    (CorruptMessage, "MESSAGE_CORRUPT"),
)


def error_code(error: FlintError) -> str:
    """Return the stable code of an error: ``TOPIC_NOT_EXIST (17)``, or only a name for an error of the client."""
    if isinstance(error, BrokerError):
        return f"{error.name} ({error.code})"
    for kind, name in _NAMES:
        if isinstance(error, kind):
            return name
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in type(error).__name__).strip("_").upper()
