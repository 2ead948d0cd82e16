"""Which handler answers which command."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import commands
from ...protocol.frames import Frame
from .handlers import (
    delays,
    group_admin,
    groups,
    hello,
    offsets,
    prepared,
    produce,
    pull,
    query,
    runtime,
    send_back,
    topics,
    transactions,
)
from .handlers.context import Peer

Handler = Callable[[Peer, Frame], None]

_ROWS: tuple[tuple[commands.Command, Handler], ...] = (
    (commands.HELLO, hello.hello),
    (commands.PRODUCE, produce.produce),
    (commands.PULL, pull.pull),
    (commands.QUERY_BY_KEY, query.query_by_key),
    (commands.VIEW_MESSAGE_BY_ID, query.view_message_by_id),
    (commands.QUERY_CONSUMER_OFFSET, offsets.query_consumer_offset),
    (commands.UPDATE_CONSUMER_OFFSET, offsets.update_consumer_offset),
    (commands.GET_CONSUME_STATS, offsets.get_consume_stats),
    (commands.HEART_BEAT, groups.heart_beat),
    (commands.UNREGISTER_CLIENT, groups.unregister_client),
    (commands.CONSUMER_SEND_MSG_BACK, send_back.consumer_send_msg_back),
    (commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, group_admin.get_all_groups),
    (commands.GET_CONSUMER_CONNECTION_LIST, group_admin.get_group_members),
    (commands.DELETE_SUBSCRIPTIONGROUP, group_admin.delete_group),
    (commands.INVOKE_BROKER_TO_RESET_OFFSET, group_admin.reset_offset),
    (commands.SEARCH_OFFSET_BY_TIMESTAMP, offsets.search_offset_by_timestamp),
    (commands.GET_MAX_OFFSET, offsets.get_max_offset),
    (commands.GET_MIN_OFFSET, offsets.get_min_offset),
    (commands.GET_EARLIEST_MSG_STORETIME, offsets.get_earliest_msg_storetime),
    (commands.END_TRANSACTION, transactions.end_transaction),
    (commands.GET_TRANSACTIONS, transactions.get_transactions),
    (commands.COMMIT_PREPARED, prepared.commit_prepared),
    (commands.ABORT_PREPARED, prepared.abort_prepared),
    (commands.GET_PREPARED, prepared.get_prepared),
    (commands.GET_DELAY_STATS, delays.get_delay_stats),
    (commands.UPDATE_AND_CREATE_TOPIC, topics.update_and_create_topic),
    (commands.DELETE_TOPIC_IN_BROKER, topics.delete_topic_in_broker),
    (commands.GET_ALL_TOPIC_CONFIG, topics.get_all_topic_config),
    (commands.GET_TOPIC_STATS_INFO, topics.get_topic_stats_info),
    (commands.GET_BROKER_RUNTIME_INFO, runtime.get_broker_runtime_info),
)

HANDLERS: dict[int, Handler] = {command.code: handler for command, handler in _ROWS}
"""After HELLO."""
assert HANDLERS.keys() == {code for code, command in commands.COMMANDS.items() if not command.from_broker}

HANDLERS_BEFORE_HELLO: dict[int, Handler] = {commands.HELLO.code: hello.hello}

ONE_WAY_CODES = frozenset(command.code for command, _ in _ROWS if command.one_way)
"""Commands that a one-way frame may carry."""
