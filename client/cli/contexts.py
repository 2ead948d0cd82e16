"""Contexts: names for brokers, kept in a TOML file in the user's configuration folder."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from ...protocol.errors import ConfigurationError
from ..core.address import parse_addresses

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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


@dataclass(slots=True)
class Contexts:
    """``brokers``: address(es) by context; ``current``: the context in use, empty for none."""

    path: Path
    brokers: dict[str, str] = field(default_factory=dict)
    current: str = ""

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
        current = table.get("current", "")
        contexts.current = current if isinstance(current, str) else ""
        return contexts

    def broker_of(self, name: str) -> str:
        """The address(es) of a context. Raises ``ConfigurationError`` that names those that there are."""
        if name not in self.brokers:
            known = ", ".join(sorted(self.brokers)) or "none yet"
            raise ConfigurationError(f"there is no context {name!r} in {self.path}; there are: {known}")
        return self.brokers[name]

    def add(self, name: str, broker: str) -> None:
        """Add a context or replace it. Raises for a name or an address that cannot be one."""
        check_context_name(name)
        if not broker.isprintable():
            raise ConfigurationError(f"{broker!r} is no broker address; write it as host:port")
        self.brokers[name] = ",".join(str(address) for address in parse_addresses(broker))

    def remove(self, name: str) -> None:
        """Forget a context; where it was in use, none is. Raises ``ConfigurationError``."""
        self.broker_of(name)
        del self.brokers[name]
        if self.current == name:
            self.current = ""

    def save(self) -> None:
        """Replace the file, whole or not at all. Raises ``ConfigurationError`` where that cannot be done."""
        lines = [f'current = "{self.current}"', ""] if self.current else []
        for name, broker in sorted(self.brokers.items()):
            lines += [f"[contexts.{name}]", f"broker = {json.dumps(broker, ensure_ascii=False)}", ""]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=".contexts-", delete=False, encoding="utf-8"
            ) as file:
                file.write("\n".join(lines))
            Path(file.name).replace(self.path)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}") from error
