"""Requests of a slave to its RocketMQ master: settings, extent of the log, one record, the tables beside the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ...protocol.errors import RemoteProtocolError
from ...protocol.fields import I64_MAX
from ...protocol.names import is_folder_name
from ...protocol.remoting.codes import SUCCESS
from ..remoting.outbound import OutboundConnection, RemotingAnswer, connected_as
from ..store import MessageStore, TopicConfig
from ..store.files.file_system import make_durable_folder, replace_file
from ..store.files.json_table import SHAPE_ERRORS, integer_of, parse_table
from ..store.timers import TIMERCHECK, TIMERCHECK_BYTES
from .ha_connection import MasterRefused, MasterUnsuitable, MigrationError

# ---- The requests of a RocketMQ slave to its master's ``listenPort``.


class MasterClient(OutboundConnection):
    """A connection to a RocketMQ broker; one request at a time."""

    kind, advice = "RocketMQ broker", ". Name its listenPort (10911 by default)"

    async def call(self, code: int, **fields: str) -> RemotingAnswer:
        """Return the successful response to a request. Raises as ``ask``, and ``MasterRefused``."""
        answer = await self.ask(code, **fields)
        if answer.code != SUCCESS:
            raise MasterRefused(
                f"{self.address} refused request {code} with code {answer.code}: {answer.remark[:500]}. If it requires "
                "access keys, allow this address without them: this command does not sign requests",
                answer.code,
            )
        return answer


def connected(host: str, port: int) -> AbstractAsyncContextManager[MasterClient]:
    """Connect to a RocketMQ broker's ``listenPort``. Raises ``ConnectionFailed``."""
    return connected_as(MasterClient, host, port)


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


# ---- A RocketMQ master's tables, written through those of the store. Belongs to the thread that owns the
# store.


def apply_names(store: MessageStore, tables: MasterTables) -> None:
    """Take topics and groups; durable when it returns. Raises ``MigrationError`` for a table of another shape.

    A topic that the master deleted stays in the store: whether records that came meanwhile belong to it or to a new
    topic of its name is not known here.
    """
    try:
        _apply_topics(store, tables.topics["topicConfigTable"])
        store.groups.replace(tables.groups)
    except SHAPE_ERRORS as error:
        raise _unusable("topics and groups", error) from error
    if store.groups.dirty:
        if store.consumer_offsets.is_missing:
            store.consumer_offsets.persist()  # a start would take it for lost
        store.groups.persist()


def _apply_topics(store: MessageStore, rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        if not is_folder_name(name):
            raise ValueError(f"{name[:300]!r} cannot be a topic: it would not be a folder within the store")
        config, before = TopicConfig.from_json(name, row), store.topics.get(name)
        if before is None or before.to_json() != config.to_json():
            store.topics.put(config)
    store.topics.save()


def apply_progress(store: MessageStore, tables: MasterTables) -> None:
    """Take the progress of groups, delay levels and timed messages; durable when it returns.

    The store must have, on disk, all of the log that the master had when it answered: progress must never be ahead of
    the log, or a message that was delivered at the master only would be lost. Raises ``MigrationError`` for a table of
    another shape.
    """
    try:
        store.consumer_offsets.replace(tables.consumer_offsets)
        store.delay_offsets.take(tables.delay_offsets)
    except SHAPE_ERRORS as error:
        raise _unusable("offsets", error) from error
    if store.consumer_offsets.dirty:
        store.consumer_offsets.persist()
    if store.delay_offsets.dirty:
        store.delay_offsets.persist()
    if len(tables.timer_check) >= TIMERCHECK.size:
        path = store.path / "config" / "timercheck"
        make_durable_folder(store.files, path.parent)
        replace_file(store.files, path, tables.timer_check[:TIMERCHECK_BYTES].ljust(TIMERCHECK_BYTES, b"\0"))


def _unusable(tables: str, error: Exception) -> MigrationError:
    return MigrationError(
        f"the master's tables of {tables} have another shape than RocketMQ 5.3's: {type(error).__name__}: {error}"
    )
