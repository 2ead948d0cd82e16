"""The file of users in a store's folder, read and replaced; a running broker notices.

A change writes a new file that takes the place of the old one: a reader gets either the one or the other, whole. Its
copy gets the same, and first: see ``protocol.users``. A lock on the folder keeps two changes from undoing each other.
The broker and ``flintmq user --store`` use it alike.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from .backup_folder import refuse_backup
from .errors import ConfigurationError
from .users import BACKUP_SUFFIX, USERS_FILE, Users, choose_users, encode_users

FILE_MODE = 0o600
STORE_FOLDERS = ("commitlog", "config")
"""One of them is in every store."""


class UserFile:
    """The users of the store in a folder. Every method raises ``ConfigurationError`` for what cannot be done."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.store = Path(store).expanduser()
        self.path = self.store / USERS_FILE
        self.backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
        self.damage = ""
        """What was wrong with the file when it was last read and its copy had to serve; empty: nothing."""
        refuse_backup(self.store)
        if not any((self.store / name).is_dir() for name in STORE_FOLDERS):
            raise ConfigurationError(
                f"there is no store in {str(self.store)!r}: name the folder with --store; a broker makes it when it "
                f"first starts (flintmq-broker serve --store {self.store})"
            )

    def read(self) -> Users:
        """Return the users; ``damage`` says whether their copy had to serve."""
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
        """Replace the users by what ``edit`` makes of them, if it does not raise; what there is now."""
        with self._locked():
            users = edit(self.read())
            try:
                for left in self.path.parent.glob(f".{self.path.name}*.tmp"):
                    left.unlink()  # of a change that was killed
                text = encode_users(users)
                # The copy is never older than the file; alone it would be a file that was lost.
                for path in (self.backup, self.path) if self.path.exists() else (self.path, self.backup):
                    self._write(path, text)
            except OSError as error:
                raise self._refusal("cannot be written", error) from None
        return users

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # no store is kept on such a system
            raise ConfigurationError("users can be changed only where brokers run: on Linux") from None
        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir()
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
        """What root makes must be readable for the broker, which runs as the one who owns the store."""
        if os.geteuid() == 0:
            owner = self.store.stat()
            os.chown(path, owner.st_uid, owner.st_gid)

    def _refusal(self, what: str, error: Exception) -> ConfigurationError:
        remedy = "; do it as the user that the broker runs as" if isinstance(error, PermissionError) else ""
        reason = getattr(error, "strerror", None) or error
        return ConfigurationError(f"the users in {str(self.path)!r} {what}: {reason}{remedy}")
