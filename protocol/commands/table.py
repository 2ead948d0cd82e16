"""Rows of the table of commands: each module of this package adds its own where it defines requests and responses.

Codes are RocketMQ's ``RequestCode`` numbers if RocketMQ has the command; FlintMQ's own start at 1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COMMANDS: dict[int, Command] = {}
"""All commands by code; complete after the import of ``protocol.commands``."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table, entered when it is created. ``one_way``: a frame of kind 2 may carry it; ``from_broker``:
    the broker sends it to a client."""

    name: str
    code: int
    request: type[Any]
    answer: type[Any]
    one_way: bool = False
    from_broker: bool = False

    def __post_init__(self) -> None:
        assert COMMANDS.setdefault(self.code, self) is self, f"two commands have code {self.code}"
