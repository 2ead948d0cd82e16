"""The users of a store as the broker sees them. It reads their file again after a change."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import ADMIN, ANY, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need, Permissions
from ...protocol.auth.scram import (
    ITERATIONS,
    KEY_BYTES,
    MECHANISM,
    SALT_BYTES,
    ProofWrong,
    ScramError,
    ServerExchange,
    Verifier,
    hmac_of,
)
from ...protocol.auth.users import BACKUP_SUFFIX, USERS_FILE, User, Users, choose_users
from ...protocol.errors import AuthenticationFailed, AuthenticationRequired, ConfigurationError, NoPermission

if TYPE_CHECKING:
    from ...protocol.auth.scram import AccessKey
    from .backoff import LoginBackoff

__all__ = ["USERS_FILE", "User", "UserTable"]

log = logging.getLogger(__name__)

_MISSING = (0, 0, 0)


class UserTable:
    """The users in ``flintmq/users.json`` of the store ``path``. Runs on the event loop.

    ``flintmq user`` replaces the file, even while a broker runs; ``refresh`` checks for this. ``generation`` counts the
    changes that were read. If the file cannot be read, the known users stay. If it is damaged (not JSON), its backup
    copy counts.
    """

    def __init__(self, path: Path) -> None:
        self.store = path
        self.path = path / USERS_FILE
        self.generation = 0
        self._users = Users()
        self._by_access_key: dict[str, tuple[User, AccessKey]] = {}
        self._iterations: frozenset[int] = frozenset({ITERATIONS})
        """Iteration counts of the users' verifiers."""
        self._seen = _MISSING

    def load(self) -> None:
        """Read the file; without a file there are no users. Raises ``ConfigurationError`` if it is damaged."""
        self._seen = self._stat()
        self._take(self._read())

    def refresh(self) -> bool:
        """Read the file again if it was replaced; return whether it was. Costs one ``stat`` if it was not."""
        try:
            seen = self._stat()
            if seen == self._seen:
                return False
            # Before the file is read: if it is replaced meanwhile, the next look sees that; if it is damaged, it is
            # logged once.
            self._seen = seen
            self._take(self._read())
        except (ConfigurationError, OSError) as error:
            log.error("keeping the users as they were: %s", error)
            return False
        log.info("reloaded %s: %d users", self.path, len(self))
        return True

    def _take(self, users: Users) -> None:
        self._users = users
        found = frozenset(user.verifier.iterations for user in users.by_name.values())
        self._iterations = found or frozenset({ITERATIONS})
        self._by_access_key = {each.key: (user, each) for user in users.by_name.values() for each in user.access_keys}
        self.generation += 1

    def with_access_key(self, key: str) -> tuple[User, AccessKey] | None:
        """Return the user that has an access key, and the key; None if no user has it."""
        return self._by_access_key.get(key)

    def get(self, name: str) -> User | None:
        return self._users.by_name.get(name)

    def verifier(self, name: str) -> Verifier:
        """Return the verifier that checks a proof of ``name``.

        For an unknown name this is a decoy that no proof matches, with a salt that is always the same. So an attacker
        cannot tell from the response or its timing whether a user exists. The decoy's iteration count is that of some
        user, since otherwise users that were created with an older count would stand out.
        """
        # The decoy is computed for existing users too, so that both cases take equally long.
        decoy = hmac_of(self._users.decoy, name.encode("utf-8", "surrogatepass"))
        iterations = max(self._iterations, key=lambda count: hmac_of(decoy, b"%d" % count))
        invented = Verifier(iterations, decoy[:SALT_BYTES], os.urandom(KEY_BYTES), os.urandom(KEY_BYTES))
        user = self._users.by_name.get(name)
        return invented if user is None else user.verifier

    def __iter__(self) -> Iterator[User]:
        return iter(list(self._users.by_name.values()))

    def __len__(self) -> int:
        return len(self._users.by_name)

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return _MISSING
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Users:
        backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
        content = self._content(self.path)
        users, damage = choose_users(content, self._content(backup), str(self.path))
        if damage:
            log.error("%s; the next change with flintmq user writes both files again", damage)
        return users if content is not None else replace(users, decoy=self._users.decoy)

    @staticmethod
    def _content(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"cannot read the users in {path}: {error}") from None


# ---- Permissions of a connection's user: cached checks for every request, and the refusal messages.

NAME_CHARS_MAX = 255
"""Longest name whose checks are cached: no topic or group has a longer name."""
QUERY_BROKER = Need((QUERY,), BROKER)
REMEMBERED_MAX = 4_096
"""Maximum number of cached checks of a user; when it is reached, the cache is cleared."""


class UserRights:
    """The rights of one user. Runs on the event loop; all connections of the user share it.

    ``name``: the user. Each need is checked against the grants once, and again after ``change``.
    """

    __slots__ = ("_met", "name", "permissions", "publishes")

    def __init__(self, name: str, permissions: Permissions) -> None:
        self.name = name
        self.permissions = permissions
        self.publishes: set[str] = set()
        """Topics that the user may publish to, as far as checked. A PRODUCE looks only here."""
        self._met: dict[Need, bool] = {}

    def change(self, permissions: Permissions) -> None:
        """Replace the user's grants, for all connections at once."""
        self.permissions = permissions
        self.publishes.clear()
        self._met.clear()

    def meets(self, need: Need) -> bool:
        met = self._met.get(need)
        if met is None and len(need.name) > NAME_CHARS_MAX:  # a client could fill the cache with long names
            return self.permissions.meets(need)
        if met is None:
            # Both at once: ``publishes`` has only topics that were checked, so this bounds it too.
            if len(self._met) >= REMEMBERED_MAX:
                self._met.clear()
                self.publishes.clear()
            met = self._met[need] = self.permissions.meets(need)
        return met

    def check(self, need: Need) -> None:
        """Raise ``NoPermission``, with the missing permission and how to grant it, if the user lacks it.

        The message does not reveal whether the topic or group exists.
        """
        if not self.meets(need):
            raise NoPermission(self.refusal(need))

    def refusal(self, need: Need) -> str:
        """Return the message that names the missing permission and the command that grants it."""
        return f"user {self.name} has no permission: {need}; grant it with {_grant_command(self.name, need)}"

    def check_publish(self, topic: str) -> None:
        """Check that the user may publish to a topic, and cache that in ``publishes``. Raises ``NoPermission``."""
        self.check(Need((PUBLISH,), TOPIC, topic))
        self.publishes.add(topic)

    def allows(self, action: str, kind: str, name: str = "") -> bool:
        return self.meets(Need((action,), kind, name))

    def sees(self, kind: str, name: str) -> bool:
        """Return whether lists show this topic or group to the user: it needs any right on it."""
        return self.permissions.sees(kind, name)

    @property
    def sees_all(self) -> bool:
        """Return whether the user may see statistics of the whole broker."""
        return self.meets(QUERY_BROKER)


def _grant_command(user: str, need: Need) -> str:
    action = need.actions[0]
    if need.kind == BROKER:
        option = "--admin" if action == ADMIN else "--query-broker"
    elif need.kind == GROUP:
        option = f"{_GROUP_OPTIONS[action]} {_quoted(need.name)}"
    else:
        option = f"--{_TOPIC_OPTIONS[action]} {_quoted(need.name)}"
    return f"`flintmq user grant {user} {option}`"


_TOPIC_OPTIONS = {PUBLISH: "publish", CONSUME: "consume", QUERY: "query", ADMIN: "manage"}
_GROUP_OPTIONS = {PUBLISH: "--producer-group", CONSUME: "--group", QUERY: "--query-group", ADMIN: "--manage-group"}


def _quoted(name: str) -> str:
    if name == ANY or len(name) > NAME_CHARS_MAX:
        return "NAME"
    return f"'{name}'" if not name.replace("_", "").replace("-", "").isalnum() else name


class AccessTable:
    """The rights of all users, by name. ``changed`` is called when a user may have lost rights."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._by_user: dict[str, UserRights] = {}
        self._raw: dict[str, object] = {}
        self._changed = changed

    def of(self, name: str, raw: object) -> UserRights:
        """Return the rights of a user. ``raw``: its grants as stored in the users file."""
        access = self._by_user.get(name)
        if access is None:
            self._raw[name] = raw
            access = self._by_user[name] = UserRights(name, _parsed(name, raw))
        elif raw != self._raw[name]:
            self._change(access, raw)
            self._changed()
        return access

    def _change(self, access: UserRights, raw: object) -> None:
        self._raw[access.name] = raw
        access.change(_parsed(access.name, raw))

    def update(self, users: Mapping[str, object]) -> None:
        """Apply a change of the users file. ``users``: grants of all users; users missing from it lose all rights."""
        changed = False
        for name, access in self._by_user.items():
            raw = users.get(name, ())
            if raw != self._raw[name]:
                self._change(access, raw)
                changed = True
        if changed:
            self._changed()


def _parsed(name: str, raw: object) -> Permissions:
    try:
        return Permissions.parse(raw, name)
    except ConfigurationError as error:
        log.error("%s; the user has no permissions until this is fixed", error)
        return Permissions()


# ---- Authentication of connections: SCRAM-SHA-256 with the store's users, and a pause after each failure.

WRONG = "the user or the password is wrong"
"""The same message for an unknown user, so that no client can find out which users exist."""
FRAME_BYTES_MAX = 4096
"""Maximum size of a frame before authentication."""
NAME_CHARS_LOGGED = 64


def not_authenticated() -> AuthenticationRequired:
    """Return the error of a request other than HELLO and AUTH on a connection that has not authenticated."""
    return AuthenticationRequired(
        "this broker requires authentication, and the connection has not authenticated: send AUTH with "
        f"{MECHANISM} after HELLO; give the client a user and a password"
    )


class Authenticator:
    """The authentication of one broker. Runs on the event loop. ``failures``, ``successes``: counts since the start."""

    def __init__(self, users: UserTable, backoff: LoginBackoff) -> None:
        self.users = users
        self.backoff = backoff
        self.failures = 0
        self.successes = 0

    def begin(self, client_first: str) -> tuple[ServerExchange, str]:
        """Begin an exchange with the client's first message. Return (the exchange, the response).

        Raises ``AuthenticationFailed`` if the message is malformed.
        """
        # A user that was just added can authenticate at once.
        self.users.refresh()
        exchange = ServerExchange(self.users.verifier)
        try:
            return exchange, exchange.first(client_first)
        except ScramError as error:
            raise AuthenticationFailed(str(error)) from None

    def finish(self, exchange: ServerExchange, client_final: str, host: str) -> tuple[User, str]:
        """Check a client's proof, when the backoff gives the attempt its turn. Return (the user, the response).

        Raises ``AuthenticationFailed`` if the proof is wrong; then the user's next attempt from ``host`` has to wait.
        """
        try:
            user, answer = self._judge(exchange, client_final)
        except AuthenticationFailed as error:
            # Before the connection hears of it: its next attempt must already meet the pause.
            self.record_failure(host, exchange.name, error.message)
            raise
        self.successes += 1
        return user, answer

    def record_failure(self, host: str, name: str, reason: str) -> None:
        """Note a failed attempt of ``host`` as the user, or with the access key, ``name``; the next one has to wait."""
        self.failures += 1
        pause_s = self.backoff.record_failure(host, name)
        log.warning(
            "%s failed to authenticate as %s: %s; the next such attempt from this address waits %.1f s",
            host,
            ascii(name[:NAME_CHARS_LOGGED]),
            reason,
            pause_s,
        )

    def _judge(self, exchange: ServerExchange, client_final: str) -> tuple[User, str]:
        try:
            answer = exchange.final(client_final)
        except ProofWrong:
            raise AuthenticationFailed(WRONG) from None
        except ScramError as error:
            raise AuthenticationFailed(str(error)) from None
        user = self.users.get(exchange.name)
        if user is None or user.verifier != exchange.verifier:  # changed since the exchange began
            raise AuthenticationFailed(WRONG)
        return user, answer
