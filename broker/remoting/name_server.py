"""The role of a name server: the routes of topics, for clients whose ``namesrvAddr`` is this broker."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ...protocol.errors import TopicNotExist
from ..addresses import format_address
from ..requests.broker import Broker
from ..store import TopicConfig
from ..store.tables.topic_table import PERM_WRITE
from .topic_rows import TopicRows

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
        epoch = member.status().epoch if member is not None else 0
        return {"counter": changes, "stateVersion": epoch, "timestamp": self._started_ms}

    def topics_version(self) -> dict[str, int]:
        """Return the version of the table of topics."""
        return self.data_version(self._broker.store.topics.version)
