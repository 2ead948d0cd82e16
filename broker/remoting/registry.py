"""The table of requests: the handler of each code, and the permission that a user needs for it."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.auth.permissions import ADMIN, CONSUME, PUBLISH, QUERY
from ...protocol.errors import BrokerError, UnknownCommand
from ...protocol.remoting import codes
from ..handlers.registry import services_of
from ..requests.broker import Broker
from . import rules
from .handlers import broker_admin, clients, groups, offsets, pop, produce, pull, topics, transactions
from .request import JSON_BYTES_MAX, RemotingHandler, RemotingRequest, Waits, decoded
from .rules import Rule

ROWS: tuple[tuple[int, Callable[..., Waits], Rule], ...] = (
    (codes.SEND_MESSAGE, produce.send_message, rules.PUBLISHES),
    (codes.SEND_MESSAGE_V2, produce.send_message, rules.PUBLISHES_V2),
    (codes.SEND_BATCH_MESSAGE, produce.send_message, rules.PUBLISHES_V2),
    (codes.RECALL_MESSAGE, produce.recall_message, rules.PUBLISHES),
    (codes.END_TRANSACTION, transactions.end_transaction, rules.group(PUBLISH, field="producerGroup")),
    (codes.RESUME_CHECK_HALF_MESSAGE, transactions.resume_check_half_message, rules.broker(ADMIN)),
    (codes.SEND_REPLY_MESSAGE, produce.send_reply_message, rules.PUBLISHES),
    (codes.SEND_REPLY_MESSAGE_V2, produce.send_reply_message, rules.PUBLISHES_V2),
    (codes.PULL_MESSAGE, pull.pull_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.LITE_PULL_MESSAGE, pull.pull_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.QUERY_CONSUMER_OFFSET, offsets.query_consumer_offset, rules.of_group_in_topic(QUERY, QUERY)),
    (codes.UPDATE_CONSUMER_OFFSET, offsets.update_consumer_offset, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.SEARCH_OFFSET_BY_TIMESTAMP, offsets.search_offset_by_timestamp, rules.topic(QUERY)),
    (codes.GET_MAX_OFFSET, offsets.get_max_offset, rules.topic(QUERY)),
    (codes.GET_MIN_OFFSET, offsets.get_min_offset, rules.topic(QUERY)),
    (codes.GET_EARLIEST_MSG_STORETIME, offsets.get_earliest_msg_storetime, rules.topic(QUERY)),
    (codes.QUERY_CORRECTION_OFFSET, offsets.query_correction_offset, rules.topic(QUERY)),
    (codes.CONSUMER_SEND_MSG_BACK, produce.consumer_send_msg_back, rules.group(CONSUME, field="group")),
    (codes.HEART_BEAT, clients.heart_beat, rules.anybody),
    (codes.UNREGISTER_CLIENT, clients.unregister_client, rules.of_client),
    (codes.GET_CONSUMER_LIST_BY_GROUP, clients.get_consumer_list_by_group, rules.group(CONSUME, QUERY)),
    (codes.CHECK_CLIENT_CONFIG, clients.check_client_config, rules.anybody),
    (codes.LOCK_BATCH_MQ, clients.lock_batch_mq, rules.anybody),
    (codes.UNLOCK_BATCH_MQ, clients.unlock_batch_mq, rules.anybody),
    (codes.QUERY_ASSIGNMENT, groups.query_assignment, rules.anybody),
    (codes.SET_MESSAGE_REQUEST_MODE, groups.set_message_request_mode, rules.anybody),
    (codes.GET_MESSAGE_REQUEST_MODE, groups.get_message_request_mode, rules.anybody),
    (codes.GET_CONSUMER_CONNECTION_LIST, groups.get_consumer_connection_list, rules.group(QUERY)),
    (codes.GET_PRODUCER_CONNECTION_LIST, groups.get_producer_connection_list, rules.broker(QUERY)),
    (codes.GET_CONSUME_STATS, groups.get_consume_stats, rules.group(QUERY)),
    (codes.INVOKE_BROKER_TO_RESET_OFFSET, groups.reset_offset, rules.of_group_in_topic(ADMIN, QUERY, field="group")),
    (codes.QUERY_TOPIC_CONSUME_BY_WHO, groups.query_topic_consume_by_who, rules.topic(QUERY)),
    (codes.GET_CONSUMER_RUNNING_INFO, clients.get_consumer_running_info, rules.group(QUERY)),
    (codes.CONSUME_MESSAGE_DIRECTLY, clients.consume_message_directly, rules.group(ADMIN)),
    (codes.POP_MESSAGE, pop.pop_message, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.ACK_MESSAGE, pop.ack_message, rules.of_popped),
    (codes.BATCH_ACK_MESSAGE, pop.batch_ack_message, rules.anybody),
    (codes.CHANGE_MESSAGE_INVISIBLETIME, pop.change_message_invisibletime, rules.of_popped),
    (codes.NOTIFICATION, pop.notification, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.POLLING_INFO, pop.polling_info, rules.of_group_in_topic(CONSUME, CONSUME)),
    (codes.GET_ROUTEINFO_BY_TOPIC, topics.get_routeinfo_by_topic, rules.anybody),
    (codes.GET_BROKER_CLUSTER_INFO, topics.get_broker_cluster_info, rules.anybody),
    (codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, topics.get_all_topic_list_from_nameserver, rules.anybody),
    (codes.GET_TOPICS_BY_CLUSTER, topics.get_topics_by_cluster, rules.anybody),
    (codes.GET_SYSTEM_TOPIC_LIST_FROM_NS, topics.get_system_topic_list_from_ns, rules.anybody),
    (codes.GET_UNIT_TOPIC_LIST, topics.get_unit_topic_list, rules.anybody),
    (codes.GET_HAS_UNIT_SUB_TOPIC_LIST, topics.get_unit_topic_list, rules.anybody),
    (codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, topics.get_unit_topic_list, rules.anybody),
    (codes.GET_KV_CONFIG, topics.get_kv_config, rules.anybody),
    (codes.DELETE_KV_CONFIG, topics.delete_kv_config, rules.broker(ADMIN)),
    (codes.GET_KVLIST_BY_NAMESPACE, topics.get_kvlist_by_namespace, rules.anybody),
    (codes.DELETE_TOPIC_IN_NAMESRV, topics.delete_topic_in_namesrv, rules.topic(ADMIN)),
    (codes.WIPE_WRITE_PERM_OF_BROKER, topics.wipe_write_perm_of_broker, rules.broker(ADMIN)),
    (codes.ADD_WRITE_PERM_OF_BROKER, topics.add_write_perm_of_broker, rules.broker(ADMIN)),
    (codes.GET_NAMESRV_CONFIG, topics.get_namesrv_config, rules.broker(QUERY)),
    (codes.GET_BROKER_MEMBER_GROUP, topics.get_broker_member_group, rules.anybody),
    (codes.NOTIFY_MIN_BROKER_ID_CHANGE, topics.notify_min_broker_id_change, rules.anybody),
    (codes.VIEW_MESSAGE_BY_ID, pull.view_message_by_id, rules.topic(QUERY)),
    (codes.QUERY_MESSAGE, pull.query_message, rules.topic(QUERY)),
    (codes.QUERY_CONSUME_QUEUE, pull.query_consume_queue, rules.topic(QUERY)),
    (codes.UPDATE_AND_CREATE_TOPIC, topics.update_and_create_topic, rules.topic(ADMIN)),
    (codes.UPDATE_AND_CREATE_TOPIC_LIST, topics.update_and_create_topic_list, rules.anybody),
    (codes.DELETE_TOPIC_IN_BROKER, topics.delete_topic_in_broker, rules.topic(ADMIN)),
    (codes.GET_ALL_TOPIC_CONFIG, topics.get_all_topic_config, rules.anybody),
    (codes.GET_TOPIC_CONFIG, topics.get_topic_config, rules.topic(QUERY, PUBLISH, CONSUME, ADMIN)),
    (codes.GET_TOPIC_STATS_INFO, topics.get_topic_stats_info, rules.topic(QUERY, PUBLISH, ADMIN)),
    (codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, topics.get_system_topic_list_from_broker, rules.anybody),
    (codes.CLEAN_UNUSED_TOPIC, topics.confirm, rules.broker(ADMIN)),
    (codes.CLEAN_EXPIRED_CONSUMEQUEUE, topics.confirm, rules.broker(ADMIN)),
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
    (codes.GET_ALL_PRODUCER_INFO, groups.get_all_producer_info, rules.anybody),
    (
        codes.QUERY_SUBSCRIPTION_BY_CONSUMER,
        groups.query_subscription_by_consumer,
        rules.of_group_in_topic(QUERY, QUERY, field="group"),
    ),
    (codes.CLONE_GROUP_OFFSET, groups.clone_group_offset, rules.CLONES),
    (codes.QUERY_CONSUME_TIME_SPAN, groups.query_consume_time_span, rules.of_group_in_topic(QUERY, QUERY, "group")),
    (codes.GET_BROKER_CONSUME_STATS, groups.get_broker_consume_stats, rules.anybody),
    (codes.GET_BROKER_RUNTIME_INFO, broker_admin.get_broker_runtime_info, rules.broker(QUERY)),
    (codes.GET_BROKER_CONFIG, broker_admin.get_broker_config, rules.broker(QUERY)),
    (codes.UPDATE_BROKER_CONFIG, broker_admin.update_broker_config, rules.broker(ADMIN)),
    (codes.VIEW_BROKER_STATS_DATA, broker_admin.view_broker_stats_data, rules.broker(QUERY)),
    (codes.GET_BROKER_HA_STATUS, broker_admin.get_broker_ha_status, rules.broker(QUERY)),
    (codes.GET_ALL_DELAY_OFFSET, broker_admin.get_all_delay_offset, rules.broker(QUERY)),
    (codes.GET_ALL_CONSUMER_OFFSET, broker_admin.get_all_consumer_offset, rules.anybody),
)


def with_parts(handler: Callable[..., Waits]) -> RemotingHandler:
    """Return ``handler`` as a function of the request alone: it gets the gateway, or parts of the broker, by name."""
    # Once for each handler, not for each request.
    services = services_of(handler)
    return lambda request: handler(request, *services(request))


def guarded(handler: RemotingHandler, rule: Rule) -> RemotingHandler:
    """Return ``handler`` for clients with a user: it is called only if the user has what ``rule`` needs."""
    if rule is rules.anybody:
        return handler

    def check_and_handle(request: RemotingRequest) -> Waits:
        rules.check(request, *rule(request.received.fields))
        return handler(request)

    return check_and_handle


def on_primary(handler: RemotingHandler) -> RemotingHandler:
    """Return ``handler`` for a member of a replica set: it refuses to answer while another member leads."""

    def check_and_handle(request: RemotingRequest) -> Waits:
        refusal = _refusal(request)
        if refusal is not None:
            raise refusal
        return handler(request)

    return check_and_handle


def routes_on_primary(handler: RemotingHandler) -> RemotingHandler:
    """Return ``handler`` for a member of a replica set: while another member leads, it closes the connection after its
    answer, because only then a client asks the next of its name servers."""

    def check_and_handle(request: RemotingRequest) -> Waits:
        refusal = _refusal(request)
        if refusal is not None:
            request.refuse(refusal)
            return None
        return handler(request)

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


# ---- Requests of RocketMQ that the gateway knows and does not serve, and the reason.

_OWN_REPLICATION = "FlintMQ's replica sets have a protocol of their own; see docs/replication.md"
_NO_CONTROLLER = "replica sets keep their primary in etcd and need no controller"
_NO_KV = "the table of settings of this name server is always empty"
_NO_COLD_DATA = "server.reader_threads bounds the reads from the disk of all clients"
_OWN_USERS = "users and permissions are changed by `flintmq user`"
_OF_OLD_CLIENTS = "no client of RocketMQ 4 or 5 sends it"
_FROM_BROKERS = "brokers send it to clients"
_NO_LITE_TOPICS = "FlintMQ has no lite topics"
_OWN_NAME_SERVER = "this broker answers for itself alone; other brokers need a name server of Apache RocketMQ"

UNSUPPORTED: dict[int, tuple[str, str]] = {
    13: ("QUERY_BROKER_OFFSET", _OF_OLD_CLIENTS),
    22: ("GET_TOPIC_CONFIG_LIST", _OF_OLD_CLIENTS),
    23: ("GET_TOPIC_NAME_LIST", _OF_OLD_CLIENTS),
    27: ("TRIGGER_DELETE_FILES", "retention deletes files; set deleteWhen to the present hour to have that done now"),
    39: ("CHECK_TRANSACTION_STATE", _FROM_BROKERS),
    40: ("NOTIFY_CONSUMER_IDS_CHANGED", _FROM_BROKERS),
    47: ("GET_CLIENT_CONFIG", _OF_OLD_CLIENTS),
    60: ("GET_TIMER_CHECK_POINT", _OWN_REPLICATION),
    61: ("GET_TIMER_METRICS", "GET_BROKER_RUNTIME_INFO has the number of timed messages; /metrics has their lateness"),
    100: ("PUT_KV_CONFIG", _NO_KV),
    103: ("REGISTER_BROKER", _OWN_NAME_SERVER),
    104: ("UNREGISTER_BROKER", _OWN_NAME_SERVER),
    **{
        code: (name, _OF_OLD_CLIENTS)
        for code, name in (
            (209, "SUSPEND_CONSUMER"),
            (210, "RESUME_CONSUMER"),
            (211, "RESET_CONSUMER_OFFSET_IN_CONSUMER"),
            (212, "RESET_CONSUMER_OFFSET_IN_BROKER"),
            (213, "ADJUST_CONSUMER_THREAD_POOL"),
            (214, "WHO_CONSUME_THE_MESSAGE"),
        )
    },
    217: ("REGISTER_TOPIC_IN_NAMESRV", _OWN_NAME_SERVER),
    220: ("RESET_CONSUMER_CLIENT_OFFSET", _FROM_BROKERS),
    221: ("GET_CONSUMER_STATUS_FROM_CLIENT", _FROM_BROKERS),
    223: ("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", "the clients tell it; GET_CONSUME_STATS has what they committed"),
    301: ("REGISTER_FILTER_SERVER", "conditions are SQL92; programs are not run as filters"),
    302: ("REGISTER_MESSAGE_FILTER_CLASS", "conditions are SQL92; programs are not run as filters"),
    318: ("UPDATE_NAMESRV_CONFIG", "the role of a name server has nothing to set"),
    322: ("QUERY_DATA_VERSION", _OWN_NAME_SERVER),
    326: ("PUSH_REPLY_MESSAGE_TO_CLIENT", _FROM_BROKERS),
    329: (
        "DELETE_EXPIRED_COMMITLOG",
        "retention deletes files; set deleteWhen to the present hour to have that done now",
    ),
    353: ("UPDATE_AND_GET_GROUP_FORBIDDEN", "a group may read every topic that its user may read"),
    354: ("CHECK_ROCKSDB_CQ_WRITE_PROGRESS", "the store has no RocksDB"),
    355: ("EXPORT_ROCKSDB_CONFIG_TO_JSON", "the store has no RocksDB; its tables are JSON"),
    513: ("UPDATE_AND_CREATE_STATIC_TOPIC", "a topic has its queues on one broker"),
    902: ("ADD_BROKER", "one process is one broker"),
    903: ("REMOVE_BROKER", "one process is one broker"),
    904: ("BROKER_HEARTBEAT", _OWN_NAME_SERVER),
    906: ("EXCHANGE_BROKER_HA_INFO", _OWN_REPLICATION),
    908: ("RESET_MASTER_FLUSH_OFFSET", _OWN_REPLICATION),
    **{
        code: (name, _NO_CONTROLLER)
        for code, name in (
            (1001, "CONTROLLER_ALTER_SYNC_STATE_SET"),
            (1002, "CONTROLLER_ELECT_MASTER"),
            (1003, "CONTROLLER_REGISTER_BROKER"),
            (1004, "CONTROLLER_GET_REPLICA_INFO"),
            (1005, "CONTROLLER_GET_METADATA_INFO"),
            (1006, "CONTROLLER_GET_SYNC_STATE_DATA"),
            (1007, "GET_BROKER_EPOCH_CACHE"),
            (1008, "NOTIFY_BROKER_ROLE_CHANGED"),
            (1009, "UPDATE_CONTROLLER_CONFIG"),
            (1010, "GET_CONTROLLER_CONFIG"),
            (1011, "CLEAN_BROKER_DATA"),
            (1012, "CONTROLLER_GET_NEXT_BROKER_ID"),
            (1013, "CONTROLLER_APPLY_BROKER_ID"),
            (1014, "BROKER_CLOSE_CHANNEL_REQUEST"),
            (1015, "CHECK_NOT_ACTIVE_BROKER_REQUEST"),
            (1016, "GET_BROKER_LIVE_INFO_REQUEST"),
            (1017, "GET_SYNC_STATE_DATA_REQUEST"),
            (1018, "RAFT_BROKER_HEART_BEAT_EVENT_REQUEST"),
        )
    },
    2001: ("UPDATE_COLD_DATA_FLOW_CTR_CONFIG", _NO_COLD_DATA),
    2002: ("REMOVE_COLD_DATA_FLOW_CTR_CONFIG", _NO_COLD_DATA),
    2003: ("GET_COLD_DATA_FLOW_CTR_INFO", _NO_COLD_DATA),
    2004: ("SET_COMMITLOG_READ_MODE", _NO_COLD_DATA),
    **{
        code: (name, _OWN_USERS)
        for code, name in (
            (3001, "AUTH_CREATE_USER"),
            (3002, "AUTH_UPDATE_USER"),
            (3003, "AUTH_DELETE_USER"),
            (3004, "AUTH_GET_USER"),
            (3005, "AUTH_LIST_USER"),
            (3006, "AUTH_CREATE_ACL"),
            (3007, "AUTH_UPDATE_ACL"),
            (3008, "AUTH_DELETE_ACL"),
            (3009, "AUTH_GET_ACL"),
            (3010, "AUTH_LIST_ACL"),
        )
    },
    5001: ("SWITCH_TIMER_ENGINE", "there is one store of timed messages"),
    200052: ("PEEK_MESSAGE", "no client of RocketMQ sends it; a pull reads without taking"),
    200056: ("POP_ROLLBACK", "the state of pops is FlintMQ's own, and RocketMQ's tables of it are not written"),
    **{
        code: (name, _NO_LITE_TOPICS)
        for code, name in (
            (200070, "POP_LITE_MESSAGE"),
            (200071, "LITE_SUBSCRIPTION_CTL"),
            (200072, "ACK_LITE_MESSAGE"),
            (200073, "NOTIFY_UNSUBSCRIBE_LITE"),
            (200074, "GET_BROKER_LITE_INFO"),
            (200075, "GET_PARENT_TOPIC_INFO"),
            (200076, "GET_LITE_TOPIC_INFO"),
            (200077, "GET_LITE_CLIENT_INFO"),
            (200078, "GET_LITE_GROUP_INFO"),
            (200079, "TRIGGER_LITE_DISPATCH"),
        )
    },
}
"""By request code: RocketMQ's name, and why FlintMQ does not serve it."""


def unsupported(code: int) -> UnknownCommand:
    """Return the error for a request that has no handler."""
    known = UNSUPPORTED.get(code)
    if known is None:
        return UnknownCommand(f" request type {code} not supported")
    name, why = known
    return UnknownCommand(f" request type {code} not supported: FlintMQ does not serve {name}, because {why}")
