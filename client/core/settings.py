"""The broker's settings, as an administrator sees and changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from ...protocol import commands
from ...protocol.errors import RemoteProtocolError
from .operations import Operation, operation, unpack_body
from .session import Answer

Value = int | str | bool


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, by its name SECTION.NAME. ``value``: now; ``at_start``: what the broker was started with; ``hot``:
    whether it can be changed while the broker runs; ``rule``: what it may be."""

    name: str
    value: Value
    at_start: Value
    hot: bool
    rule: str


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was changed, until the broker is started again."""

    name: str
    before: Value
    after: Value


def settings() -> Operation[list[Setting]]:
    """All settings that are shown, in the order of ``broker.toml``."""

    def decode(answer: Answer) -> list[Setting]:
        names = Setting.__dataclass_fields__
        return [Setting(**{name: row[name] for name in names}) for row in _rows(answer)]

    return operation(commands.GET_BROKER_CONFIG, decode)


def change_settings(changes: Mapping[str, Value]) -> Operation[list[ChangedSetting]]:
    """Change settings, all of them or none."""

    def decode(answer: Answer) -> list[ChangedSetting]:
        return [ChangedSetting(*row) for row in _rows(answer)]

    body = msgpack.packb(dict(changes))
    return operation(commands.UPDATE_BROKER_CONFIG, decode, body, count=len(changes))


def _rows(answer: Answer) -> list[Any]:
    rows = unpack_body(answer)
    if not isinstance(rows, list):
        raise RemoteProtocolError(f"settings as {type(rows).__name__}")
    return rows
