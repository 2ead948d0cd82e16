"""The broker's settings as an administrator sees and changes them, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from ....protocol import commands
from ....protocol.errors import RemoteProtocolError
from ..rpc.operation import Operation, operation, unpack_body
from ..rpc.session import Answer

Value = int | str | bool


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, by its name SECTION.NAME. ``value``: the current value; ``at_start``: the value at the broker's
    start; ``hot``: it can be changed while the broker runs; ``rule``: its valid values."""

    name: str
    value: Value
    at_start: Value
    hot: bool
    rule: str


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was changed; it returns to its configured value when the broker restarts."""

    name: str
    before: Value
    after: Value


def settings() -> Operation[list[Setting]]:
    """List the visible settings, in the order of ``broker.toml``."""

    def decode(answer: Answer) -> list[Setting]:
        names = Setting.__dataclass_fields__
        return [Setting(**{name: row[name] for name in names}) for row in _rows(answer)]

    return operation(commands.GET_BROKER_CONFIG, decode)


def change_settings(changes: Mapping[str, Value]) -> Operation[list[ChangedSetting]]:
    """Change settings, all or none."""

    def decode(answer: Answer) -> list[ChangedSetting]:
        return [ChangedSetting(*row) for row in _rows(answer)]

    body = msgpack.packb(dict(changes))
    return operation(commands.UPDATE_BROKER_CONFIG, decode, body, count=len(changes))


def runtime_info() -> Operation[dict[str, Any]]:
    """Get the broker's runtime status."""

    def decode(answer: Answer) -> dict[str, Any]:
        info = unpack_body(answer)
        if not isinstance(info, dict):
            raise RemoteProtocolError(f"expected runtime info as a map, got {type(info).__name__}")
        return info

    return operation(commands.GET_BROKER_RUNTIME_INFO, decode)


def _rows(answer: Answer) -> list[Any]:
    rows = unpack_body(answer)
    if not isinstance(rows, list):
        raise RemoteProtocolError(f"expected settings as a list, got {type(rows).__name__}")
    return rows
