"""Reading and replacing the users file in a store's folder, which a running broker reloads.

A change writes a new file and renames it over the old one, so that a reader always gets a complete file. The copy is
replaced first (see ``protocol.users``). A lock on the folder keeps two concurrent changes from undoing each other. Both
the broker and ``flintmq user --store`` use this module.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from ..backup_folder import refuse_backup
from ..errors import ConfigurationError
from ..store_files import FILE_MODE, FOLDER_MODE
from .users import BACKUP_SUFFIX, USERS_FILE, Users, choose_users, encode_users

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
