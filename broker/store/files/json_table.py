"""A JSON table on disk in RocketMQ's shape, with FlintMQ's checksum and its previous version as ``.bak``.

RocketMQ writes tables with fastjson, which does not quote integer keys. FlintMQ reads both forms and writes standard
JSON. RocketMQ ignores the checksum when it reads and omits it when it writes, so a table has one only if FlintMQ was
the last to write it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.checked_json import CHECKSUM_KEY, encode_checked, take_checksum
from ....protocol.fields import I64_MAX
from ....protocol.text_files import decode_text
from ..errors import CorruptFile
from .file_system import make_durable_folder, replace_file

if TYPE_CHECKING:
    from .file_system import Files

SHAPE_ERRORS = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions that reading a table of an unexpected shape raises."""

VALUES_MAX = 8_000_000
"""Maximum number of values in a table: a million topics have fewer."""

# The first alternative consumes strings whole, so that a key-like text inside of one stays as it is.
_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|([{,]\s*)(-?\d+)(?=\s*:)')

T = TypeVar("T")

log = logging.getLogger(__name__)


def integer_of(value: Any, low: int, high: int, what: str) -> int:
    """Return a number of a table, or the number that a text of it is. Raises ``ValueError`` if it is out of range."""
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{what} must be from {low:,} to {high:,}, not {str(value)[:40]}")
    return number


def _parse_int(digits: str) -> int:
    # A larger number can be neither stored nor sent.
    return integer_of(digits, -I64_MAX - 1, I64_MAX, "a number")


def parse_table(text: str) -> dict[str, Any]:
    """Parse a table from text, with or without quotes around integer keys; returns it without its checksum.

    Raises ``ValueError`` if the text is not a JSON object, does not match its checksum, or is too large.
    """
    # Before memory is spent on them: each value takes up to 100 bytes, from as few as three.
    if (count := sum(map(text.count, ",[{"))) > VALUES_MAX:
        raise ValueError(f"a table of {count:,} values; the maximum is {VALUES_MAX:,}")

    value = _parse_json(text)
    take_checksum(value)
    return value


def _parse_json(text: str) -> dict[str, Any]:
    def quote(match: re.Match[str]) -> str:
        return f'{match[1]}"{match[2]}"' if match[2] else match[0]

    value = json.loads(_BARE_KEY.sub(quote, text), parse_int=_parse_int)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


class ConfigFile:
    """One table on disk, with its previous version as ``.bak``.

    ``when_empty``: what is lost by starting with an empty table, for the error message if neither can be read.
    """

    def __init__(self, files: Files, path: Path, when_empty: str = "") -> None:
        self._files = files
        self.path = path
        self._bak = path.with_name(path.name + ".bak")
        self._when_empty = when_empty
        self._broken = False
        """True if the file itself could not be read: ``save`` must not make it the ``.bak``."""
        self.is_own = False
        """True if the table that ``load`` returned has a checksum: FlintMQ was the last to write it."""

    @property
    def is_there(self) -> bool:
        """Return whether the file or its ``.bak`` exists, readable or not."""
        return self.path.exists() or self._bak.exists()

    def load(self, read: Callable[[dict[str, Any]], T]) -> T:
        """Return the result of ``read`` for the file, else for its ``.bak``, or for an empty table if neither exists.

        Logs an error for a file that exists but cannot be read. Raises ``CorruptFile`` if files exist and none can be
        read. ``read`` raises one of ``SHAPE_ERRORS`` to reject a table.
        """
        problems = []
        for path in (self.path, self._bak):
            try:
                found = read(self._parse(path))
            except FileNotFoundError:
                continue
            except SHAPE_ERRORS as error:
                problems.append(f"{path} cannot be read: {type(error).__name__}: {error}")
                self._broken = self._broken or path == self.path
                continue
            if problems:
                log.error("%s. Using %s instead: changes made since it was written are lost", problems[0], path)
            return found
        if problems:
            cost = f" ({self._when_empty})" if self._when_empty else ""
            raise CorruptFile(
                f"{'; '.join(problems)}. Restore {self.path} or its .bak from a backup, or move both away to begin "
                f"with an empty table{cost}"
            )
        return read({})

    def _parse(self, path: Path) -> dict[str, Any]:
        if not path.is_file():  # checked before opening: opening a named pipe blocks until another process writes to it
            if os.path.lexists(path):
                raise ValueError("it is not a file")
            raise FileNotFoundError(path)
        text = decode_text(path.read_bytes())
        if not text.strip():
            raise ValueError("it is empty")
        table = _parse_json(text)
        self.is_own = CHECKSUM_KEY in table
        take_checksum(table)
        return table

    def save(self, table: dict[str, Any], *, backed_up: bool = False) -> None:
        """Replace the table; its previous version becomes the ``.bak``. Durable when it returns.

        ``backed_up``: afterwards make the ``.bak`` a copy of the new table, for tables whose previous version would be
        wrong to restore.
        """
        make_durable_folder(self._files, self.path.parent)
        if not self._broken and self.path.exists():
            # Copied, not renamed: the table itself exists at every moment.
            replace_file(self._files, self._bak, self.path.read_bytes())
        blob = encode_checked(table).encode()
        replace_file(self._files, self.path, blob)
        self._broken = False
        if backed_up:
            replace_file(self._files, self._bak, blob)


def next_data_version(before: Any) -> dict[str, int]:
    """Return the ``dataVersion`` that follows ``before``."""
    counter = before.get("counter") if isinstance(before, dict) else None
    return {
        "counter": counter + 1 if isinstance(counter, int) else 1,
        "stateVersion": 0,
        "timestamp": int(time.time() * 1000),
    }
