"""The role of a name server: the routes of topics, for clients whose ``namesrvAddr`` is this broker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
import zlib
from collections.abc import Iterator
from typing import Any

from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError, RequestTimeout, TopicNotExist
from ...protocol.remoting import codes
from ..addresses import format_address, parse_address
from ..delivery import old_retries
from ..requests.broker import Broker
from ..store import MessageStore, TopicConfig
from ..store.tables.topic_table import PERM_WRITE
from .outbound import OutboundConnection, connected_as
from .sends import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES

PRIMARY_ID = 0
"""Number of a broker that takes messages, among the brokers of its name."""


class NameServerRole:
    """The routes of one broker; belongs to the event loop. ``address``: advertised host and port for clients."""

    def __init__(self, broker: Broker, cluster: str, broker_name: str, address: tuple[str, int]) -> None:
        self._broker = broker
        self.cluster = cluster
        self.broker_name = broker_name
        self.topics = TopicRows(broker.store, cluster, broker_name)
        self.write_wiped = False
        """Routes say that no topic can be written, until an operator takes that back or the broker restarts."""
        self.own_address = format_address(*address)
        """Advertised HOST:PORT of this broker."""
        self._started_ms = int(time.time() * 1000)

    def is_primary(self) -> bool:
        """Return whether this broker takes messages now: it is on its own, or the primary of its set."""
        member = self._broker.member
        return member is None or member.refusal() is None

    def find(self, topic: str) -> TopicConfig:
        """Return a topic with the permissions that routes tell. Raises ``TopicNotExist``."""
        config = self.topics.get(topic, auto_create=self._broker.auto_create)
        if config is None:
            raise TopicNotExist(f"No topic route info in name server for the topic: {topic}")
        return self._shown(config)

    def all_topics(self) -> list[TopicConfig]:
        """Return every topic with the permissions that routes tell."""
        return [self._shown(config) for config in self.topics.all(auto_create=self._broker.auto_create)]

    def _shown(self, config: TopicConfig) -> TopicConfig:
        if self.write_wiped and config.writable:
            return dataclasses.replace(config, perm=config.perm & ~PERM_WRITE)
        return config

    def wipe(self, wiped: bool) -> int:
        """Set whether routes leave out the permission to write; return the number of topics that have it."""
        self.write_wiped = wiped
        return sum(config.writable for config in self.topics.all(auto_create=self._broker.auto_create))

    def broker_data(self) -> dict[str, Any]:
        """Return the broker as routes describe it."""
        return {
            "brokerAddrs": {str(PRIMARY_ID): self.own_address},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": False,
        }

    def route(self, config: TopicConfig) -> dict[str, Any]:
        """Return the broker and the queues of a topic."""
        queues = {
            "brokerName": self.broker_name,
            "perm": config.perm,
            "readQueueNums": config.read_queues,
            "topicSysFlag": int(config.extra.get("topicSysFlag", 0)),
            "writeQueueNums": config.write_queues,
        }
        return {"brokerDatas": [self.broker_data()], "filterServerTable": {}, "queueDatas": [queues]}

    def data_version(self, changes: int) -> dict[str, int]:
        """Return the version, as RocketMQ compares it, of a table with this number of changes since the start."""
        member = self._broker.member
        # RocketMQ compares ``stateVersion`` first, so a new primary's table is newer even after fewer changes.
        epoch = member.status().answer.epoch if member is not None else 0
        return {"counter": changes, "stateVersion": epoch, "timestamp": self._started_ms}

    def topics_version(self) -> dict[str, int]:
        """Return the version of the table of topics."""
        return self.data_version(self._broker.store.topics.version)


# ---- Registration with name servers of Apache RocketMQ, so that clients which know only those find this
# broker.
#
# A name server forgets a broker when the connection that it registered on closes, so there is one open
# connection to each of them. The broker registers on it, says every half minute that it lives, registers
# again at once after a change of topics, and takes its registration back when it stops.

log = logging.getLogger(__name__)

DEFAULT_PORT = 9876
INTERVAL_S = 30.0
"""Time between two signs of life; a name server drops a broker after two minutes without."""
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 30.0
FOLLOWER_CHECK_S = 1.0
"""Interval at which a member of a replica set that is not the primary looks whether it has become that."""
STOP_S = 2.0
"""Maximum time in which the registrations are taken back when the broker stops."""
_CRC_MASK = 0x7FFFFFFF


class NameServerRefused(FlintError):
    """A name server answered with another code than SUCCESS."""


class NameServerConnection(OutboundConnection):
    """A connection to a name server."""

    kind, advice = "name server of RocketMQ's", ". Correct remoting.name_servers"


def parse_name_servers(text: str) -> list[tuple[str, int]]:
    """Return host and port of each address of ``HOST:PORT;HOST:PORT``. Raises ``ValueError``."""
    return [parse_address(address, DEFAULT_PORT) for address in text.split(";")] if text else []


def encode_registration(topics: list[TopicConfig], version: dict[str, int]) -> bytes:
    """Return the body of a registration: every topic, and the version of their table."""
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": {config.name: config.to_json() for config in topics},
        "topicQueueMappingInfoMap": {},
    }
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class _Registration:
    """The registration with one name server. ``changed``: set after each change of a topic."""

    def __init__(self, broker: Broker, names: NameServerRole, host: str, port: int) -> None:
        self._broker = broker
        self._names = names
        self._host, self._port = host, port
        self.changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._sent: dict[str, int] | None = None
        """Version of the table that the name server has by this connection; None: it has no registration."""
        self._is_out = False
        """An outage has been logged, and not its end."""

    @property
    def is_missing(self) -> bool:
        """True if the name server does not know this broker although it should."""
        return self._sent is None and self._names.is_primary()

    def stop(self) -> None:
        """Let ``keep`` take the registration back and return."""
        self._stopping.set()
        # This wakes ``_wait``.
        self.changed.set()

    async def keep(self) -> None:
        """Register, and stay registered, until ``stop``; an outage is logged once and tried again."""
        pause_s = PAUSE_MIN_S
        while not self._stopping.is_set():
            try:
                async with connected_as(NameServerConnection, self._host, self._port) as connection:
                    while not self._stopping.is_set():
                        await self._renew(connection)
                        pause_s = PAUSE_MIN_S
                        await self._wait(connection)
                    await self._unregister(connection)
            except (ConnectionFailed, RequestTimeout, RemoteProtocolError, NameServerRefused) as error:
                self._say_out(error)
            finally:
                # The name server forgets the registration with its connection.
                self._sent = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _say_out(self, error: FlintError) -> None:
        if not self._is_out:
            self._is_out = True
            log.error("not registered with the name server: %s; retrying until it succeeds", error)

    async def _wait(self, connection: NameServerConnection) -> None:
        """Wait until the name server must hear something. Raises ``ConnectionFailed`` if it closes the connection."""
        interval_s = INTERVAL_S if self._names.is_primary() else FOLLOWER_CHECK_S
        closed = asyncio.ensure_future(connection.closed())
        changed = asyncio.ensure_future(self.changed.wait())
        try:
            await asyncio.wait({closed, changed}, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                raise ConnectionFailed(f"{connection.address} closed the connection")
        finally:
            # ``closed`` reads from the connection: it must have ended before the next request reads its answer.
            for task in (closed, changed):
                task.cancel()
            await asyncio.gather(closed, changed, return_exceptions=True)

    async def _renew(self, connection: NameServerConnection) -> None:
        """Let the name server know what this broker serves now: nothing, if it is not the primary of its set."""
        # First: a change during the registration leads to another one.
        self.changed.clear()
        if not self._names.is_primary():
            await self._unregister(connection)
            return
        # Before the topics are read, which may be newer by then: the next look sends those again.
        version = self._names.topics_version()
        if version != self._sent or await self._asks_for_more(connection, version):
            await self._register(connection, version)
            self._sent = version
        if self._is_out:
            self._is_out = False
            log.info("registered with the name server %s again", connection.address)

    async def _asks_for_more(self, connection: NameServerConnection, version: dict[str, int]) -> bool:
        """Give a sign of life; return whether the name server does not have this version of the table."""
        body = json.dumps(version, separators=(",", ":")).encode()
        answer = await connection.ask(codes.QUERY_DATA_VERSION, body, **self._fields())
        return answer.code != codes.SUCCESS or answer.fields.get("changed") != "false"

    async def _register(self, connection: NameServerConnection, version: dict[str, int]) -> None:
        topics = self._names.all_topics()
        # On a thread, because a broker may have many thousands of topics.
        body = await self._broker.loop.run_in_executor(self._broker.readers, encode_registration, topics, version)
        answer = await connection.ask(
            codes.REGISTER_BROKER,
            body,
            **self._fields(),
            haServerAddr=self._names.own_address,
            compressed="false",
            enableActingMaster="false",
            # Without the sign bit, as RocketMQ's ``UtilAll.crc32``.
            bodyCrc32=str(zlib.crc32(body) & _CRC_MASK),
        )
        if answer.code != codes.SUCCESS:
            raise NameServerRefused(
                f"{connection.address} refused the registration with code {answer.code}: {answer.remark[:500]}"
            )

    async def _unregister(self, connection: NameServerConnection) -> None:
        """Take the registration back, if there is one."""
        if self._sent is not None:
            self._sent = None
            await connection.ask(codes.UNREGISTER_BROKER, **self._fields())

    def _fields(self) -> dict[str, str]:
        names = self._names
        return {
            "brokerName": names.broker_name,
            "brokerAddr": names.own_address,
            "clusterName": names.cluster,
            "brokerId": str(PRIMARY_ID),
        }


class NameServerRegistrations:
    """The registrations with all name servers. Belongs to the event loop."""

    def __init__(self, broker: Broker, names: NameServerRole, addresses: list[tuple[str, int]]) -> None:
        self._broker = broker
        self._all = [_Registration(broker, names, *address) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Register from now on."""
        self._broker.topic_changes.on_changed = self._changed
        self._tasks = [self._broker.loop.create_task(each.keep()) for each in self._all]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def count(self) -> tuple[int, int]:
        """Return the number of name servers, and of those that do not know this broker although they should."""
        return len(self._all), sum(each.is_missing for each in self._all)

    def _changed(self) -> None:
        for each in self._all:
            each.changed.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broker.fatal("the registration with a name server", error)

    async def stop(self) -> None:
        """Take the registrations back; those of name servers that do not answer end with their connections."""
        for each in self._all:
            each.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


# ---- The topics of a broker as RocketMQ's programs see them: those of the table, and those that every broker has.

CLUSTER_QUEUES = 16
DELAY_LEVELS = 18
REVIVE_QUEUES = 8
PERM_INHERIT = 1
PERM_ALL = 7
"""Read, write, and: topics that are created after this one get its permissions."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"


def topics_of_every_broker(cluster: str, broker_name: str, *, auto_create: bool) -> dict[str, TopicConfig]:
    """Return the topics that each broker of RocketMQ has (``TopicConfigManager``), by name.

    RocketMQ's programs ask for their routes. FlintMQ makes those that it uses itself when it needs them.
    """
    rows = [
        (SELF_TEST_TOPIC, 1, 6),
        ("BenchmarkTest", 1024, 6),
        (cluster, CLUSTER_QUEUES, PERM_ALL),
        (broker_name, 1, PERM_ALL),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", DELAY_LEVELS, 6),
        (f"{cluster}_REPLY_TOPIC", 1, 6),
        (f"rmq_sys_REVIVE_LOG_{cluster}", REVIVE_QUEUES, 6),
        (f"rmq_sys_SYNC_BROKER_MEMBER_{broker_name}", 1, PERM_INHERIT),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
        ("rmq_sys_wheel_timer", 1, 6),
    ]
    if auto_create:
        rows.append((DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, PERM_ALL))
    return {name: TopicConfig(name, queues, queues, perm) for name, queues, perm in rows}


class TopicRows:
    """The topics of one broker. ``auto_create``: whether producers create topics now."""

    def __init__(self, store: MessageStore, cluster: str, broker_name: str) -> None:
        self._table = store.topics
        self._implied = {
            auto_create: topics_of_every_broker(cluster, broker_name, auto_create=auto_create)
            for auto_create in (False, True)
        }

    def get(self, name: str, *, auto_create: bool) -> TopicConfig | None:
        """Return a topic, or None."""
        config = self._table.get(name)
        return config if config is not None else self._implied[auto_create].get(name)

    def all(self, *, auto_create: bool) -> Iterator[TopicConfig]:
        """Yield every topic once."""
        yield from self._table
        for config in self._implied[auto_create].values():
            if self._table.get(config.name) is None:
                yield config

    def system_names(self) -> list[str]:
        """Return the names of the topics that each broker has."""
        return sorted(self._implied[True])


def pop_retry_topics(store: MessageStore, topic: str) -> list[str]:
    """Return the topics with messages of ``topic`` alone that a group still has to receive again by POP."""
    names = (name for group in store.groups.names() for name in old_retries.pop_retry_topics(store, group, topic))
    return [name for name in names if store.topics.get(name) is not None]
