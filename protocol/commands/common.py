"""Limits and empty messages that several command modules share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from ..auth.rules import Rule
from ..fields import integer

RowT = TypeVar("RowT")

KEY_CHARS_MAX = 32767
FILTER_CHARS_MAX = 4096
MEMBER_CHARS_MAX = 128
QUERY_COUNT_MAX = 64
"""Maximum number of messages on one page of a query."""
PREPARED_NAME_CHARS_MAX = 200
QUEUES_MAX = 65_536


@dataclass(slots=True)
class EmptyRequest:
    """No fields."""


@dataclass(slots=True)
class EmptyAnswer:
    """No fields."""


@dataclass(slots=True)
class RowsAnswer:
    """The rows of a list."""

    count: int = integer("number of rows in the body")


# ---- Rows of the table of commands: each module of this package adds its own where it defines requests and
# responses.
#
# Codes are RocketMQ's ``RequestCode`` numbers if RocketMQ has the command; FlintMQ's own start at 1000.

COMMANDS: dict[int, Command] = {}
"""All commands by code; complete after the import of ``protocol.commands``."""


class ServedBy(Enum):
    """Which members of a replica set answer a command."""

    PRIMARY = "primary"
    READERS = "readers"
    """Also a follower in sync, with what is confirmed, on connections that ask for it, outside of consumer groups."""
    ALL = "all"


class Audit(Enum):
    """Whether the audit log has an entry for a refused request; for others a handler writes it."""

    NEVER = "never"
    ALWAYS = "always"
    BY_HAND = "by hand"
    """Only for what an operator does; programs do the same all the time with what is their own."""


@dataclass(eq=False, slots=True)
class Command:
    """One row of the table, entered when it is created; its name is that of its constant.

    ``purpose``: what it is for, in a few words; ``rule``: what a user needs for it; ``one_way``: a frame of kind 2 may
    carry it; ``from_broker``: the broker sends it to a client.
    """

    code: int
    request: type[Any]
    purpose: str
    rule: Rule
    served_by: ServedBy = ServedBy.PRIMARY
    audit: Audit = Audit.NEVER
    one_way: bool = False
    from_broker: bool = False
    answer: type[Any] = EmptyAnswer
    name: str = dataclasses.field(init=False, default="")

    def __post_init__(self) -> None:
        assert COMMANDS.setdefault(self.code, self) is self, f"two commands have code {self.code}"


@dataclass(eq=False, slots=True)
class RowsCommand(Command, Generic[RowT]):
    """A command whose response has one msgpack array of ``rows`` in its body."""

    answer: type[Any] = RowsAnswer
    rows: type[RowT] = dataclasses.field(kw_only=True)


@dataclass(eq=False, slots=True)
class RowCommand(Command, Generic[RowT]):
    """A command whose response has the msgpack of one ``row`` in its body."""

    row: type[RowT] = dataclasses.field(kw_only=True)
