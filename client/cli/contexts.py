"""Contexts: named brokers with their access options, in a TOML file in the user's configuration folder.

The file holds no password, only the path of a file with one.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...protocol.display import MODES
from ...protocol.errors import ConfigurationError
from ...protocol.text_files import decode_text
from ..core.rpc.address import parse_addresses
from .failures import nearest

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Options = dict[str, str | bool | float]
"""Options of a context besides its broker, by the names of ``OPTIONS``."""

OPTIONS: dict[str, type] = {
    "user": str,
    "password_file": str,
    "tls": bool,
    "tls_ca": str,
    "tls_certificate": str,
    "tls_key": str,
    "timeout": float,
    "output": str,
}
FILES = ("password_file", "tls_ca", "tls_certificate", "tls_key")
READABLE_BY_OTHERS = 0o077


def contexts_path() -> Path:
    """Return the path of the contexts: ``$XDG_CONFIG_HOME/flintmq/contexts.toml``, else below ``~/.config``."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if Path(configured).is_absolute() else Path.home() / ".config"
    return folder / "flintmq" / "contexts.toml"


def check_context_name(name: str) -> str:
    """Return ``name`` if it is valid for a context. Raises ``ConfigurationError``."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is not a valid context name; use up to 64 letters, digits, '-' and '_'")
    return name


def _checked(options: dict[str, Any], where: str) -> Options:
    """Return valid ``options`` in the order of ``OPTIONS``. Raises ``ConfigurationError``."""
    for key, value in options.items():
        kind = OPTIONS.get(key)
        if kind is None:
            known = nearest(key, OPTIONS) or f"; the options are {', '.join(OPTIONS)}"
            raise ConfigurationError(f"{where} has the unknown option {key!r}{known}")
        number = kind is float and type(value) is int
        if not (number or type(value) is kind) or (kind is str and not (value and value.isprintable())):
            raise ConfigurationError(f"{where}: {key} must be {_KINDS[kind]}, got {value!r}")
    if options.get("output", MODES[0]) not in MODES:
        raise ConfigurationError(f"{where}: output must be one of {', '.join(MODES)}, got {options['output']!r}")
    if options.get("timeout", 1) <= 0:
        raise ConfigurationError(f"{where}: timeout must be more than 0 seconds, got {options['timeout']}")
    if "password_file" in options and "user" not in options:
        raise ConfigurationError(f"{where} has a password_file but no user; add the user")
    return {key: options[key] for key in OPTIONS if key in options}


_KINDS = {str: "a printable string", bool: "true or false", float: "a number of seconds"}


def _checked_file(key: str, name: str) -> str:
    """Return the absolute path of a file that a context names.

    Raises ``ConfigurationError`` if the file does not exist, or if it holds a password and other users can read it.
    """
    path = Path(name).expanduser().absolute()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"cannot use the file {str(path)!r} ({key}): {error.strerror}") from None
    if key == "password_file" and os.name == "posix" and mode & READABLE_BY_OTHERS:
        raise ConfigurationError(f"other users can read the password in {str(path)!r}; run chmod 600 on it")
    return str(path)


@dataclass(slots=True)
class Contexts:
    """The contexts of a user. ``brokers``: address(es) by context; ``options``: other options by context; ``current``:
    the context in use, empty for none."""

    path: Path
    brokers: dict[str, str] = field(default_factory=dict)
    current: str = ""
    options: dict[str, Options] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """Return the contexts of this user, empty if there is no file. Raises ``ConfigurationError`` for an invalid
        file."""
        path = contexts_path()
        try:
            table = tomllib.loads(decode_text(path.read_bytes()))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot read {path}: {error}; fix the file or move it away") from error
        contexts = cls(path)
        rows = table.get("contexts", {})
        for name, row in rows.items() if isinstance(rows, dict) else ():
            broker = row.get("broker") if isinstance(row, dict) else None
            if not isinstance(broker, str):
                raise ConfigurationError(f'{path}: context {name!r} has no broker; write broker = "host:port"')
            contexts.brokers[name] = broker
            options = {key: value for key, value in row.items() if key != "broker"}
            if options:
                contexts.options[name] = _checked(options, f"{path}: context {name!r}")
        current = table.get("current", "")
        contexts.current = current if isinstance(current, str) else ""
        return contexts

    def broker_of(self, name: str) -> str:
        """Return the address(es) of a context. Raises ``ConfigurationError`` with the existing contexts."""
        if name not in self.brokers:
            known = ", ".join(sorted(self.brokers)) or "none yet"
            raise ConfigurationError(f"there is no context {name!r} in {self.path}; existing contexts: {known}")
        return self.brokers[name]

    def add(self, name: str, broker: str, options: Mapping[str, Any] | None = None) -> None:
        """Add or replace a context. Files in ``options`` are stored with absolute paths.

        Raises ``ConfigurationError`` or ``InvalidArgument`` for an invalid name, option or address, and for a file that
        does not exist or shows a password to other users.
        """
        check_context_name(name)
        kept = _checked(dict(options or {}), f"context {name}")
        if not broker.isprintable():
            raise ConfigurationError(f"{broker!r} is not a broker address; write it as host:port")
        self.brokers[name] = ",".join(str(address) for address in parse_addresses(broker))
        self.options.pop(name, None)
        if kept:
            self.options[name] = kept | {key: _checked_file(key, str(kept[key])) for key in FILES if key in kept}

    def remove(self, name: str) -> None:
        """Remove a context. If it was in use, no context is in use afterwards. Raises ``ConfigurationError``."""
        self.broker_of(name)
        del self.brokers[name]
        self.options.pop(name, None)
        if self.current == name:
            self.current = ""

    def save(self) -> None:
        """Replace the file atomically. Raises ``ConfigurationError`` if it cannot be written."""
        lines = [f'current = "{self.current}"', ""] if self.current else []
        for name, broker in sorted(self.brokers.items()):
            # Texts and numbers of JSON are valid TOML, and a context's name needs no quotes.
            lines += [f"[contexts.{name}]", f"broker = {json.dumps(broker, ensure_ascii=False)}"]
            options = self.options.get(name, {})
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in options.items()]
            lines.append("")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=".contexts-", delete=False, encoding="utf-8"
            ) as file:
                file.write("\n".join(lines))
            Path(file.name).replace(self.path)
        except OSError as error:
            raise ConfigurationError(f"cannot write {self.path}: {error.strerror}") from error
