"""Signatures of remoting requests: HMAC-SHA1 with a secret key, as RocketMQ's ``AclClientRPCHook`` makes them.

A signature covers the values of the extension fields, in the order of their names, and the body. Neither the code of
the request, the names, a time nor the connection is part of it, so who has a signed request can send it again, or send
its values as another request: no signature may be passed on to a client, and only TLS hides it on the wire.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken"})
"""Fields by which a client proves who it is."""
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_VERSION_ADDS_LATER = 399
"""``MQVersion`` of 4.9.3: clients up to it add ``_UNIQUE_KEY_QUERY`` after they have signed the request."""


def signature_of(fields: Mapping[str, str], body: bytes | memoryview, version: int, secret: bytes) -> bytes:
    """Return the signature of a request, 20 bytes. ``version``: the client's ``MQVersion``."""
    # In the order of their names, because RocketMQ collects them in a ``TreeMap``.
    values = [
        fields[name]
        for name in sorted(fields)
        if name != SIGNATURE and (name != _UNIQUE_KEY_QUERY or version > _VERSION_ADDS_LATER)
    ]
    content = "".join(values).encode("utf-8", "replace")
    return hmac.digest(secret, b"".join((content, body)) if body else content, "sha1")


def is_signed(fields: Mapping[str, str], body: bytes | memoryview, version: int, secret: bytes) -> bool:
    """Return whether the field ``Signature`` is the request's signature; its time does not depend on the answer."""
    try:
        found = base64.b64decode(fields.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    return hmac.compare_digest(found, signature_of(fields, body, version, secret))


def signed(fields: Mapping[str, str], body: bytes, version: int, access_key: str, secret: str) -> dict[str, str]:
    """Return ``fields`` with the access key and the signature that a client sends."""
    named = {**fields, ACCESS_KEY: access_key}
    return named | {SIGNATURE: base64.b64encode(signature_of(named, body, version, secret.encode())).decode()}
