"""The users of a store as the broker sees them. It reads their file again after a change."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.auth.scram import ITERATIONS, KEY_BYTES, SALT_BYTES, Verifier, hmac_of
from ...protocol.auth.users import BACKUP_SUFFIX, USERS_FILE, User, Users, choose_users
from ...protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from ...protocol.auth.access_keys import AccessKey

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
        """Return the user with this name, or None."""
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
