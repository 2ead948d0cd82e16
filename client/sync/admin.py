# Generated from client/aio/admin.py:
# change that file, and run python scripts/lib/shells.py
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
from .client import Client, blocking_method


class Admin(Client):
    """Manages a broker. ``timeout``: seconds within which the broker must answer a call, unless the call sets its
    own."""

    create_topic = blocking_method(topic_operations.create_topic)
    delete_topic = blocking_method(topic_operations.delete_topic)
    topics = blocking_method(topic_operations.topics)
    topic_stats = blocking_method(topic_operations.topic_stats)
    topics_stats = blocking_method(topic_operations.topics_stats)
    consume_stats = blocking_method(topic_operations.consume_stats)

    groups = blocking_method(group_operations.groups)
    group = blocking_method(group_operations.group)
    delete_group = blocking_method(group_operations.delete_group)

    def reset_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Set a group's committed offsets, backward or forward, by queue.

        Raises ``GroupRunning`` while the group has members, unless ``force`` is set: then they restart from there.
        """
        if offsets:
            operation = group_operations.reset_offsets(group, topic, offsets, force)
            self._caller.call(operation, self._caller.deadline(timeout))

    delays = blocking_method(delay_operations.delays)

    transactions = blocking_method(transaction_operations.transactions)
    end_transaction = blocking_method(transaction_operations.end_transaction)
    commit_prepared = blocking_method(prepared_operations.commit_prepared)
    prepared = blocking_method(prepared_operations.prepared)
    abort_prepared = blocking_method(prepared_operations.abort_prepared)

    users = blocking_method(user_operations.users)
    create_user = blocking_method(user_operations.create_user)
    change_user = blocking_method(user_operations.change_user)
    delete_user = blocking_method(user_operations.delete_user)
    add_access_key = blocking_method(user_operations.add_access_key)
    remove_access_key = blocking_method(user_operations.remove_access_key)

    connections = blocking_method(connection_operations.connections)
    close_connection = blocking_method(connection_operations.close_connection)
    whoami = blocking_method(connection_operations.whoami)
    quarantine = blocking_method(quarantine_operations.quarantine)

    replica_status = blocking_method(replica_operations.replica_status)
    switch_primary = blocking_method(replica_operations.switch_primary)
    add_member = blocking_method(replica_operations.add_member)
    remove_member = blocking_method(replica_operations.remove_member)

    settings = blocking_method(setting_operations.settings)
    change_settings = blocking_method(setting_operations.change_settings)
    status = blocking_method(setting_operations.status)
