"""The file of users: who may connect, how each proves it, and what each may do. Bytes in, values out.

    {"version": 1, "decoy": "…", "users": {"billing": {"scram": {"iterations": …, "salt": "…", "storedKey": "…",
    "serverKey": "…"}, "permissions": []}}, "flintmqCrc32": "…"}

Beside it lies a copy, ``.bak``, which is written first: it is never older, so where it has to serve instead, nobody
gets in who was removed. A file that is readable and is not what its checksum was made of may have been changed by hand,
to keep somebody out: then the copy must not decide, and it is refused.

Names that are not known here are kept as they are, at every level: who reads and writes the file with an older release
loses nothing.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .checked_json import ChecksumMismatch, encode_checked, take_checksum
from .errors import ConfigurationError, UserExistsAlready, UserNotExist
from .permissions import ADMIN, Grant, Permissions
from .scram import ITERATIONS_MAX, ITERATIONS_MIN, KEY_BYTES, SALT_BYTES_MAX, Verifier

USERS_FILE = "flintmq/users.json"
"""Where it is, within a store."""
BACKUP_SUFFIX = ".bak"
"""What the name of its copy has behind it."""
VERSION = 1
NAME_CHARS_MAX = 64
DECOY_BYTES = 32
USERS_MAX = 10_000
"""Most users of one store."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+-]{{0,{NAME_CHARS_MAX - 1}}}\Z")


def check_user_name(name: str) -> str:
    """``name``, if a user may be called so; else raises ``ConfigurationError``."""
    if not _NAME.match(name):
        raise ConfigurationError(
            f"{name!r} cannot be a user's name: use 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 . _ @ + -, "
            "beginning with a letter or a digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class User:
    """One user. ``permissions`` are grants as they stand in the file; ``other``: what else stands there."""

    name: str
    verifier: Verifier
    permissions: tuple[dict[str, Any], ...] = ()
    other: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Users:
    """All of them, by name. ``decoy``: the key from which salts of users that do not exist are made."""

    by_name: dict[str, User] = field(default_factory=dict)
    decoy: bytes = field(default_factory=lambda: secrets.token_bytes(DECOY_BYTES), repr=False)
    other: dict[str, Any] = field(default_factory=dict, repr=False)


# ---- changes


def is_admin(user: User) -> bool:
    """Return whether the user may do everything; one whose grants cannot be read may do nothing."""
    try:
        return ADMIN in Permissions.parse(user.permissions, user.name).broker
    except ConfigurationError:
        return False


def with_user(users: Users, name: str, verifier: Verifier, grants: Sequence[Grant] = ()) -> Users:
    """Return the users and a new one. Raises ``UserExistsAlready``, ``ConfigurationError`` for a name that cannot be
    and for one user too many."""
    check_user_name(name)
    if name in users.by_name:
        raise UserExistsAlready(f"there is a user {name!r} already; flintmq user passwd {name} changes its password")
    if len(users.by_name) >= USERS_MAX:
        raise ConfigurationError(f"user {name!r} cannot be added: a store has at most {USERS_MAX:,} users; remove some")
    permissions = tuple(Permissions().plus(grants).as_json())
    return _replaced(users, User(name, verifier, permissions))


def without_user(users: Users, name: str) -> Users:
    """Return the users except one. Raises ``UserNotExist``."""
    user_named(users, name)
    return replace(users, by_name={key: row for key, row in users.by_name.items() if key != name})


def with_password(users: Users, name: str, verifier: Verifier) -> Users:
    """Return the users, one of them with another password. Raises ``UserNotExist``."""
    return _replaced(users, replace(user_named(users, name), verifier=verifier))


def with_grants(users: Users, name: str, grants: Sequence[Grant]) -> Users:
    """Return the users, one of them with more grants. Raises ``UserNotExist``."""
    user = user_named(users, name)
    permissions = Permissions.parse(user.permissions, name).plus(grants)
    return _replaced(users, replace(user, permissions=tuple(permissions.as_json())))


def without_grants(users: Users, name: str, grants: Sequence[Grant] | None) -> Users:
    """Return the users, one of them with fewer grants, or (None) without any. Raises ``UserNotExist``, and
    ``ConfigurationError`` for a grant that the user does not have."""
    user = user_named(users, name)
    try:
        left = Permissions() if grants is None else Permissions.parse(user.permissions, name).minus(grants)
    except ConfigurationError as error:
        raise ConfigurationError(f"user {name}: {error}; flintmq user show {name} has what it may do") from None
    return _replaced(users, replace(user, permissions=tuple(left.as_json())))


def user_named(users: Users, name: str) -> User:
    """Return the user of that name. Raises ``UserNotExist``."""
    found = users.by_name.get(check_user_name(name))
    if found is None:
        close = difflib.get_close_matches(name, users.by_name, n=2, cutoff=0.6)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserNotExist(f"there is no user {name!r}{hint}")
    return found


def _replaced(users: Users, user: User) -> Users:
    return replace(users, by_name=users.by_name | {user.name: user})


# ---- the file


class DamagedUsers(ConfigurationError):
    """What is there is no JSON: the file was damaged."""


class ChangedUsers(ConfigurationError):
    """It is readable, and not what its checksum was made of: damaged, or changed by hand."""


def choose_users(content: bytes | None, copy: bytes | None, where: str) -> tuple[Users, str]:
    """The users in the file ``where``, else in its copy (None: not there), and what was wrong where that had to serve.

    Raises ``ConfigurationError`` saying what is wrong, and what helps.
    """
    backup = f"{where}{BACKUP_SUFFIX}"
    if content is None:
        if copy is None:
            return Users(), ""
        raise ConfigurationError(
            f"{where} is missing, but its copy {backup} is there. If the file was lost, copy that to it; if nobody is "
            "to be a user any more, remove both"
        )
    try:
        return parse_users(content, where), ""
    except ChangedUsers as error:
        raise ConfigurationError(
            f"{error}, and remove {backup}; else copy that, which has the users, over it"
        ) from None
    except DamagedUsers as error:
        damage = error
    if copy is None:
        raise ConfigurationError(f"{damage}. Restore it from a backup of the store")
    try:
        return parse_users(copy, backup), f"{damage}. Its copy {backup} is taken instead, which has the same users"
    except ConfigurationError as error:
        raise ConfigurationError(f"{damage}; {error}. Restore one of them from a backup of the store") from None


def parse_users(content: bytes, where: str) -> Users:
    """The users in the file ``where``. Raises ``ConfigurationError`` saying what is wrong with which of them, a
    ``DamagedUsers`` or ``ChangedUsers`` where that is so."""
    try:
        table = json.loads(content.decode("utf-8"))
    except (RecursionError, ValueError) as error:
        raise DamagedUsers(f"{where} is not JSON: {error}" if content.strip() else f"{where} is empty") from None
    try:
        if isinstance(table, dict):
            take_checksum(table)
    except ChecksumMismatch as error:
        raise ChangedUsers(f"{where}: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("users"), dict):
        raise ConfigurationError(f"{where} is no file of users: it has no object 'users'")
    if table.get("version") != VERSION:
        raise ConfigurationError(
            f"{where} is of version {table.get('version')!r}, this release reads {VERSION}; use that which wrote it"
        )
    users = {name: _parse_user(name, row, where) for name, row in table["users"].items()}
    decoy = _bytes_of(table.get("decoy"), 1, 1_024) or secrets.token_bytes(DECOY_BYTES)
    return Users(users, decoy, {key: table[key] for key in table if key not in ("version", "decoy", "users")})


def _parse_user(name: str, row: Any, where: str) -> User:
    try:
        check_user_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if not isinstance(row, dict) or not isinstance(scram := row.get("scram"), dict):
        raise ConfigurationError(f"{where}: user {name!r} has no object 'scram'")
    verifier = parse_verifier(scram, f"{where}: user {name!r}")
    permissions = row.get("permissions", [])
    if not isinstance(permissions, list) or not all(isinstance(grant, dict) for grant in permissions):
        raise ConfigurationError(f"{where}: 'permissions' of user {name!r} must be an array of objects")
    other = {key: row[key] for key in row if key not in ("scram", "permissions")}
    return User(name, verifier, tuple(permissions), other)


def parse_verifier(scram: dict[str, Any], where: str) -> Verifier:
    """Return the verifier that an object ``scram`` holds. Raises ``ConfigurationError`` naming the field at fault."""
    iterations = scram.get("iterations")
    salt = _bytes_of(scram.get("salt"), 1, SALT_BYTES_MAX)
    stored_key = _bytes_of(scram.get("storedKey"), KEY_BYTES, KEY_BYTES)
    server_key = _bytes_of(scram.get("serverKey"), KEY_BYTES, KEY_BYTES)
    if type(iterations) is not int or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ConfigurationError(
            f"{where} has scram.iterations {iterations!r:.40}; it must be {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    if not (salt and stored_key and server_key):
        raise ConfigurationError(
            f"{where} needs scram.salt, scram.storedKey and scram.serverKey in base64, the keys of "
            f"{KEY_BYTES} bytes; flintmq user passwd writes them again"
        )
    return Verifier(iterations, salt, stored_key, server_key)


def encode_users(users: Users) -> str:
    """The text of the file, and of its copy."""
    rows = {user.name: _user_row(user) for user in users.by_name.values()}
    table = {"version": VERSION, "decoy": _text_of(users.decoy), **users.other, "users": rows}
    return encode_checked(table)


def _user_row(user: User) -> dict[str, Any]:
    return {"scram": verifier_row(user.verifier), "permissions": list(user.permissions), **user.other}


def verifier_row(verifier: Verifier) -> dict[str, Any]:
    """Return the object ``scram`` of a verifier, as ``parse_verifier`` takes it."""
    return {
        "iterations": verifier.iterations,
        "salt": _text_of(verifier.salt),
        "storedKey": _text_of(verifier.stored_key),
        "serverKey": _text_of(verifier.server_key),
    }


def _text_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes_of(text: Any, low: int, high: int) -> bytes:
    """The bytes of a base64 text of ``low`` to ``high`` bytes; none where it is something else."""
    try:
        value = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
    return value if low <= len(value) <= high else b""
