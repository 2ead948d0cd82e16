"""The table of requests: the handler of each code, and the permission that a user needs for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ...protocol.auth.permissions import ADMIN, CONSUME, PUBLISH, QUERY
from ...protocol.errors import BrokerError
from ...protocol.remoting import codes
from ..handlers.registry import services_of
from ..requests.broker import Broker
from . import rules
from .bodies import JSON_BYTES_MAX, decoded
from .handlers import (
    assignments,
    broker_admin,
    client_calls,
    clients,
    consumer_groups,
    live_clients,
    locks,
    offsets,
    pop,
    produce,
    progress,
    pull,
    queries,
    recalls,
    replies,
    routes,
    send_back,
    topic_admin,
    transactions,
)
from .handlers import subscription_groups as groups
from .request import RemotingRequest
from .rules import Rule

RemotingHandler: TypeAlias = Callable[[RemotingRequest], None]

ROWS: tuple[tuple[int, Callable[..., None], Rule], ...] = (
    (codes.SEND_MESSAGE, produce.send_message, rules.PUBLISHES),
    (codes.SEND_MESSAGE_V2, produce.send_message, rules.PUBLISHES_V2),
    (codes.SEND_BATCH_MESSAGE, produce.send_message, rules.PUBLISHES_V2),
    (codes.RECALL_MESSAGE, recalls.recall_message, rules.PUBLISHES),
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
    (codes.SET_MESSAGE_REQUEST_MODE, assignments.set_message_request_mode, rules.anybody),
    (codes.GET_MESSAGE_REQUEST_MODE, assignments.get_message_request_mode, rules.anybody),
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
    (codes.POP_MESSAGE, pop.pop_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.ACK_MESSAGE, pop.ack_message, rules.of_popped),
    (codes.BATCH_ACK_MESSAGE, pop.batch_ack_message, rules.anybody),
    (codes.CHANGE_MESSAGE_INVISIBLETIME, pop.change_message_invisibletime, rules.of_popped),
    (codes.NOTIFICATION, pop.notification, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.POLLING_INFO, pop.polling_info, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.GET_ROUTEINFO_BY_TOPIC, routes.get_routeinfo_by_topic, rules.anybody),
    (codes.GET_BROKER_CLUSTER_INFO, routes.get_broker_cluster_info, rules.anybody),
    (codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, routes.get_all_topic_list_from_nameserver, rules.anybody),
    (codes.GET_TOPICS_BY_CLUSTER, routes.get_topics_by_cluster, rules.anybody),
    (codes.GET_SYSTEM_TOPIC_LIST_FROM_NS, routes.get_system_topic_list_from_ns, rules.anybody),
    (codes.GET_UNIT_TOPIC_LIST, routes.get_unit_topic_list, rules.anybody),
    (codes.GET_HAS_UNIT_SUB_TOPIC_LIST, routes.get_unit_topic_list, rules.anybody),
    (codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, routes.get_unit_topic_list, rules.anybody),
    (codes.GET_KV_CONFIG, routes.get_kv_config, rules.anybody),
    (codes.DELETE_KV_CONFIG, routes.delete_kv_config, rules.broker(ADMIN)),
    (codes.GET_KVLIST_BY_NAMESPACE, routes.get_kvlist_by_namespace, rules.anybody),
    (codes.DELETE_TOPIC_IN_NAMESRV, routes.delete_topic_in_namesrv, rules.topic(ADMIN)),
    (codes.WIPE_WRITE_PERM_OF_BROKER, routes.wipe_write_perm_of_broker, rules.broker(ADMIN)),
    (codes.ADD_WRITE_PERM_OF_BROKER, routes.add_write_perm_of_broker, rules.broker(ADMIN)),
    (codes.GET_NAMESRV_CONFIG, routes.get_namesrv_config, rules.broker(QUERY)),
    (codes.GET_BROKER_MEMBER_GROUP, routes.get_broker_member_group, rules.anybody),
    (codes.NOTIFY_MIN_BROKER_ID_CHANGE, routes.notify_min_broker_id_change, rules.anybody),
    (codes.VIEW_MESSAGE_BY_ID, queries.view_message_by_id, rules.topic(QUERY)),
    (codes.QUERY_MESSAGE, queries.query_message, rules.topic(QUERY)),
    (codes.QUERY_CONSUME_QUEUE, queries.query_consume_queue, rules.topic(QUERY)),
    (codes.UPDATE_AND_CREATE_TOPIC, topic_admin.update_and_create_topic, rules.topic(ADMIN)),
    (codes.UPDATE_AND_CREATE_TOPIC_LIST, topic_admin.update_and_create_topic_list, rules.anybody),
    (codes.DELETE_TOPIC_IN_BROKER, topic_admin.delete_topic_in_broker, rules.topic(ADMIN)),
    (codes.GET_ALL_TOPIC_CONFIG, topic_admin.get_all_topic_config, rules.anybody),
    (codes.GET_TOPIC_CONFIG, topic_admin.get_topic_config, rules.topic(QUERY, PUBLISH, CONSUME, ADMIN)),
    (codes.GET_TOPIC_STATS_INFO, topic_admin.get_topic_stats_info, rules.topic(QUERY, PUBLISH, ADMIN)),
    (codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, topic_admin.get_system_topic_list_from_broker, rules.anybody),
    (codes.CLEAN_UNUSED_TOPIC, topic_admin.confirm, rules.broker(ADMIN)),
    (codes.CLEAN_EXPIRED_CONSUMEQUEUE, topic_admin.confirm, rules.broker(ADMIN)),
    (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, groups.update_and_create_subscriptiongroup, rules.anybody),
    (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups.update_and_create_subscriptiongroup_list, rules.anybody),
    (codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups.get_all_subscriptiongroup_config, rules.anybody),
    (
        codes.GET_SUBSCRIPTIONGROUP_CONFIG,
        groups.get_subscriptiongroup_config,
        rules.group(QUERY, CONSUME, field="group"),
    ),
    (codes.DELETE_SUBSCRIPTIONGROUP, groups.delete_subscriptiongroup, rules.group(ADMIN, field="groupName")),
    (codes.QUERY_TOPICS_BY_CONSUMER, groups.query_topics_by_consumer, rules.group(QUERY, field="group")),
    (codes.GET_ALL_PRODUCER_INFO, live_clients.get_all_producer_info, rules.anybody),
    (
        codes.QUERY_SUBSCRIPTION_BY_CONSUMER,
        live_clients.query_subscription_by_consumer,
        rules.of_group_in_topic(QUERY, QUERY, field="group"),
    ),
    (codes.CLONE_GROUP_OFFSET, groups.clone_group_offset, rules.CLONES),
    (codes.QUERY_CONSUME_TIME_SPAN, progress.query_consume_time_span, rules.of_group_in_topic(QUERY, QUERY, "group")),
    (codes.GET_BROKER_CONSUME_STATS, progress.get_broker_consume_stats, rules.anybody),
    (codes.GET_BROKER_RUNTIME_INFO, broker_admin.get_broker_runtime_info, rules.broker(QUERY)),
    (codes.GET_BROKER_CONFIG, broker_admin.get_broker_config, rules.broker(QUERY)),
    (codes.UPDATE_BROKER_CONFIG, broker_admin.update_broker_config, rules.broker(ADMIN)),
    (codes.VIEW_BROKER_STATS_DATA, broker_admin.view_broker_stats_data, rules.broker(QUERY)),
    (codes.GET_BROKER_HA_STATUS, broker_admin.get_broker_ha_status, rules.broker(QUERY)),
    (codes.GET_ALL_DELAY_OFFSET, broker_admin.get_all_delay_offset, rules.broker(QUERY)),
    (codes.GET_ALL_CONSUMER_OFFSET, broker_admin.get_all_consumer_offset, rules.anybody),
)


def with_parts(handler: Callable[..., None]) -> RemotingHandler:
    """Return ``handler`` as a function of the request alone: it gets the gateway, or parts of the broker, by name."""
    # Once for each handler, not for each request.
    services = services_of(handler)
    return lambda request: handler(request, *services(request))


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
HANDLERS |= {code: decoded(HANDLERS[code], bytes_max) for code, bytes_max in JSON_BYTES_MAX.items()}
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
