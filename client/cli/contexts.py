"""Contexts: names for brokers and for how to get in, kept in a TOML file in the user's configuration folder.

The file holds no password, only where one is.
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

from ...protocol.errors import ConfigurationError
from ..core.address import parse_addresses
from .failures import nearest
from .output import MODES

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Options = dict[str, str | bool | float]
"""What a context says beside its broker, by the names of ``OPTIONS``."""

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
    """Where the contexts are: ``$XDG_CONFIG_HOME/flintmq/contexts.toml``, else below ``~/.config``."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if Path(configured).is_absolute() else Path.home() / ".config"
    return folder / "flintmq" / "contexts.toml"


def check_context_name(name: str) -> str:
    """``name`` if a context can have it. Raises ``ConfigurationError``."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a context; use letters, digits, '-' and '_', up to 64")
    return name


def _checked(options: dict[str, Any], where: str) -> Options:
    """``options`` if a context can have them, in the order of ``OPTIONS``. Raises ``ConfigurationError``."""
    for key, value in options.items():
        kind = OPTIONS.get(key)
        if kind is None:
            known = nearest(key, OPTIONS) or f"; there are {', '.join(OPTIONS)}"
            raise ConfigurationError(f"{where} has {key!r}, which no context has{known}")
        number = kind is float and type(value) is int
        if not (number or type(value) is kind) or (kind is str and not (value and value.isprintable())):
            raise ConfigurationError(f"{where} has the {key} {value!r}; it must be {_KINDS[kind]}")
    if options.get("output", MODES[0]) not in MODES:
        raise ConfigurationError(f"{where} has the output {options['output']!r}; there are {', '.join(MODES)}")
    if options.get("timeout", 1) <= 0:
        raise ConfigurationError(f"{where} has the timeout {options['timeout']}; it must be more than 0 seconds")
    if "password_file" in options and "user" not in options:
        raise ConfigurationError(f"{where} has a password_file and no user; name the user, too")
    return {key: options[key] for key in OPTIONS if key in options}


_KINDS = {str: "a text", bool: "true or false", float: "a number of seconds"}


def _checked_file(key: str, name: str) -> str:
    """The whole path of a file that a context names. Raises ``ConfigurationError`` if it is not there, and for a
    password that others can read."""
    path = Path(name).expanduser().absolute()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"the file {str(path)!r} ({key}) cannot be used: {error.strerror}") from None
    if key == "password_file" and os.name == "posix" and mode & READABLE_BY_OTHERS:
        raise ConfigurationError(f"the password in {str(path)!r} can be read by others; chmod 600 keeps it")
    return str(path)


@dataclass(slots=True)
class Contexts:
    """``brokers``: address(es) by context; ``options``: what else contexts say; ``current``: the context in use, empty
    for none."""

    path: Path
    brokers: dict[str, str] = field(default_factory=dict)
    current: str = ""
    options: dict[str, Options] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """The contexts of this user; none where there is no file. Raises ``ConfigurationError`` for a broken one."""
        path = contexts_path()
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(path)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}; mend it or move it away") from error
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
        """The address(es) of a context. Raises ``ConfigurationError`` that names those that there are."""
        if name not in self.brokers:
            known = ", ".join(sorted(self.brokers)) or "none yet"
            raise ConfigurationError(f"there is no context {name!r} in {self.path}; there are: {known}")
        return self.brokers[name]

    def add(self, name: str, broker: str, options: Mapping[str, Any] | None = None) -> None:
        """Add a context or replace it; files that ``options`` name are kept with their whole paths.

        Raises for a name or an address that cannot be one, and for a file that is not there or that tells a password.
        """
        check_context_name(name)
        kept = _checked(dict(options or {}), f"context {name}")
        if not broker.isprintable():
            raise ConfigurationError(f"{broker!r} is no broker address; write it as host:port")
        self.brokers[name] = ",".join(str(address) for address in parse_addresses(broker))
        self.options.pop(name, None)
        if kept:
            self.options[name] = kept | {key: _checked_file(key, str(kept[key])) for key in FILES if key in kept}

    def remove(self, name: str) -> None:
        """Forget a context; where it was in use, none is. Raises ``ConfigurationError``."""
        self.broker_of(name)
        del self.brokers[name]
        self.options.pop(name, None)
        if self.current == name:
            self.current = ""

    def save(self) -> None:
        """Replace the file, whole or not at all. Raises ``ConfigurationError`` where that cannot be done."""
        lines = [f'current = "{self.current}"', ""] if self.current else []
        for name, broker in sorted(self.brokers.items()):
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
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}") from error
