"""The broker's settings as an administrator sees and changes them, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....protocol import commands
from ....protocol.errors import RemoteProtocolError
from ..rpc.operation import Operation, operation, pack_body, unpack_body, unpack_rows
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


def settings(*, timeout: float | None = None) -> Operation[list[Setting]]:
    """Return the broker's settings, except those of ``[security]``, in the order of ``broker.toml``."""

    def decode(answer: Answer) -> list[Setting]:
        names = Setting.__dataclass_fields__
        return [Setting(**{name: row[name] for name in names}) for row in unpack_rows(answer, "settings")]

    return operation(commands.GET_BROKER_CONFIG, decode, timeout=timeout)


def change_settings(
    changes: Mapping[str, int | str | bool], *, timeout: float | None = None
) -> Operation[list[ChangedSetting]]:
    """Change settings, by SECTION.NAME, all or none. They apply at once and until the broker restarts.

    Values are as in ``broker.toml`` or as on a command line. Raises ``InvalidParameter`` if a setting does not
    exist, cannot be changed while the broker runs, or cannot have that value.
    """

    def decode(answer: Answer) -> list[ChangedSetting]:
        return [ChangedSetting(*row) for row in unpack_rows(answer, "settings")]

    body = pack_body(dict(changes))
    return operation(commands.UPDATE_BROKER_CONFIG, decode, body, timeout=timeout, count=len(changes))


def status(*, timeout: float | None = None) -> Operation[dict[str, Any]]:
    """Return the broker's runtime status; ``protocol/README.md`` lists the names."""

    def decode(answer: Answer) -> dict[str, Any]:
        info = unpack_body(answer)
        if not isinstance(info, dict):
            raise RemoteProtocolError(f"expected runtime info as a map, got {type(info).__name__}")
        return info

    return operation(commands.GET_BROKER_RUNTIME_INFO, decode, timeout=timeout)
