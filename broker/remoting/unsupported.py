"""Requests of RocketMQ that the gateway knows and does not serve, and the reason."""

from __future__ import annotations

from ...protocol.errors import UnknownCommand

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
