"""One JSON table on disk: RocketMQ's shape, FlintMQ's checksum, and the table before it as ``.bak``.

RocketMQ writes tables with fastjson, whose integer keys are not quoted; both forms are read, standard JSON is written.
It passes over the checksum when it reads, and leaves it out when it writes: it is there where FlintMQ wrote last.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ....protocol.checked_json import encode_checked, take_checksum
from ..errors import CorruptFile
from .file_system import Files, make_durable_folder, replace_file

SHAPE_ERRORS = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading a table of an unknown shape raises."""

_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|([{,]\s*)(-?\d+)(?=\s*:)')

T = TypeVar("T")

log = logging.getLogger(__name__)


def parse_table(text: str) -> dict[str, Any]:
    """A table's content without its checksum, from text with or without quotes around integer keys.

    Raises ``ValueError`` where it is no JSON object, or not what its checksum was made of.
    """

    def quote(match: re.Match[str]) -> str:
        return f'{match[1]}"{match[2]}"' if match[2] else match[0]

    value = json.loads(_BARE_KEY.sub(quote, text))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    take_checksum(value)
    return value


class ConfigFile:
    """One table on disk, and the one before it as ``.bak``. ``when_empty``: what it costs to begin with an empty one,
    for who has lost both."""

    def __init__(self, files: Files, path: Path, when_empty: str = "") -> None:
        self._files = files
        self.path = path
        self._bak = path.with_name(path.name + ".bak")
        self._when_empty = when_empty
        self._broken = False
        """Whether the file itself could not be read: then it must not become the ``.bak``."""

    @property
    def is_there(self) -> bool:
        """Whether the file or its ``.bak`` is there, readable or not."""
        return self.path.exists() or self._bak.exists()

    def load(self, read: Callable[[dict[str, Any]], T]) -> T:
        """What ``read`` makes of the table: of the file, else of its ``.bak``, of an empty one where there is neither.

        A file that is there and cannot be read is named in the log. Raises ``CorruptFile`` where none can be read.
        ``read`` says that it cannot by any of ``SHAPE_ERRORS``.
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
                log.error("%s. %s is taken instead: what was changed since it was written is lost", problems[0], path)
            return found
        if problems:
            cost = f" ({self._when_empty})" if self._when_empty else ""
            raise CorruptFile(
                f"{'; '.join(problems)}. Restore {self.path} or its .bak from a backup, or move both away to begin "
                f"with an empty table{cost}"
            )
        return read({})

    @staticmethod
    def _parse(path: Path) -> dict[str, Any]:
        if not path.is_file():  # looked at first: to open a pipe is to wait for who writes into it
            if os.path.lexists(path):
                raise ValueError("it is no file")
            raise FileNotFoundError(path)
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        return parse_table(text)

    def save(self, table: dict[str, Any], *, backed_up: bool = False) -> None:
        """Replace the table; the one before becomes the ``.bak``. Durable when it returns.

        ``backed_up``: the ``.bak`` is made the same as the table then, where an older one would mislead who has to take
        it.
        """
        make_durable_folder(self._files, self.path.parent)
        if not self._broken and self.path.exists():
            replace_file(self._files, self._bak, self.path.read_bytes())
        blob = encode_checked(table).encode()
        replace_file(self._files, self.path, blob)
        self._broken = False
        if backed_up:
            replace_file(self._files, self._bak, blob)
