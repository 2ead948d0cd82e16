"""SCRAM-SHA-256 (RFC 5802, RFC 7677) without I/O: both sides of a proof that a client knows a password.

The client never sends the password, and the broker stores only a salted verifier; recovering the password from it takes
a brute-force search. The proof is mutual: a broker without the verifier cannot make the signature that the client
checks at the end.

    client first    n,,n=NAME,r=NONCE
    server first    r=NONCE+MORE,s=SALT,i=ITERATIONS
    client final    c=biws,r=NONCE+MORE,p=PROOF
    server final    v=SIGNATURE

There is no channel binding: the proof says nothing about the TLS connection that carries it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import time
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ConfigurationError, FlintError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 15_000
"""Iterations of new verifiers. A client computes them once for each broker and password; a broker never does."""
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 1_000_000
"""Maximum that a broker may ask of a client: each iteration takes about 0.3 µs of CPU time."""
SALT_BYTES = 16
SALT_BYTES_MAX = 128
KEY_BYTES = hashlib.sha256().digest_size
NONCE_BYTES = 18
NONCE_CHARS_MAX = 256
MESSAGE_CHARS_MAX = 1_024
"""Maximum length of a message of either side."""
PASSWORD_CHARS_MAX = 256

_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+\Z")
_CLIENT_FIRST = re.compile(r"(?P<head>[ny],,)(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>[^,]+)(?:,[a-z]=[^,\0]*)*)\Z")
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[^,]+),s=(?P<salt>[^,]+),i=(?P<iterations>[1-9][0-9]{0,9})(?:,[a-z]=[^,\0]*)*\Z"
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproven>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(?:,[a-z]=[^,\0]*)*),p=(?P<proof>[^,]+)\Z"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[^,]+)\Z")


class ScramError(FlintError):
    """A message of the exchange is malformed, out of order, or its proof is wrong."""


class ProofWrong(ScramError):
    """A well-formed proof was made with the wrong password."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Stored form of a password: enough to check a proof, not enough to make one."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that a client derives from a password and a broker's salt; as sensitive as the password."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def derive_keys(password: str, salt: bytes, iterations: int) -> Keys:
    """Derive the keys of a prepared password (see ``prepare``). This takes milliseconds but releases the GIL."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    return Keys(hmac_of(salted, b"Client Key"), hmac_of(salted, b"Server Key"))


def make_verifier(password: str, iterations: int = ITERATIONS, salt: bytes | None = None) -> Verifier:
    """Return the verifier of a password, with a random salt unless one is given. Raises ``ScramError``."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    keys = derive_keys(prepare(password), salt, iterations)
    return Verifier(iterations, salt, hashlib.sha256(keys.client_key).digest(), keys.server_key)


def new_nonce() -> str:
    """Return an unguessable random string."""
    return base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()


def prepare(text: str) -> str:
    """Normalize a name or a password with SASLprep (RFC 4013), so that different ways to type it are equal.

    Raises ``ScramError`` if it is empty, too long, or has forbidden characters; the error does not reveal the text.
    """
    if len(text) > PASSWORD_CHARS_MAX:
        raise ScramError(f"the text has {len(text)} characters; at most {PASSWORD_CHARS_MAX} are allowed")
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ScramError("the text is empty, or has no visible characters")
    for position, char in enumerate(prepared, 1):
        if any(prohibited(char) for prohibited in _PROHIBITED):
            raise ScramError(f"character {position}, U+{ord(char):04X}, cannot be in a name or a password (SASLprep)")
    if any(map(stringprep.in_table_d1, prepared)):  # right-to-left text must not be mixed (RFC 3454, section 6)
        ends_right_to_left = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if any(map(stringprep.in_table_d2, prepared)) or not ends_right_to_left:
            raise ScramError("the text mixes writing directions in a way that SASLprep forbids")
    return prepared


_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ClientExchange:
    """The client's side: call ``first``, then ``final`` with the broker's response, then ``check`` with its last one.

    ``password`` must be prepared. ``derive``: ``derive_keys``, or a version with a cache.
    """

    def __init__(
        self, name: str, password: str, *, nonce: str = "", derive: Callable[[str, bytes, int], Keys] = derive_keys
    ) -> None:
        self._password = password
        self._derive = derive
        self._nonce = nonce or new_nonce()
        self._first_bare = f"n={_quoted(prepare(name))},r={self._nonce}"
        self._signature = b""

    def first(self) -> str:
        return f"n,,{self._first_bare}"

    def final(self, server_first: str) -> str:
        """Return the client's proof. Raises ``ScramError`` if the broker's message is invalid or asks for too much.

        Derives the keys, which takes milliseconds.
        """
        match = _matched(_SERVER_FIRST, server_first, "the broker's first message")
        nonce = match["nonce"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not _NONCE.match(nonce):
            raise ScramError("the broker's nonce does not continue the client's: it belongs to another exchange")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(
                f"the broker asks for {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
            )
        salt = _decoded(match["salt"], "salt")
        if not 0 < len(salt) <= SALT_BYTES_MAX:
            raise ScramError(f"the broker's salt has {len(salt)} bytes; 1 to {SALT_BYTES_MAX} are expected")
        keys = self._derive(self._password, salt, iterations)
        unproven = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{server_first},{unproven}".encode()
        self._signature = hmac_of(keys.server_key, signed)
        stored_key = hashlib.sha256(keys.client_key).digest()
        proof = _xor(keys.client_key, hmac_of(stored_key, signed))
        return f"{unproven},p={base64.b64encode(proof).decode()}"

    def check(self, server_final: str) -> None:
        """Raise ``ScramError`` unless the broker proves that it has the user's verifier."""
        match = _matched(_SERVER_FINAL, server_final, "the broker's last message")
        signature = _decoded(match["signature"], "signature")
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the broker could not prove that it knows the user: it is not the expected broker")


class ServerExchange:
    """The broker's side: call ``first`` with the client's first message, then ``final`` with its proof.

    ``find`` returns the verifier of a user. For an unknown user it returns an invented one, so that every proof fails
    and a client cannot tell whether the user exists.
    """

    def __init__(self, find: Callable[[str], Verifier], *, nonce: str = "") -> None:
        self._find = find
        self._own_nonce = nonce or new_nonce()
        self._nonce = self._head = self._signed = ""
        self.verifier: Verifier | None = None
        self.name = ""
        """User name that the client claims; set by ``first``."""

    def first(self, client_first: str) -> str:
        """Return the response to the client's first message. Raises ``ScramError`` if the message is invalid."""
        if client_first.startswith("p="):
            raise ScramError("channel binding is not supported; begin with 'n,,'")
        match = _matched(_CLIENT_FIRST, client_first, "the client's first message")
        if len(match["nonce"]) > NONCE_CHARS_MAX or not _NONCE.match(match["nonce"]):
            raise ScramError(f"the client's nonce must be 1 to {NONCE_CHARS_MAX} visible ASCII characters except ','")
        self.name = _unquoted(match["name"])
        verifier = self.verifier = self._find(self.name)
        self._head = match["head"]
        self._nonce = match["nonce"] + self._own_nonce
        answer = f"r={self._nonce},s={base64.b64encode(verifier.salt).decode()},i={verifier.iterations}"
        self._signed = f"{match['bare']},{answer}"
        return answer

    def final(self, client_final: str) -> str:
        """Return the broker's signature. Raises ``ProofWrong``, or ``ScramError`` if the message is invalid."""
        match = _matched(_CLIENT_FINAL, client_final, "the client's last message")
        verifier = self.verifier
        if verifier is None:
            raise ScramError("the client's last message came before its first")
        if _decoded(match["binding"], "channel binding") != self._head.encode():
            raise ScramError("the client's channel binding is not that of its first message")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            raise ScramError("the client's nonce is not that of this exchange")
        proof = _decoded(match["proof"], "proof")
        if len(proof) != KEY_BYTES:
            raise ScramError(f"the client's proof has {len(proof)} bytes instead of {KEY_BYTES}")
        signed = f"{self._signed},{match['unproven']}".encode()
        client_key = _xor(proof, hmac_of(verifier.stored_key, signed))
        holds = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
        signature = hmac_of(verifier.server_key, signed)
        if not holds:
            raise ProofWrong("the proof is wrong")
        return f"v={base64.b64encode(signature).decode()}"


def hmac_of(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _matched(pattern: re.Pattern[str], message: str, what: str) -> re.Match[str]:
    if len(message) > MESSAGE_CHARS_MAX:
        raise ScramError(f"{what} has {len(message)} characters; at most {MESSAGE_CHARS_MAX} are allowed")
    match = pattern.match(message)
    if match is None:
        raise ScramError(f"{what} is not a message of {MECHANISM}")
    return match


def _decoded(text: str, what: str) -> bytes:
    """Decode canonical base64 only, so that each value has exactly one encoding."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if base64.b64encode(value).decode() != text:
        raise ScramError(f"the {what} is not base64")
    return value


def _quoted(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unquoted(name: str) -> str:
    if re.search("=(?!2C|3D)", name):
        raise ScramError("the user's name has a '=' that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


# ---- Access keys: the credentials with which RocketMQ's clients sign their requests.
#
# A signature is an HMAC, so its secret must be stored as it is; a SCRAM verifier cannot check it. A key
# therefore is a credential of its own beside the user's password, in the field ``access_keys`` of the users
# file:
#
#     [{"key": "…", "secret": "…", "created_ms": 1760000000000}]

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
