"""The users file: the users of a store, a verifier for the password of each, and their grants. Bytes in, values out.

    {"version": 1, "decoy": "…", "users": {"billing": {"scram": {"iterations": …, "salt": "…", "storedKey": "…",
    "serverKey": "…"}, "permissions": [], "access_keys": []}}, "flintmqCrc32": "…"}

Access keys are readable (see ``access_keys``); a user without any has no such field.

The file has a copy, ``.bak``, which is written first and is never older: if the broker must use it, no removed user
gets in. A file that is readable but does not match its checksum may have been edited by hand, perhaps to lock a
user out. In that case the copy must not take precedence, and the file is refused.

Unknown keys are kept at every level, so that an older release can rewrite the file without losing anything.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import difflib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..checked_json import ChecksumMismatch, encode_checked, take_checksum
from ..errors import ConfigurationError, UserExistsAlready, UserNotExist
from ..store_files import FILE_MODE, FOLDER_MODE, refuse_backup
from ..text_files import decode_text
from .permissions import ADMIN, Grant, Permissions
from .scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    KEY_BYTES,
    KEYS_MAX,
    SALT_BYTES_MAX,
    AccessKey,
    Verifier,
    parse_access_keys,
)

USERS_FILE = "flintmq/users.json"
"""Path of the users file in a store."""
BACKUP_SUFFIX = ".bak"
"""Suffix of the copy's name."""
VERSION = 1
NAME_CHARS_MAX = 64
DECOY_BYTES = 32
USERS_MAX = 10_000
"""Maximum number of users in a store."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+-]{{0,{NAME_CHARS_MAX - 1}}}\Z")


def check_user_name(name: str) -> str:
    """Return ``name`` if it is a valid user name. Raises ``ConfigurationError``."""
    if not _NAME.match(name):
        raise ConfigurationError(
            f"{name!r} is not a valid user name: use 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 . _ @ + -, "
            "beginning with a letter or a digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class User:
    """One user. ``permissions``: the grants as in the file; ``other``: all unknown fields of the user."""

    name: str
    verifier: Verifier
    permissions: tuple[dict[str, Any], ...] = ()
    other: dict[str, Any] = field(default_factory=dict, repr=False)
    access_keys: tuple[AccessKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Users:
    """All users by name. ``decoy``: the key from which the salts of unknown users are derived."""

    by_name: dict[str, User] = field(default_factory=dict)
    decoy: bytes = field(default_factory=lambda: secrets.token_bytes(DECOY_BYTES), repr=False)
    other: dict[str, Any] = field(default_factory=dict, repr=False)


# ---- changes


def is_admin(user: User) -> bool:
    """Return whether the user has ``admin`` on the broker. A user with unreadable grants has no rights at all."""
    try:
        return ADMIN in Permissions.parse(user.permissions, user.name).broker
    except ConfigurationError:
        return False


def with_user(users: Users, name: str, verifier: Verifier, grants: Sequence[Grant] = ()) -> Users:
    """Return the users with a new one. Raises ``UserExistsAlready``, or ``ConfigurationError`` if the name is invalid
    or there are too many users."""
    check_user_name(name)
    if name in users.by_name:
        raise UserExistsAlready(f"user {name!r} already exists; flintmq user passwd {name} changes its password")
    if len(users.by_name) >= USERS_MAX:
        raise ConfigurationError(f"cannot add user {name!r}: a store has at most {USERS_MAX:,} users; remove some")
    permissions = tuple(Permissions().plus(grants).as_json())
    return _replaced(users, User(name, verifier, permissions))


def without_user(users: Users, name: str) -> Users:
    """Return the users without one of them. Raises ``UserNotExist``."""
    user_named(users, name)
    return replace(users, by_name={key: row for key, row in users.by_name.items() if key != name})


def with_password(users: Users, name: str, verifier: Verifier) -> Users:
    """Return the users after changing the password of one. Raises ``UserNotExist``."""
    return _replaced(users, replace(user_named(users, name), verifier=verifier))


def with_grants(users: Users, name: str, grants: Sequence[Grant]) -> Users:
    """Return the users after adding grants to one. Raises ``UserNotExist``."""
    user = user_named(users, name)
    permissions = Permissions.parse(user.permissions, name).plus(grants)
    return _replaced(users, replace(user, permissions=tuple(permissions.as_json())))


def without_grants(users: Users, name: str, grants: Sequence[Grant] | None) -> Users:
    """Return the users after revoking some or (None) all grants of one. Raises ``UserNotExist``, or
    ``ConfigurationError`` for a grant that the user does not have."""
    user = user_named(users, name)
    try:
        left = Permissions() if grants is None else Permissions.parse(user.permissions, name).minus(grants)
    except ConfigurationError as error:
        raise ConfigurationError(f"user {name}: {error}; flintmq user show {name} lists its grants") from None
    return _replaced(users, replace(user, permissions=tuple(left.as_json())))


def with_access_key(users: Users, name: str, access_key: AccessKey) -> Users:
    """Return the users after adding an access key to one. Raises ``UserNotExist``, or ``ConfigurationError`` if a user
    has that key, or if this one has too many."""
    user = user_named(users, name)
    for each in users.by_name.values():
        if any(known.key == access_key.key for known in each.access_keys):
            raise ConfigurationError(f"access key {access_key.key} is that of user {each.name!r}; choose another name")
    if len(user.access_keys) >= KEYS_MAX:
        raise ConfigurationError(
            f"user {name!r} has {KEYS_MAX} access keys, which is the maximum; remove one with flintmq user key remove"
        )
    return _replaced(users, replace(user, access_keys=(*user.access_keys, access_key)))


def without_access_key(users: Users, name: str, key: str) -> Users:
    """Return the users without one access key. Raises ``UserNotExist``, or ``ConfigurationError`` if the user does not
    have it."""
    user = user_named(users, name)
    left = tuple(each for each in user.access_keys if each.key != key)
    if len(left) == len(user.access_keys):
        raise ConfigurationError(
            f"user {name!r} has no access key {key[:64]!r}; flintmq user key list {name} shows its keys"
        )
    return _replaced(users, replace(user, access_keys=left))


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
    """The users file is not JSON: it was damaged."""


class ChangedUsers(ConfigurationError):
    """The users file is readable but does not match its checksum: it was damaged, or edited by hand."""


def choose_users(content: bytes | None, copy: bytes | None, where: str) -> tuple[Users, str]:
    """Return the users from the content of the file ``where``, or from its copy if the file is damaged.

    ``content`` and ``copy`` are None if the file does not exist. The second item says what was wrong with the file if
    the copy was used. Raises ``ConfigurationError`` if neither can be used.
    """
    backup = f"{where}{BACKUP_SUFFIX}"
    if content is None:
        if copy is None:
            return Users(), ""
        raise ConfigurationError(
            f"{where} is missing, but its copy {backup} exists. If the file was lost, restore it from the copy; if "
            "the store should no longer have users, remove both"
        )
    try:
        return parse_users(content, where), ""
    except ChangedUsers as error:
        raise ConfigurationError(
            f"{error}, and remove {backup}; otherwise overwrite it with that copy, which has the users"
        ) from None
    except DamagedUsers as error:
        damage = error
    if copy is None:
        raise ConfigurationError(f"{damage}. Restore it from a backup of the store")
    try:
        return parse_users(copy, backup), f"{damage}. Using its copy {backup} instead, which has the same users"
    except ConfigurationError as error:
        raise ConfigurationError(f"{damage}; {error}. Restore one of them from a backup of the store") from None


def parse_users(content: bytes, where: str) -> Users:
    """Return the users from the content of the file ``where``. Raises ``DamagedUsers``, ``ChangedUsers``, or another
    ``ConfigurationError`` that names the user at fault."""
    try:
        table = json.loads(decode_text(content))
    except (RecursionError, ValueError) as error:
        raise DamagedUsers(f"{where} is not JSON: {error}" if content.strip() else f"{where} is empty") from None
    try:
        if isinstance(table, dict):
            take_checksum(table)
    except ChecksumMismatch as error:
        raise ChangedUsers(f"{where}: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("users"), dict):
        raise ConfigurationError(f"{where} is not a users file: it has no object 'users'")
    if table.get("version") != VERSION:
        raise ConfigurationError(
            f"{where} has version {table.get('version')!r}, but this release reads only {VERSION}; use the release "
            "that wrote it"
        )
    users = {name: _parse_user(name, row, where) for name, row in table["users"].items()}
    _check_keys_differ(users, where)
    decoy = _bytes_of(table.get("decoy"), 1, 1_024) or secrets.token_bytes(DECOY_BYTES)
    return Users(users, decoy, {key: table[key] for key in table if key not in ("version", "decoy", "users")})


def _check_keys_differ(users: dict[str, User], where: str) -> None:
    """Raise ``ConfigurationError`` if one access key would sign for two users."""
    owner: dict[str, str] = {}
    for user in users.values():
        for each in user.access_keys:
            if each.key in owner:
                raise ConfigurationError(
                    f"{where}: access key {each.key} is that of {owner[each.key]!r} and of {user.name!r}; remove one"
                )
            owner[each.key] = user.name


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
    access_keys = parse_access_keys(row.get("access_keys", []), f"{where}: user {name!r}")
    other = {key: row[key] for key in row if key not in ("scram", "permissions", "access_keys")}
    return User(name, verifier, tuple(permissions), other, access_keys)


def parse_verifier(scram: dict[str, Any], where: str) -> Verifier:
    """Return the verifier in an object ``scram``. Raises ``ConfigurationError``, which names the field at fault."""
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
            f"{where} needs scram.salt, scram.storedKey and scram.serverKey in base64, the two keys with "
            f"{KEY_BYTES} bytes each; flintmq user passwd writes them again"
        )
    return Verifier(iterations, salt, stored_key, server_key)


def encode_users(users: Users) -> str:
    rows = {user.name: _user_row(user) for user in users.by_name.values()}
    table = {"version": VERSION, "decoy": _text_of(users.decoy), **users.other, "users": rows}
    return encode_checked(table)


def _user_row(user: User) -> dict[str, Any]:
    row = {"scram": verifier_row(user.verifier), "permissions": list(user.permissions), **user.other}
    return row | {"access_keys": [each.as_json() for each in user.access_keys]} if user.access_keys else row


def verifier_row(verifier: Verifier) -> dict[str, Any]:
    """Return the object ``scram`` of a verifier, as ``parse_verifier`` reads it."""
    return {
        "iterations": verifier.iterations,
        "salt": _text_of(verifier.salt),
        "storedKey": _text_of(verifier.stored_key),
        "serverKey": _text_of(verifier.server_key),
    }


def _text_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes_of(text: Any, low: int, high: int) -> bytes:
    """Decode base64; return no bytes if ``text`` is not base64 of ``low`` to ``high`` bytes."""
    try:
        value = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
    return value if low <= len(value) <= high else b""


# ---- Reading and replacing the users file in a store's folder, which a running broker reloads.
#
# A change writes a new file and renames it over the old one, so that a reader always gets a complete file.
# The copy is replaced first (see ``protocol.users``). A lock on the folder keeps two concurrent changes from
# undoing each other. Both the broker and ``flintmq user --store`` use this module.

STORE_FOLDERS = ("commitlog", "config")
"""Folders of which every store has at least one."""


class UserFile:
    """The users file of a store. Every method raises ``ConfigurationError`` if it fails."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.store = Path(store).expanduser()
        self.path = self.store / USERS_FILE
        self.backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
        self.damage = ""
        """Problem of the file if the last read had to use its copy; empty if there was none."""
        refuse_backup(self.store)
        if not any((self.store / name).is_dir() for name in STORE_FOLDERS):
            raise ConfigurationError(
                f"there is no store in {str(self.store)!r}: pass the folder with --store; a broker creates it at its "
                f"first start (flintmq-broker serve --store {self.store})"
            )

    def read(self) -> Users:
        """Return the users, and set ``damage`` if the copy had to be used."""
        users, self.damage = choose_users(self._content(self.path), self._content(self.backup), str(self.path))
        return users

    def _content(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal("cannot be read", error) from None

    def change(self, edit: Callable[[Users], Users]) -> Users:
        """Replace the users by the result of ``edit`` unless it raises; return the new users."""
        with self._locked():
            users = edit(self.read())
            self._write_both(users)
        return users

    def replace(self, users: Users) -> None:
        """Replace the users, whatever the file has, even damage."""
        with self._locked():
            self._write_both(users)

    def _write_both(self, users: Users) -> None:
        try:
            for left in self.path.parent.glob(f".{self.path.name}*.tmp"):
                left.unlink()  # left over from a change that was killed
            text = encode_users(users)
            # The copy must never be older than the file, so it is written first. Only if there is no file yet, the
            # file comes first: a copy without a file means that the file was lost.
            for path in (self.backup, self.path) if self.path.exists() else (self.path, self.backup):
                self._write(path, text)
        except OSError as error:
            raise self._refusal("cannot be written", error) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # a broker does not run on such a system
            raise ConfigurationError("users can be changed only on Linux, where the broker runs") from None
        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir(FOLDER_MODE)
                self._give_to_owner(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise self._refusal("cannot be written", error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, path: Path, text: str) -> None:
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            self._give_to_owner(fresh)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _give_to_owner(self, path: Path) -> None:
        """Give a file that root created to the owner of the store, so that the broker can read it."""
        if os.geteuid() == 0:
            owner = self.store.stat()
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _refusal(self, what: str, error: Exception) -> ConfigurationError:
        remedy = "; do it as the user that the broker runs as" if isinstance(error, PermissionError) else ""
        reason = getattr(error, "strerror", None) or error
        return ConfigurationError(f"the users file {str(self.path)!r} {what}: {reason}{remedy}")
