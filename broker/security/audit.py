"""The audit log: changes and refused changes, with the user. One line of JSON each, for programs and people.

It never contains message bodies, message keys, passwords or proofs of identity. Names and values come from clients, so
everything except printable ASCII is escaped as in JSON, and the length of a line is limited.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from .users import User

LOGGER = "flintmq.audit"
DONE = "done"
LINE_CHARS_MAX = 4_096
TEXT_CHARS_MAX = 255
"""Maximum length of a name in a line; a longer one is truncated."""
ITEMS_MAX = 32
"""Maximum number of entries of one value, such as queues that were reset; the number of omitted ones is added."""
REFUSED_A_MINUTE_MAX = 600
"""Maximum number of lines a minute for refused requests: a client without permission must not fill the disk. The next
line has the number of omitted ones."""

_CUT_ITEM = "…"


@dataclass(frozen=True, slots=True)
class Author:
    """The client that asked for a change. ``client``: the name that it gave itself.

    ``user`` is empty without authentication.
    """

    user: str = ""
    address: str = ""
    client: str = ""


_UNKNOWN = Author()


class AuditLog:
    """Writer to the logger ``flintmq.audit``: with ``path`` only to that file, otherwise to the broker's log.

    Runs on the event loop. ``clock``: seconds since 1970.
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
        if self._handler is not None:
            self._log.removeHandler(self._handler)
            self._handler.close()
            self._log.propagate = True

    def write(
        self,
        action: str,
        target: str,
        *,
        author: Author | None = None,
        outcome: str = DONE,
        before: Any = None,
        after: Any = None,
        reason: str = "",
    ) -> None:
        """Add a line.

        ``action``: usually a command's name; ``target``: the object; ``author``: None if the broker only noticed the
        change; ``outcome``: ``done``, or the name of the error, with its ``reason``.
        """
        entry: dict[str, Any] = {"time": self._now(), "action": action, "object": target}
        if outcome != DONE and not self._may_refuse():
            return
        if self._left_out and outcome != DONE:
            entry["left_out"], self._left_out = self._left_out, 0
        entry |= asdict(author or _UNKNOWN) | {"before": before, "after": after}
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
    """Return one line of printable ASCII with at most ``LINE_CHARS_MAX`` characters. Empty values are omitted."""
    kept = {name: _bounded(value) for name, value in entry.items() if value not in ("", None)}
    line = json.dumps(kept)
    # In this order, and no others: who did what to which object is never cut.
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
    """A file that only its owner can read. It is created again after it was moved away, as ``logrotate`` does."""

    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, self.mode, encoding="ascii")


def _handler(path: Path) -> logging.Handler:
    try:
        handler = _PrivateFile(path, encoding="ascii")
    except OSError as error:
        raise ConfigurationError(
            f"log.audit = {str(path)!r}: cannot write the file: {error.strerror}; use a file in an existing folder, "
            'or "" for the broker\'s log'
        ) from None
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


# ---- Changes of the users file for the audit log: users added and removed, passwords and grants changed.


@dataclass(frozen=True, slots=True)
class UserChange:
    """One change. ``action``: USER_ADDED, USER_REMOVED, USER_PASSWORD, USER_GRANTS or USER_ACCESS_KEYS.

    ``before``, ``after``: grants, or the names of access keys.
    """

    action: str
    name: str
    before: tuple[dict[str, Any], ...] | None = None
    after: tuple[dict[str, Any], ...] | None = None


def user_changes(before: Iterable[User], after: Iterable[User]) -> Iterator[UserChange]:
    """Yield the changes from ``before`` to ``after``, by name. Of a password they say only that it changed."""
    old, new = ({user.name: user for user in users} for users in (before, after))
    for name in sorted(old.keys() | new.keys()):
        was, is_now = old.get(name), new.get(name)
        if was is None:
            assert is_now is not None
            yield UserChange("USER_ADDED", name, None, is_now.permissions)
        elif is_now is None:
            yield UserChange("USER_REMOVED", name, was.permissions, None)
        else:
            if was.verifier != is_now.verifier:
                yield UserChange("USER_PASSWORD", name)
            if was.permissions != is_now.permissions:
                yield UserChange("USER_GRANTS", name, was.permissions, is_now.permissions)
            if was.access_keys != is_now.access_keys:
                yield UserChange("USER_ACCESS_KEYS", name, _key_names(was), _key_names(is_now))


def _key_names(user: User) -> tuple[dict[str, Any], ...]:
    """Return the access keys of a user for the audit log, without the secrets."""
    return tuple({"key": each.key, "created_ms": each.created_ms} for each in user.access_keys)
