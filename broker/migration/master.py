"""Requests of a slave to its RocketMQ master: settings, extent of the log, one record, the tables beside the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...protocol.errors import RemoteProtocolError
from ...protocol.fields import I64_MAX
from ...protocol.remoting.codes import SUCCESS
from ..store.files.json_table import SHAPE_ERRORS, integer_of, parse_table
from .errors import MasterUnsuitable
from .remoting_client import MasterClient

GET_ALL_TOPIC_CONFIG = 21
"""RocketMQ's slaves ask for it on listenPort − 2; the master answers it on listenPort too."""
GET_BROKER_CONFIG = 26
GET_BROKER_RUNTIME_INFO = 28
VIEW_MESSAGE_BY_ID = 33
GET_ALL_CONSUMER_OFFSET = 43
GET_ALL_DELAY_OFFSET = 45
GET_TIMER_CHECK_POINT = 60
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
PERM_WRITE = 2
OFFSET_MAX = 2**62
"""Largest physical offset that is believed: files after it can still be numbered."""
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's default ``messageDelayLevel``, FlintMQ's only one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """A master's settings. ``commitlog_file_bytes``: size of a file of its log; ``takes_messages``: it may be produced
    to; ``has_timer``: it delivers timed messages."""

    ha_port: int
    commitlog_file_bytes: int
    takes_messages: bool
    has_timer: bool
    delay_levels: str


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Physical offsets between which a master has its log."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class MasterTables:
    """A master's tables, as in its files. ``timer_check``: ``config/timercheck``, empty if it has none."""

    topics: dict[str, Any]
    groups: dict[str, Any]
    consumer_offsets: dict[str, Any]
    delay_offsets: dict[str, Any]
    timer_check: bytes


async def read_settings(client: MasterClient) -> MasterSettings:
    """Return the master's settings. Raises ``MasterUnsuitable`` if it does not speak classic HA."""
    body = (await client.call(GET_BROKER_CONFIG)).body.decode(errors="replace")
    settings = dict(line.partition("=")[::2] for line in body.splitlines())
    if "mappedFileSizeCommitLog" not in settings or "haListenPort" not in settings:
        raise MasterUnsuitable(f"{client.address} has no commit log: it is not a RocketMQ broker; name its listenPort")
    if settings.get("brokerRole") == "SLAVE":
        raise MasterUnsuitable(f"{client.address} is a slave itself: name its master")
    for name in ("enableControllerMode", "enableDLegerCommitLog"):
        if settings.get(name) == "true":
            raise MasterUnsuitable(
                f"{client.address} has {name}=true: such a broker replicates by another protocol, which FlintMQ does "
                "not speak. Stop it and open its store with FlintMQ, or start it without that setting"
            )
    return _read(
        client,
        GET_BROKER_CONFIG,
        lambda: MasterSettings(
            integer_of(settings["haListenPort"], 1, 65_535, "haListenPort"),
            integer_of(settings["mappedFileSizeCommitLog"], 1, I64_MAX, "mappedFileSizeCommitLog"),
            bool(int(settings.get("brokerPermission", PERM_WRITE)) & PERM_WRITE),
            settings.get("timerWheelEnable") == "true",
            settings.get("messageDelayLevel", DELAY_LEVELS),
        ),
    )


async def read_extent(client: MasterClient) -> LogExtent:
    """Return where the master's log begins and ends. RocketMQ says that a log without files begins at −1."""
    table = await _table(client, GET_BROKER_RUNTIME_INFO)
    return _read(
        client,
        GET_BROKER_RUNTIME_INFO,
        lambda: LogExtent(
            max(integer_of(table["table"]["commitLogMinOffset"], -1, OFFSET_MAX, "commitLogMinOffset"), 0),
            integer_of(table["table"]["commitLogMaxOffset"], 0, OFFSET_MAX, "commitLogMaxOffset"),
        ),
    )


async def read_record(client: MasterClient, physical_offset: int) -> bytes:
    """Return the record at an offset of the master's log; empty if it has none there."""
    answer = await client.ask(VIEW_MESSAGE_BY_ID, offset=str(physical_offset), topic="")
    return answer.body if answer.code == SUCCESS else b""


async def read_tables(client: MasterClient, settings: MasterSettings) -> MasterTables:
    """Return the master's tables."""
    return MasterTables(
        await _table(client, GET_ALL_TOPIC_CONFIG),
        await _table(client, GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        await _table(client, GET_ALL_CONSUMER_OFFSET),
        await _table(client, GET_ALL_DELAY_OFFSET),
        # A master without the timer answers with an error.
        (await client.call(GET_TIMER_CHECK_POINT)).body if settings.has_timer else b"",
    )


async def _table(client: MasterClient, code: int) -> dict[str, Any]:
    body = (await client.call(code)).body
    return _read(client, code, lambda: parse_table(body.decode()))


def _read(client: MasterClient, code: int, read: Callable[[], T]) -> T:
    try:
        return read()
    except SHAPE_ERRORS as error:
        raise RemoteProtocolError(
            f"{client.address} answered request {code} with something else than RocketMQ 5.3 does: "
            f"{type(error).__name__}: {error}"
        ) from error
