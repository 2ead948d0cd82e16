"""Every command with its code, its typed request and its typed response.

Codes are RocketMQ's ``RequestCode`` numbers if RocketMQ has the command; FlintMQ's own start at 1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .admin import (
    BrokerConfigAnswer,
    DelayStatsAnswer,
    GetDelayStatsRequest,
    RuntimeInfoAnswer,
    TopicRequest,
    TopicsAnswer,
    TopicStatsAnswer,
    UpdateAndCreateTopicRequest,
    UpdateBrokerConfigAnswer,
    UpdateBrokerConfigRequest,
)
from .common import EmptyAnswer, EmptyRequest
from .connection import AuthAnswer, AuthRequest, HelloAnswer, HelloRequest
from .groups import (
    DeleteGroupRequest,
    GroupMembersAnswer,
    GroupRequest,
    GroupsAnswer,
    HeartBeatAnswer,
    HeartBeatRequest,
    IdsChangedRequest,
    ResetOffsetRequest,
    SendMessageBackAnswer,
    SendMessageBackRequest,
    UnregisterClientRequest,
)
from .messages import (
    ProduceAnswer,
    ProduceRequest,
    PullRequest,
    QueryByKeyAnswer,
    QueryByKeyRequest,
    RecordsAnswer,
    ViewMessageAnswer,
    ViewMessageByIdRequest,
)
from .offsets import (
    ConsumerOffsetsAnswer,
    ConsumeStatsAnswer,
    ConsumeStatsRequest,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetByTimestampRequest,
    StoreTimeAnswer,
    UpdateConsumerOffsetRequest,
)
from .transactions import (
    AbortPreparedAnswer,
    AbortPreparedRequest,
    CheckTransactionStateAnswer,
    CheckTransactionStateRequest,
    CommitPreparedAnswer,
    CommitPreparedRequest,
    EndTransactionRequest,
    GetPreparedRequest,
    GetTransactionsRequest,
    PreparedAnswer,
    TransactionsAnswer,
)
from .users import CreateUserRequest, DeleteUserRequest, ListUsersRequest, UpdateUserRequest, UsersAnswer


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table. ``one_way``: a frame of kind 2 may carry it; ``from_broker``: the broker sends it to a
    client."""

    name: str
    code: int
    request: type[Any]
    answer: type[Any]
    one_way: bool = False
    from_broker: bool = False


HELLO = Command("HELLO", 1000, HelloRequest, HelloAnswer)
AUTH = Command("AUTH", 1001, AuthRequest, AuthAnswer)
PRODUCE = Command("PRODUCE", 10, ProduceRequest, ProduceAnswer, one_way=True)
PULL = Command("PULL", 11, PullRequest, RecordsAnswer)
QUERY_BY_KEY = Command("QUERY_BY_KEY", 12, QueryByKeyRequest, QueryByKeyAnswer)
QUERY_CONSUMER_OFFSET = Command("QUERY_CONSUMER_OFFSET", 14, QueryConsumerOffsetRequest, ConsumerOffsetsAnswer)
UPDATE_CONSUMER_OFFSET = Command("UPDATE_CONSUMER_OFFSET", 15, UpdateConsumerOffsetRequest, EmptyAnswer, one_way=True)
HEART_BEAT = Command("HEART_BEAT", 34, HeartBeatRequest, HeartBeatAnswer)
UNREGISTER_CLIENT = Command("UNREGISTER_CLIENT", 35, UnregisterClientRequest, EmptyAnswer, one_way=True)
END_TRANSACTION = Command("END_TRANSACTION", 37, EndTransactionRequest, EmptyAnswer)
CHECK_TRANSACTION_STATE = Command(
    "CHECK_TRANSACTION_STATE", 39, CheckTransactionStateRequest, CheckTransactionStateAnswer, from_broker=True
)
GET_TRANSACTIONS = Command("GET_TRANSACTIONS", 1010, GetTransactionsRequest, TransactionsAnswer)
GET_DELAY_STATS = Command("GET_DELAY_STATS", 1011, GetDelayStatsRequest, DelayStatsAnswer)
COMMIT_PREPARED = Command("COMMIT_PREPARED", 1020, CommitPreparedRequest, CommitPreparedAnswer)
ABORT_PREPARED = Command("ABORT_PREPARED", 1021, AbortPreparedRequest, AbortPreparedAnswer)
GET_PREPARED = Command("GET_PREPARED", 1022, GetPreparedRequest, PreparedAnswer)
CONSUMER_SEND_MSG_BACK = Command("CONSUMER_SEND_MSG_BACK", 36, SendMessageBackRequest, SendMessageBackAnswer)
NOTIFY_CONSUMER_IDS_CHANGED = Command(
    "NOTIFY_CONSUMER_IDS_CHANGED", 40, IdsChangedRequest, EmptyAnswer, one_way=True, from_broker=True
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Command("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", 201, EmptyRequest, GroupsAnswer)
GET_CONSUMER_CONNECTION_LIST = Command("GET_CONSUMER_CONNECTION_LIST", 203, GroupRequest, GroupMembersAnswer)
DELETE_SUBSCRIPTIONGROUP = Command("DELETE_SUBSCRIPTIONGROUP", 207, DeleteGroupRequest, EmptyAnswer)
INVOKE_BROKER_TO_RESET_OFFSET = Command("INVOKE_BROKER_TO_RESET_OFFSET", 222, ResetOffsetRequest, ConsumerOffsetsAnswer)
UPDATE_AND_CREATE_TOPIC = Command("UPDATE_AND_CREATE_TOPIC", 17, UpdateAndCreateTopicRequest, EmptyAnswer)
GET_ALL_TOPIC_CONFIG = Command("GET_ALL_TOPIC_CONFIG", 21, EmptyRequest, TopicsAnswer)
UPDATE_BROKER_CONFIG = Command("UPDATE_BROKER_CONFIG", 25, UpdateBrokerConfigRequest, UpdateBrokerConfigAnswer)
GET_BROKER_CONFIG = Command("GET_BROKER_CONFIG", 26, EmptyRequest, BrokerConfigAnswer)
GET_BROKER_RUNTIME_INFO = Command("GET_BROKER_RUNTIME_INFO", 28, EmptyRequest, RuntimeInfoAnswer)
SEARCH_OFFSET_BY_TIMESTAMP = Command("SEARCH_OFFSET_BY_TIMESTAMP", 29, SearchOffsetByTimestampRequest, OffsetAnswer)
GET_MAX_OFFSET = Command("GET_MAX_OFFSET", 30, QueueRequest, OffsetAnswer)
GET_MIN_OFFSET = Command("GET_MIN_OFFSET", 31, QueueRequest, OffsetAnswer)
GET_EARLIEST_MSG_STORETIME = Command("GET_EARLIEST_MSG_STORETIME", 32, QueueRequest, StoreTimeAnswer)
VIEW_MESSAGE_BY_ID = Command("VIEW_MESSAGE_BY_ID", 33, ViewMessageByIdRequest, ViewMessageAnswer)
GET_TOPIC_STATS_INFO = Command("GET_TOPIC_STATS_INFO", 202, TopicRequest, TopicStatsAnswer)
GET_CONSUME_STATS = Command("GET_CONSUME_STATS", 208, ConsumeStatsRequest, ConsumeStatsAnswer)
DELETE_TOPIC_IN_BROKER = Command("DELETE_TOPIC_IN_BROKER", 215, TopicRequest, EmptyAnswer)
AUTH_CREATE_USER = Command("AUTH_CREATE_USER", 3001, CreateUserRequest, EmptyAnswer)
AUTH_UPDATE_USER = Command("AUTH_UPDATE_USER", 3002, UpdateUserRequest, EmptyAnswer)
AUTH_DELETE_USER = Command("AUTH_DELETE_USER", 3003, DeleteUserRequest, EmptyAnswer)
AUTH_LIST_USER = Command("AUTH_LIST_USER", 3005, ListUsersRequest, UsersAnswer)
COMMANDS: dict[int, Command] = {
    command.code: command
    for command in (
        HELLO,
        AUTH,
        PRODUCE,
        PULL,
        QUERY_BY_KEY,
        QUERY_CONSUMER_OFFSET,
        UPDATE_CONSUMER_OFFSET,
        UPDATE_AND_CREATE_TOPIC,
        GET_ALL_TOPIC_CONFIG,
        UPDATE_BROKER_CONFIG,
        GET_BROKER_CONFIG,
        GET_BROKER_RUNTIME_INFO,
        SEARCH_OFFSET_BY_TIMESTAMP,
        GET_MAX_OFFSET,
        GET_MIN_OFFSET,
        GET_EARLIEST_MSG_STORETIME,
        VIEW_MESSAGE_BY_ID,
        HEART_BEAT,
        UNREGISTER_CLIENT,
        CONSUMER_SEND_MSG_BACK,
        END_TRANSACTION,
        CHECK_TRANSACTION_STATE,
        NOTIFY_CONSUMER_IDS_CHANGED,
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        GET_TOPIC_STATS_INFO,
        GET_CONSUMER_CONNECTION_LIST,
        DELETE_SUBSCRIPTIONGROUP,
        GET_CONSUME_STATS,
        DELETE_TOPIC_IN_BROKER,
        INVOKE_BROKER_TO_RESET_OFFSET,
        GET_TRANSACTIONS,
        COMMIT_PREPARED,
        ABORT_PREPARED,
        GET_PREPARED,
        GET_DELAY_STATS,
        AUTH_CREATE_USER,
        AUTH_UPDATE_USER,
        AUTH_DELETE_USER,
        AUTH_LIST_USER,
    )
}
