"""``flintmq/following.json``: says that a store's log is a RocketMQ master's, which nothing else may append to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CorruptFile, FollowsMaster
from ..files.file_system import make_durable_folder, replace_file

if TYPE_CHECKING:
    from ..files.file_system import Files


class FollowedMaster:
    """The note of one store. It exists from the first byte that is copied until the store is promoted."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self.is_expected = False
        """True if this process opens the store to continue or to end the migration."""

    def check(self) -> None:
        """Raise ``FollowsMaster`` if there is a note and this process does not expect it."""
        if self._path.exists() and not self.is_expected:
            raise FollowsMaster(
                f"{self._path.parents[1]} follows the RocketMQ master {self.address()}: a message that another program "
                "appends would end that. Continue with `flintmq-broker follow-rocketmq`, or take the store over with "
                "`flintmq-broker promote`"
            )

    def address(self) -> str:
        """Return the master's address, HOST:PORT; empty if the store follows none. Raises ``CorruptFile``."""
        try:
            return str(json.loads(self._path.read_bytes())["master"])
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(
                f"{self._path} says which RocketMQ master the store follows, and is damaged: {error}. Remove it, then "
                "run `flintmq-broker follow-rocketmq` again, which compares the store with its master. Nothing was "
                "changed"
            ) from error

    def note(self, address: str) -> None:
        """Note the master's address, HOST:PORT; durable when it returns."""
        make_durable_folder(self._files, self._path.parent)
        replace_file(self._files, self._path, json.dumps({"master": address}).encode())

    def remove(self) -> None:
        """Remove the note, if there is one; durable when it returns."""
        if self._path.exists():
            self._files.unlink(self._path)
            self._files.sync_folder(self._path.parent)
