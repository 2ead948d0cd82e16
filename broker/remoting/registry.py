"""The table of requests: the handler of each code, and the permission that a user needs for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

from ...protocol.auth.permissions import ADMIN, CONSUME, PUBLISH, QUERY
from ...protocol.errors import BrokerError
from ...protocol.remoting import codes
from ..requests.broker import Broker
from . import rules
from .handlers import (
    assignments,
    client_calls,
    clients,
    consumer_groups,
    locks,
    offsets,
    produce,
    pull,
    replies,
    routes,
    send_back,
    transactions,
)
from .request import RemotingRequest
from .rules import Rule

RemotingHandler: TypeAlias = Callable[[RemotingRequest], None]

ROWS: tuple[tuple[int, Callable[..., None], Rule], ...] = (
    (codes.SEND_MESSAGE, produce.send_message, rules.PUBLISHES),
    (codes.SEND_MESSAGE_V2, produce.send_message, rules.PUBLISHES_V2),
    (codes.SEND_BATCH_MESSAGE, produce.send_message, rules.PUBLISHES_V2),
    (codes.END_TRANSACTION, transactions.end_transaction, rules.group(PUBLISH, field="producerGroup")),
    (codes.RESUME_CHECK_HALF_MESSAGE, transactions.resume_check_half_message, rules.broker(ADMIN)),
    (codes.SEND_REPLY_MESSAGE, replies.send_reply_message, rules.PUBLISHES),
    (codes.SEND_REPLY_MESSAGE_V2, replies.send_reply_message, rules.PUBLISHES_V2),
    (codes.PULL_MESSAGE, pull.pull_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.LITE_PULL_MESSAGE, pull.pull_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.QUERY_CONSUMER_OFFSET, offsets.query_consumer_offset, rules.of_group_in_topic(QUERY, QUERY)),
    (codes.UPDATE_CONSUMER_OFFSET, offsets.update_consumer_offset, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.SEARCH_OFFSET_BY_TIMESTAMP, offsets.search_offset_by_timestamp, rules.topic(QUERY)),
    (codes.GET_MAX_OFFSET, offsets.get_max_offset, rules.topic(QUERY)),
    (codes.GET_MIN_OFFSET, offsets.get_min_offset, rules.topic(QUERY)),
    (codes.GET_EARLIEST_MSG_STORETIME, offsets.get_earliest_msg_storetime, rules.topic(QUERY)),
    (codes.QUERY_CORRECTION_OFFSET, offsets.query_correction_offset, rules.topic(QUERY)),
    (codes.CONSUMER_SEND_MSG_BACK, send_back.consumer_send_msg_back, rules.group(CONSUME, field="group")),
    (codes.HEART_BEAT, clients.heart_beat, rules.anybody),
    (codes.UNREGISTER_CLIENT, clients.unregister_client, rules.of_client),
    (codes.GET_CONSUMER_LIST_BY_GROUP, clients.get_consumer_list_by_group, rules.group(CONSUME, QUERY)),
    (codes.CHECK_CLIENT_CONFIG, clients.check_client_config, rules.anybody),
    (codes.LOCK_BATCH_MQ, locks.lock_batch_mq, rules.anybody),
    (codes.UNLOCK_BATCH_MQ, locks.unlock_batch_mq, rules.anybody),
    (codes.QUERY_ASSIGNMENT, assignments.query_assignment, rules.anybody),
    (codes.SET_MESSAGE_REQUEST_MODE, assignments.refuse_request_mode, rules.anybody),
    (codes.GET_MESSAGE_REQUEST_MODE, assignments.refuse_request_mode, rules.anybody),
    (codes.GET_CONSUMER_CONNECTION_LIST, consumer_groups.get_consumer_connection_list, rules.group(QUERY)),
    (codes.GET_PRODUCER_CONNECTION_LIST, consumer_groups.get_producer_connection_list, rules.broker(QUERY)),
    (codes.GET_CONSUME_STATS, consumer_groups.get_consume_stats, rules.group(QUERY)),
    (
        codes.INVOKE_BROKER_TO_RESET_OFFSET,
        consumer_groups.reset_offset,
        rules.of_group_in_topic(ADMIN, QUERY, field="group"),
    ),
    (codes.QUERY_TOPIC_CONSUME_BY_WHO, consumer_groups.query_topic_consume_by_who, rules.topic(QUERY)),
    (codes.GET_CONSUMER_RUNNING_INFO, client_calls.get_consumer_running_info, rules.group(QUERY)),
    (codes.CONSUME_MESSAGE_DIRECTLY, client_calls.consume_message_directly, rules.group(ADMIN)),
    (codes.GET_ROUTEINFO_BY_TOPIC, routes.get_routeinfo_by_topic, rules.anybody),
    (codes.GET_BROKER_CLUSTER_INFO, routes.get_broker_cluster_info, rules.anybody),
)


def with_parts(handler: Callable[..., None]) -> RemotingHandler:
    """Return ``handler`` as a function of the request alone: it gets the gateway, or parts of the broker, by name."""
    names = list(inspect.signature(handler).parameters)[1:]
    if not names:
        return handler

    def call(request: RemotingRequest) -> None:
        broker = request.broker
        handler(request, *[request.gateway if name == "gateway" else getattr(broker, name) for name in names])

    return call


def guarded(handler: RemotingHandler, rule: Rule) -> RemotingHandler:
    """Return ``handler`` for clients with a user: it is called only if the user has what ``rule`` needs."""
    if rule is rules.anybody:
        return handler

    def check_and_handle(request: RemotingRequest) -> None:
        rules.check(request, *rule(request.received.fields))
        handler(request)

    return check_and_handle


def on_primary(handler: RemotingHandler) -> RemotingHandler:
    """Return ``handler`` for a member of a replica set: it refuses to answer while another member leads."""

    def check_and_handle(request: RemotingRequest) -> None:
        refusal = _refusal(request)
        if refusal is not None:
            raise refusal
        handler(request)

    return check_and_handle


def routes_on_primary(handler: RemotingHandler) -> RemotingHandler:
    """Return ``handler`` for a member of a replica set: while another member leads, it closes the connection after its
    answer, because only then a client asks the next of its name servers."""

    def check_and_handle(request: RemotingRequest) -> None:
        refusal = _refusal(request)
        if refusal is not None:
            request.refuse(refusal)
        else:
            handler(request)

    return check_and_handle


def _refusal(request: RemotingRequest) -> BrokerError | None:
    member = request.broker.member
    assert member is not None, "for members of a replica set"
    return member.refusal()


def _of_members(handlers: dict[int, RemotingHandler]) -> dict[int, RemotingHandler]:
    return {
        code: routes_on_primary(handler) if code in ROUTE_CODES else on_primary(handler)
        for code, handler in handlers.items()
    }


ROUTE_CODES = frozenset({codes.GET_ROUTEINFO_BY_TOPIC, codes.GET_BROKER_CLUSTER_INFO})
"""Requests that name servers answer without a signature."""
HANDLERS: dict[int, RemotingHandler] = {code: with_parts(handler) for code, handler, _ in ROWS}
"""Handlers on a broker without users, by request code."""
assert len(HANDLERS) == len(ROWS), "one row for each request code"
HANDLERS_OF_USERS: dict[int, RemotingHandler] = {code: guarded(HANDLERS[code], rule) for code, _, rule in ROWS}
"""Handlers of clients that have signed with a user's access key."""
_HANDLERS_OF_MEMBERS = _of_members(HANDLERS)
_HANDLERS_OF_MEMBERS_USERS = _of_members(HANDLERS_OF_USERS)


def handlers_for(broker: Broker) -> dict[int, RemotingHandler]:
    """Return the handlers of a broker's connections: with users or without, alone or in a replica set."""
    if broker.member is None:
        return HANDLERS if broker.authenticator is None else HANDLERS_OF_USERS
    return _HANDLERS_OF_MEMBERS if broker.authenticator is None else _HANDLERS_OF_MEMBERS_USERS
