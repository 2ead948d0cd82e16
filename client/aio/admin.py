"""The admin client: manages topics, groups, transactions, users and settings, and shows the broker's state.

Each method takes the arguments of the operation that it performs, whose docstring describes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core import admin as connection_operations
from ..core import admin as delay_operations
from ..core import admin as group_operations
from ..core import admin as quarantine_operations
from ..core import admin as replica_operations
from ..core import admin as setting_operations
from ..core import admin as transaction_operations
from ..core import admin as user_operations
from ..core import topics as topic_operations
from ..core.produce import producer_core as prepared_operations
from .client import Client, async_method


class Admin(Client):
    """Manages a broker. ``timeout``: seconds within which the broker must answer a call, unless the call sets its
    own."""

    create_topic = async_method(topic_operations.create_topic)
    delete_topic = async_method(topic_operations.delete_topic)
    topics = async_method(topic_operations.topics)
    topic_stats = async_method(topic_operations.topic_stats)
    topics_stats = async_method(topic_operations.topics_stats)
    consume_stats = async_method(topic_operations.consume_stats)

    groups = async_method(group_operations.groups)
    group = async_method(group_operations.group)
    delete_group = async_method(group_operations.delete_group)

    async def reset_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Set a group's committed offsets, backward or forward, by queue.

        Raises ``GroupRunning`` while the group has members, unless ``force`` is set: then they restart from there.
        """
        if offsets:
            operation = group_operations.reset_offsets(group, topic, offsets, force)
            await self._caller.call(operation, self._caller.deadline(timeout))

    delays = async_method(delay_operations.delays)

    transactions = async_method(transaction_operations.transactions)
    end_transaction = async_method(transaction_operations.end_transaction)
    commit_prepared = async_method(prepared_operations.commit_prepared)
    prepared = async_method(prepared_operations.prepared)
    abort_prepared = async_method(prepared_operations.abort_prepared)

    users = async_method(user_operations.users)
    create_user = async_method(user_operations.create_user)
    change_user = async_method(user_operations.change_user)
    delete_user = async_method(user_operations.delete_user)
    add_access_key = async_method(user_operations.add_access_key)
    remove_access_key = async_method(user_operations.remove_access_key)

    connections = async_method(connection_operations.connections)
    close_connection = async_method(connection_operations.close_connection)
    whoami = async_method(connection_operations.whoami)
    quarantine = async_method(quarantine_operations.quarantine)

    replica_status = async_method(replica_operations.replica_status)
    switch_primary = async_method(replica_operations.switch_primary)
    add_member = async_method(replica_operations.add_member)
    remove_member = async_method(replica_operations.remove_member)

    settings = async_method(setting_operations.settings)
    change_settings = async_method(setting_operations.change_settings)
    status = async_method(setting_operations.status)
