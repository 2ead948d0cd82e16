"""The topics of a broker as RocketMQ's programs see them: those of the table, and those that every broker has."""

from __future__ import annotations

from collections.abc import Iterator

from ..delivery import old_retries
from ..store import MessageStore, TopicConfig
from .sends import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES

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
