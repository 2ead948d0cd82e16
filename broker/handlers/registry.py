"""The table of commands: the handler of each, and the permission that a user needs for it.

A handler names the parts of the broker that it uses as parameters after the request: ``services_of`` finds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from ...protocol import commands
from ...protocol.auth.permissions import ADMIN, CONSUME, PUBLISH, QUERY
from . import (
    broker_admin,
    groups,
    offsets,
    pop,
    produce,
    pull,
    queries,
    replication,
    rules,
    send_back,
    staged,
    topics,
    transactions,
    users,
)

if TYPE_CHECKING:
    from ..requests.request import Request
    from .rules import Handler, Rule

ROWS: tuple[tuple[commands.Command, Handler, Rule], ...] = (
    (commands.HELLO, broker_admin.hello, rules.anybody),
    (commands.AUTH, users.auth, rules.anybody),
    (commands.PRODUCE, produce.produce, rules.topic(PUBLISH)),
    (commands.PULL, pull.pull, rules.of_group_in_topic(CONSUME, CONSUME)),
    (commands.POP_MESSAGE, pop.pop_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (commands.ACK_MESSAGE, pop.ack_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (
        commands.CHANGE_MESSAGE_INVISIBLETIME,
        pop.change_message_invisibletime,
        rules.of_group_in_topic(CONSUME, CONSUME),
    ),
    (commands.BROWSE_MESSAGES, queries.browse_messages, rules.topic(QUERY)),
    (commands.QUERY_BY_KEY, queries.query_by_key, rules.topic(QUERY)),
    (commands.VIEW_MESSAGE_BY_ID, queries.view_message_by_id, rules.topic(QUERY)),
    (commands.QUERY_CONSUMER_OFFSET, offsets.query_consumer_offset, rules.of_group_in_topic(QUERY, QUERY)),
    (commands.UPDATE_CONSUMER_OFFSET, offsets.update_consumer_offset, rules.of_group_in_topic(CONSUME, CONSUME)),
    (commands.GET_CONSUME_STATS, offsets.get_consume_stats, rules.of_group_in_topic(QUERY, QUERY)),
    (commands.HEART_BEAT, groups.heart_beat, rules.member),
    (commands.UNREGISTER_CLIENT, groups.unregister_client, rules.member),
    (commands.CONSUMER_SEND_MSG_BACK, send_back.consumer_send_msg_back, rules.of_group_in_topic(CONSUME, CONSUME)),
    (commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups.get_all_groups, rules.anybody),
    (commands.GET_CONSUMER_CONNECTION_LIST, groups.get_group_members, rules.group(QUERY)),
    (commands.DELETE_SUBSCRIPTIONGROUP, groups.delete_group, rules.group(ADMIN)),
    (commands.INVOKE_BROKER_TO_RESET_OFFSET, groups.reset_offset, rules.of_group_in_topic(ADMIN, QUERY)),
    (commands.SEARCH_OFFSET_BY_TIMESTAMP, offsets.search_offset_by_timestamp, rules.topic(QUERY)),
    (commands.GET_MAX_OFFSET, offsets.get_max_offset, rules.topic(QUERY)),
    (commands.GET_MIN_OFFSET, offsets.get_min_offset, rules.topic(QUERY)),
    (commands.GET_EARLIEST_MSG_STORETIME, offsets.get_earliest_msg_storetime, rules.topic(QUERY)),
    (commands.END_TRANSACTION, transactions.end_transaction, rules.group(PUBLISH)),
    (commands.GET_TRANSACTIONS, transactions.get_transactions, rules.anybody),
    (commands.COMMIT_PREPARED, staged.commit_staged, rules.on_any_topic(PUBLISH)),
    (commands.ABORT_PREPARED, staged.abort_staged, rules.on_any_topic(PUBLISH)),
    (commands.GET_PREPARED, staged.get_staged, rules.anybody),
    (commands.GET_DELAY_STATS, broker_admin.get_delay_stats, rules.broker(QUERY)),
    (commands.UPDATE_AND_CREATE_TOPIC, topics.update_and_create_topic, rules.topic(ADMIN)),
    (commands.DELETE_TOPIC_IN_BROKER, topics.delete_topic_in_broker, rules.topic(ADMIN)),
    (commands.GET_ALL_TOPIC_CONFIG, topics.get_all_topic_config, rules.anybody),
    (commands.GET_TOPICS_STATS, topics.get_topics_stats, rules.anybody),
    (commands.GET_TOPIC_STATS_INFO, topics.get_topic_stats_info, rules.topic(QUERY, PUBLISH, ADMIN)),
    (commands.GET_BROKER_CONFIG, broker_admin.get_broker_config, rules.broker(QUERY)),
    (commands.UPDATE_BROKER_CONFIG, broker_admin.update_broker_config, rules.broker(ADMIN)),
    (commands.AUTH_CREATE_USER, users.auth_create_user, rules.broker(ADMIN)),
    (commands.AUTH_UPDATE_USER, users.auth_update_user, rules.broker(ADMIN)),
    (commands.AUTH_DELETE_USER, users.auth_delete_user, rules.broker(ADMIN)),
    (commands.AUTH_LIST_USER, users.auth_list_user, rules.broker(ADMIN)),
    (commands.REPLICATE, replication.replicate, rules.broker(ADMIN)),
    (commands.REPORT_POSITION, replication.report_position, rules.broker(ADMIN)),
    (commands.GET_REPLICA_STATUS, replication.get_replica_status, rules.broker(QUERY)),
    (commands.SWITCH_PRIMARY, replication.switch_primary, rules.broker(ADMIN)),
    (commands.CHANGE_MEMBERS, replication.change_members, rules.broker(ADMIN)),
    (commands.GET_CONNECTIONS, broker_admin.get_connections, rules.broker(QUERY)),
    (commands.CLOSE_CONNECTION, broker_admin.close_connection, rules.broker(ADMIN)),
    (commands.GET_QUARANTINE, broker_admin.get_quarantine, rules.broker(QUERY)),
    (commands.GET_RIGHTS, broker_admin.get_rights, rules.anybody),
    (commands.GET_BROKER_RUNTIME_INFO, broker_admin.get_broker_runtime_info, rules.anybody),
)


Services: TypeAlias = "Callable[[Request], tuple[Any, ...]]"
"""Returns the parts of the broker that a handler gets after the request."""
Served: TypeAlias = "tuple[Handler, Services]"
"""A handler, and the parts that it gets."""

_OF_REQUEST = frozenset({"broker", "gateway"})
"""Parameters that are looked up on the request itself: the whole broker, which handlers of messages and reports on all
of it take, and the gateway for RocketMQ's clients."""


def services_of(handler: Handler) -> Services:
    """Return a function that finds the attributes of ``Broker`` that ``handler`` names.

    Each call looks them up again, because some are replaced while the broker runs: settings, the server's callbacks.
    """
    names = list(inspect.signature(handler).parameters)[1:]
    paths = [name if name in _OF_REQUEST else f"broker.{name}" for name in names]
    if not paths:
        return lambda request: ()
    found = attrgetter(*paths)
    return found if len(paths) > 1 else lambda request: (found(request),)


OF_EVERY_MEMBER = frozenset(
    command.code
    for command in (
        commands.HELLO,
        commands.AUTH,
        commands.REPLICATE,
        commands.REPORT_POSITION,
        commands.GET_REPLICA_STATUS,
        commands.GET_BROKER_CONFIG,
        commands.UPDATE_BROKER_CONFIG,
        commands.AUTH_LIST_USER,
        commands.GET_CONNECTIONS,
        commands.CLOSE_CONNECTION,
        commands.GET_QUARANTINE,
        commands.GET_RIGHTS,
        commands.GET_BROKER_RUNTIME_INFO,
    )
)
"""Commands that every member of a replica set serves; all others are for the primary."""


READS = frozenset(
    command.code
    for command in (
        commands.PULL,
        commands.BROWSE_MESSAGES,
        commands.QUERY_BY_KEY,
        commands.VIEW_MESSAGE_BY_ID,
        commands.SEARCH_OFFSET_BY_TIMESTAMP,
        commands.GET_MAX_OFFSET,
        commands.GET_MIN_OFFSET,
        commands.GET_EARLIEST_MSG_STORETIME,
        commands.GET_ALL_TOPIC_CONFIG,
        commands.GET_TOPICS_STATS,
        commands.GET_TOPIC_STATS_INFO,
    )
)
"""Commands that a follower in sync serves too, with what is confirmed, on connections that ask for it and outside of
consumer groups."""


def of_members(handlers: dict[int, Served]) -> dict[int, Served]:
    """Return the handlers on a member of a replica set: it refuses what only the primary may answer."""
    return {
        code: (handler if code in OF_EVERY_MEMBER else _on_primary(handler, reads=code in READS), services)
        for code, (handler, services) in handlers.items()
    }


def _on_primary(handler: Handler, *, reads: bool) -> Handler:
    def check_and_handle(request: Request, *services: Any) -> Coroutine[Any, Any, None] | None:
        member = request.broker.member
        assert member is not None, "for members of a replica set"
        may_follow = reads and request.peer.reads_any and not request.frame.fields.get("group")
        refusal = member.refusal(may_follow=may_follow)
        if refusal is not None:
            raise refusal
        return handler(request, *services)

    return check_and_handle


HANDLERS: dict[int, Served] = {command.code: (handler, services_of(handler)) for command, handler, _ in ROWS}
"""Handlers after HELLO on a broker without authentication, by command code."""
assert HANDLERS.keys() == {code for code, command in commands.COMMANDS.items() if not command.from_broker}

RULES: dict[int, Rule] = {command.code: rule for command, _, rule in ROWS}
"""Permission rule of each command, by command code."""

HANDLERS_OF_USERS: dict[int, Served] = {
    code: (rules.guarded(handler, RULES[code]), services) for code, (handler, services) in HANDLERS.items()
}
HANDLERS_OF_USERS[commands.PRODUCE.code] = rules.guarded_produce(produce.produce), services_of(produce.produce)
"""Handlers of authenticated connections."""

HANDLERS_OF_MEMBERS = of_members(HANDLERS)
HANDLERS_OF_MEMBERS_USERS = of_members(HANDLERS_OF_USERS)
"""The same on a member of a replica set."""

HANDLERS_BEFORE_HELLO: dict[int, Served] = {commands.HELLO.code: HANDLERS[commands.HELLO.code]}
HANDLERS_BEFORE_AUTH: dict[int, Served] = {**HANDLERS_BEFORE_HELLO, commands.AUTH.code: HANDLERS[commands.AUTH.code]}
"""Handlers after HELLO and before authentication."""

ONE_WAY_CODES = frozenset(command.code for command, *_ in ROWS if command.one_way)
"""Commands that a one-way frame may carry."""
