"""Access keys: the credentials with which RocketMQ's clients sign their requests.

A signature is an HMAC, so its secret must be stored as it is; a SCRAM verifier cannot check it. A key therefore is a
credential of its own beside the user's password, in the field ``access_keys`` of the users file:

    [{"key": "…", "secret": "…", "created_ms": 1760000000000}]
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ConfigurationError

KEYS_MAX = 8
"""Maximum number of access keys of one user: enough to replace one while clients still use it."""
KEY_CHARS_MIN, KEY_CHARS_MAX = 7, 64
SECRET_CHARS_MIN, SECRET_CHARS_MAX = 8, 128
CREATED_MS_MAX = 2**53
_KEY_BYTES = 12
_SECRET_BYTES = 30
_KEY = re.compile(rf"[A-Za-z0-9._@+-]{{{KEY_CHARS_MIN},{KEY_CHARS_MAX}}}\Z")
_SECRET = re.compile(rf"[!-~]{{{SECRET_CHARS_MIN},{SECRET_CHARS_MAX}}}\Z")


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One access key. ``key`` is its public name, ``secret`` what signs; ``created_ms``: since the epoch."""

    key: str
    secret: str = field(repr=False)
    created_ms: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the key as in the users file."""
        return asdict(self)


def make_access_key(key: str = "", secret: str = "") -> AccessKey:
    """Return a new access key, random where nothing is given. Raises ``ConfigurationError`` for an invalid value."""
    made = AccessKey(
        key or base64.b32encode(secrets.token_bytes(_KEY_BYTES)).decode().rstrip("="),
        secret or base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).decode(),
        int(time.time() * 1000),
    )
    return parse_access_key(made.as_json(), "the access key")


def parse_access_keys(rows: Any, where: str) -> tuple[AccessKey, ...]:
    """Return the access keys in ``rows``. Raises ``ConfigurationError``, which begins with ``where``."""
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise ConfigurationError(f"{where}: 'access_keys' must be an array of at most {KEYS_MAX} objects")
    return tuple(parse_access_key(row, f"{where}: access key {index}") for index, row in enumerate(rows))


def parse_access_key(row: Any, where: str) -> AccessKey:
    """Return one access key. Raises ``ConfigurationError``, which begins with ``where`` and never has the secret."""
    row = row if isinstance(row, dict) else {}
    key, secret, created_ms = row.get("key"), row.get("secret"), row.get("created_ms", 0)
    if type(key) is not str or not _KEY.match(key):
        raise ConfigurationError(
            f"{where} needs a name of {KEY_CHARS_MIN} to {KEY_CHARS_MAX} of the characters A-Z a-z 0-9 . _ @ + -"
        )
    if type(secret) is not str or not _SECRET.match(secret):
        raise ConfigurationError(
            f"{where} needs a secret of {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters without "
            "spaces"
        )
    if type(created_ms) is not int or not 0 <= created_ms <= CREATED_MS_MAX:
        raise ConfigurationError(f"{where} needs created_ms, milliseconds since the epoch")
    return AccessKey(key, secret, created_ms)
