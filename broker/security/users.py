"""The users of a store, as the broker sees them: read again when their file changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...protocol.errors import ConfigurationError
from ...protocol.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, Verifier, hmac_of
from ...protocol.users import BACKUP_SUFFIX, USERS_FILE, User, Users, choose_users

__all__ = ["USERS_FILE", "User", "UserTable"]

log = logging.getLogger(__name__)

_MISSING = (0, 0, 0)


class UserTable:
    """What ``flintmq/users.json`` of the store ``path`` says. Belongs to the event loop.

    ``flintmq user`` replaces the file, also beside a running broker; ``refresh`` looks whether it did. ``generation``
    counts the changes that were read. A file that cannot be read changes nothing: those who were users stay. One that
    is no JSON is damaged: then its copy says who they are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / USERS_FILE
        self.generation = 0
        self._users = Users()
        self._iterations: frozenset[int] = frozenset({ITERATIONS})
        """Each that some user's verifier has."""
        self._seen = _MISSING

    def load(self) -> None:
        """Read the file; where there is none, there are no users. Raises ``ConfigurationError`` where it is damaged."""
        self._seen = self._stat()
        self._take(self._read())

    def refresh(self) -> bool:
        """Read the file again if it was replaced; whether anything may have changed. One ``stat`` where not."""
        try:
            seen = self._stat()
            if seen == self._seen:
                return False
            self._seen = seen
            self._take(self._read())
        except (ConfigurationError, OSError) as error:
            log.error("the users stay as they were: %s", error)
            return False
        log.info("%s was read again: %d users", self.path, len(self))
        return True

    def _take(self, users: Users) -> None:
        self._users = users
        found = frozenset(user.verifier.iterations for user in users.by_name.values())
        self._iterations = found or frozenset({ITERATIONS})
        self.generation += 1

    def get(self, name: str) -> User | None:
        """The user of that name."""
        return self._users.by_name.get(name)

    def verifier(self, name: str) -> Verifier:
        """What a proof of ``name`` is checked with. Of a name that nobody has it is one that no proof can meet, always
        the same: what a stranger learns, and how long it takes, is the same for both. It has as many iterations as some
        users have: those who were made with others than are usual now would stand out."""
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
            log.error("%s; flintmq user writes both anew with its next change", damage)
        return users if content is not None else replace(users, decoy=self._users.decoy)

    @staticmethod
    def _content(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"the users in {path} cannot be read: {error}") from None
