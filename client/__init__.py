"""The client. ``Producer`` sends messages, ``Consumer`` reads and finds them, ``Admin`` manages topics.

    with Producer("127.0.0.1:10911") as producer:
        receipt = producer.send(Message("orders", b"…", keys=["o-1"], tags="eu"))
    with Consumer("127.0.0.1:10911") as consumer:
        for message in consumer.iter("orders", from_="earliest", until="latest"):
            print(message.keys, message.body)

``flintmq.client.aio`` has the same three for asyncio. The client requires only msgpack; it uses lz4 and zstandard if
they are installed. See ``client/README.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..protocol.auth.permissions import Grant
    from ..protocol.errors import (
        AuthenticationFailed,
        AuthenticationRequired,
        BrokerError,
        BrokerFailure,
        CommitIllegal,
        ConfigurationError,
        ConnectionFailed,
        DelayIllegal,
        EpochFenced,
        FilterIllegal,
        FlintError,
        FlushDiskTimeout,
        FrameIllegal,
        GroupNotExist,
        GroupRunning,
        HelloRequired,
        InvalidParameter,
        LimitReached,
        LocalProtocolError,
        MemberNameTaken,
        MemberUnknown,
        MessageDamaged,
        MessageIllegal,
        MessageNotFound,
        NoPermission,
        OffsetOutOfRange,
        PartlyStored,
        PreparedIncomplete,
        ProtocolError,
        QueueNotExist,
        RemoteProtocolError,
        RequestTimeout,
        ServiceNotAvailable,
        SubscriptionIllegal,
        SystemBusy,
        TopicExistsAlready,
        TopicNotExist,
        TransactionEnded,
        TransactionGroupWrong,
        TransactionNotExist,
        UnknownCommand,
        UserExistsAlready,
        UserNotExist,
        VersionNotSupported,
    )
    from ..protocol.storage.record import CorruptRecord
    from .core.admin.delays import DelayedMessages, DelayStats
    from .core.admin.groups import GroupInfo, GroupMember, GroupQueue, GroupStatus
    from .core.admin.transactions import TransactionInfo, Transactions
    from .core.admin.users import UserInfo
    from .core.consume.batch import Batch, Found
    from .core.consume.stored import StoredMessage
    from .core.produce.prepared import AttemptInfo, Committed, CopyingInfo, PreparedInfo
    from .core.produce.receipts import Receipt
    from .core.topics import ConsumeStats, QueueStats, TopicInfo
    from .errors import (
        ClientClosed,
        ClientFailed,
        CompressionUnavailable,
        CorruptMessage,
        DeliveryFailed,
        ForkedClient,
        InvalidArgument,
        InvalidArgumentType,
        InvalidMessage,
        InvalidMessageType,
        ListenerTimeout,
        TlsFailed,
        WrongLoop,
    )
    from .groups.push.consumer import PushConsumer
    from .groups.push.health import Health
    from .groups.push.options import Subscription
    from .groups.push.outcome import GiveUp, TryLater
    from .groups.transactions.health import TransactionHealth
    from .groups.transactions.outcome import Outcome
    from .groups.transactions.producer import Transaction, TransactionProducer
    from .message import Message
    from .sync.admin import Admin
    from .sync.consumer import Consumer
    from .sync.producer import Producer, SendFuture

__all__ = [
    "Admin",
    "AttemptInfo",
    "AuthenticationFailed",
    "AuthenticationRequired",
    "Batch",
    "BrokerError",
    "BrokerFailure",
    "ClientClosed",
    "ClientFailed",
    "CommitIllegal",
    "Committed",
    "CompressionUnavailable",
    "ConfigurationError",
    "ConnectionFailed",
    "ConsumeStats",
    "Consumer",
    "CopyingInfo",
    "CorruptMessage",
    "CorruptRecord",
    "DelayIllegal",
    "DelayStats",
    "DelayedMessages",
    "DeliveryFailed",
    "EpochFenced",
    "FilterIllegal",
    "FlintError",
    "FlushDiskTimeout",
    "ForkedClient",
    "Found",
    "FrameIllegal",
    "GiveUp",
    "Grant",
    "GroupInfo",
    "GroupMember",
    "GroupNotExist",
    "GroupQueue",
    "GroupRunning",
    "GroupStatus",
    "Health",
    "HelloRequired",
    "InvalidArgument",
    "InvalidArgumentType",
    "InvalidMessage",
    "InvalidMessageType",
    "InvalidParameter",
    "LimitReached",
    "ListenerTimeout",
    "LocalProtocolError",
    "MemberNameTaken",
    "MemberUnknown",
    "Message",
    "MessageDamaged",
    "MessageIllegal",
    "MessageNotFound",
    "NoPermission",
    "OffsetOutOfRange",
    "Outcome",
    "PartlyStored",
    "PreparedIncomplete",
    "PreparedInfo",
    "Producer",
    "ProtocolError",
    "PushConsumer",
    "QueueNotExist",
    "QueueStats",
    "Receipt",
    "RemoteProtocolError",
    "RequestTimeout",
    "SendFuture",
    "ServiceNotAvailable",
    "StoredMessage",
    "Subscription",
    "SubscriptionIllegal",
    "SystemBusy",
    "TlsFailed",
    "TopicExistsAlready",
    "TopicInfo",
    "TopicNotExist",
    "Transaction",
    "TransactionEnded",
    "TransactionGroupWrong",
    "TransactionHealth",
    "TransactionInfo",
    "TransactionNotExist",
    "TransactionProducer",
    "Transactions",
    "TryLater",
    "UnknownCommand",
    "UserExistsAlready",
    "UserInfo",
    "UserNotExist",
    "VersionNotSupported",
    "WrongLoop",
]

_HOMES = {
    "Admin": ".sync.admin",
    "AttemptInfo": ".core.produce.prepared",
    "Batch": ".core.consume.batch",
    "ClientClosed": ".errors",
    "ClientFailed": ".errors",
    "Committed": ".core.produce.prepared",
    "CompressionUnavailable": ".errors",
    "ConsumeStats": ".core.topics",
    "Consumer": ".sync.consumer",
    "CopyingInfo": ".core.produce.prepared",
    "CorruptMessage": ".errors",
    "CorruptRecord": "..protocol.storage.record",
    "DeliveryFailed": ".errors",
    "ForkedClient": ".errors",
    "Found": ".core.consume.batch",
    "GiveUp": ".groups.push.outcome",
    "Grant": "..protocol.auth.permissions",
    "GroupInfo": ".core.admin.groups",
    "GroupMember": ".core.admin.groups",
    "GroupQueue": ".core.admin.groups",
    "GroupStatus": ".core.admin.groups",
    "Health": ".groups.push.health",
    "InvalidArgument": ".errors",
    "InvalidArgumentType": ".errors",
    "InvalidMessage": ".errors",
    "InvalidMessageType": ".errors",
    "ListenerTimeout": ".errors",
    "Message": ".message",
    "Outcome": ".groups.transactions.outcome",
    "PreparedInfo": ".core.produce.prepared",
    "Producer": ".sync.producer",
    "PushConsumer": ".groups.push.consumer",
    "QueueStats": ".core.topics",
    "Receipt": ".core.produce.receipts",
    "SendFuture": ".sync.producer",
    "StoredMessage": ".core.consume.stored",
    "Subscription": ".groups.push.options",
    "TlsFailed": ".errors",
    "TopicInfo": ".core.topics",
    "Transaction": ".groups.transactions.producer",
    "TransactionHealth": ".groups.transactions.health",
    "TransactionInfo": ".core.admin.transactions",
    "TransactionProducer": ".groups.transactions.producer",
    "DelayStats": ".core.admin.delays",
    "DelayedMessages": ".core.admin.delays",
    "Transactions": ".core.admin.transactions",
    "TryLater": ".groups.push.outcome",
    "UserInfo": ".core.admin.users",
    "WrongLoop": ".errors",
}
"""The module that defines each exported name; names not listed here are errors from ``..protocol.errors``."""


if not TYPE_CHECKING:  # type checkers must see every name, so hide the dynamic lookup from them

    def __getattr__(name: str) -> Any:
        """Import an exported name on first use: the command line and its completion need only a few of them."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES.get(name, "..protocol.errors"), __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
