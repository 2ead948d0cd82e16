"""The audit log: what was changed, or was to be changed, by whom. One line of JSON each, for programs and people.

Never in it: message bodies, keys of messages, passwords or anything that proves who somebody is. Names and values come
from clients: whatever is not printable ASCII is written as JSON escapes it, and a line has a greatest length.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...protocol.errors import ConfigurationError

LOGGER = "flintmq.audit"
DONE = "done"
LINE_CHARS_MAX = 4_096
TEXT_CHARS_MAX = 255
"""Longest name in a line; of a longer one the beginning is kept."""
ITEMS_MAX = 32
"""Most entries of one value, such as queues that were reset; how many more there were is said."""
REFUSED_A_MINUTE_MAX = 600
"""Most lines a minute about what was refused: who asks without a right must not fill a disk. Those left out are
counted in the next line."""

_CUT_ITEM = "…"


class AuditLog:
    """Writes to the logger ``flintmq.audit``: with ``path`` to that file alone, else to wherever the broker logs.

    Belongs to the event loop. ``clock``: seconds since 1970.
    """

    def __init__(self, path: str = "", *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._log = logging.getLogger(LOGGER)
        self._handler = _handler(Path(path).expanduser()) if path else None
        if self._handler is not None:
            self._log.addHandler(self._handler)
            self._log.propagate = False
        self._log.setLevel(logging.INFO)
        self._minute = 0
        self._refused = 0
        self._left_out = 0

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._log.removeHandler(self._handler)
            self._handler.close()
            self._log.propagate = True

    def write(
        self, action: str, target: str, *, outcome: str = DONE, user: str = "", address: str = "", client: str = "",
        before: Any = None, after: Any = None, reason: str = "",
    ) -> None:  # fmt: skip
        """Add a line.

        ``action``: what, mostly a command's name; ``target``: to which object; ``user``: empty where nobody has to say
        who they are; ``client``: what it calls itself; ``outcome``: ``done``, or the name of the error, with its
        ``reason``.
        """
        entry: dict[str, Any] = {"time": self._now(), "action": action, "object": target}
        if outcome != DONE and not self._may_refuse():
            return
        if self._left_out and outcome != DONE:
            entry["left_out"], self._left_out = self._left_out, 0
        entry |= {"user": user, "address": address, "client": client, "before": before, "after": after}
        entry |= {"outcome": outcome, "reason": reason}
        self._log.info("%s", encode(entry))

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _may_refuse(self) -> bool:
        minute = int(self._clock()) // 60
        if minute != self._minute:
            self._minute, self._refused = minute, 0
        self._refused += 1
        if self._refused > REFUSED_A_MINUTE_MAX:
            self._left_out += 1
            return False
        return True


def encode(entry: dict[str, Any]) -> str:
    """One line of printable ASCII, of ``LINE_CHARS_MAX`` characters at most; what is empty is left out."""
    kept = {name: _bounded(value) for name, value in entry.items() if value not in ("", None)}
    line = json.dumps(kept)
    for name in ("before", "after", "reason", "client"):
        if len(line) <= LINE_CHARS_MAX:
            break
        if name in kept:
            kept[name] = _CUT_ITEM
            line = json.dumps(kept)
    return line


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS_MAX else f"{value[:TEXT_CHARS_MAX]}{_CUT_ITEM}"
    if isinstance(value, dict):
        items = list(value.items())
        kept = {str(_bounded(str(key))): _bounded(item) for key, item in items[:ITEMS_MAX]}
        return kept if len(items) <= ITEMS_MAX else {**kept, _CUT_ITEM: f"{len(items) - ITEMS_MAX} more"}
    if isinstance(value, list | tuple):
        kept_items = [_bounded(item) for item in value[:ITEMS_MAX]]
        return kept_items if len(value) <= ITEMS_MAX else [*kept_items, f"{len(value) - ITEMS_MAX} more"]
    return value


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """A file that only its owner reads; made anew where somebody moves it away, as ``logrotate`` does."""

    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, self.mode, encoding="ascii")


def _handler(path: Path) -> logging.Handler:
    try:
        handler = _PrivateFile(path, encoding="ascii")
    except OSError as error:
        raise ConfigurationError(
            f"log.audit = {str(path)!r}: cannot be written: {error.strerror}; choose a file in a folder that is there, "
            'or "" for the log of the broker'
        ) from None
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
