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
    from .core.batch import Batch, Found
    from .core.delays import DelayedMessages, DelayStats
    from .core.groups import GroupInfo, GroupMember, GroupQueue, GroupStatus
    from .core.prepared import AttemptInfo, Committed, CopyingInfo, PreparedInfo
    from .core.receipts import Receipt
    from .core.stored import StoredMessage
    from .core.topics import ConsumeStats, QueueStats, TopicInfo
    from .core.transactions import TransactionInfo, Transactions
    from .core.users import UserInfo
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
    from .message import Message
    from .push.consumer import PushConsumer
    from .push.health import Health
    from .push.options import Subscription
    from .push.outcome import GiveUp, TryLater
    from .sync.admin import Admin
    from .sync.consumer import Consumer
    from .sync.producer import Producer, SendFuture
    from .transactions.health import TransactionHealth
    from .transactions.outcome import Outcome
    from .transactions.producer import Transaction, TransactionProducer

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
    "AttemptInfo": ".core.prepared",
    "Batch": ".core.batch",
    "ClientClosed": ".errors",
    "ClientFailed": ".errors",
    "Committed": ".core.prepared",
    "CompressionUnavailable": ".errors",
    "ConsumeStats": ".core.topics",
    "Consumer": ".sync.consumer",
    "CopyingInfo": ".core.prepared",
    "CorruptMessage": ".errors",
    "CorruptRecord": "..protocol.storage.record",
    "DeliveryFailed": ".errors",
    "ForkedClient": ".errors",
    "Found": ".core.batch",
    "GiveUp": ".push.outcome",
    "Grant": "..protocol.auth.permissions",
    "GroupInfo": ".core.groups",
    "GroupMember": ".core.groups",
    "GroupQueue": ".core.groups",
    "GroupStatus": ".core.groups",
    "Health": ".push.health",
    "InvalidArgument": ".errors",
    "InvalidArgumentType": ".errors",
    "InvalidMessage": ".errors",
    "InvalidMessageType": ".errors",
    "ListenerTimeout": ".errors",
    "Message": ".message",
    "Outcome": ".transactions.outcome",
    "PreparedInfo": ".core.prepared",
    "Producer": ".sync.producer",
    "PushConsumer": ".push.consumer",
    "QueueStats": ".core.topics",
    "Receipt": ".core.receipts",
    "SendFuture": ".sync.producer",
    "StoredMessage": ".core.stored",
    "Subscription": ".push.options",
    "TlsFailed": ".errors",
    "TopicInfo": ".core.topics",
    "Transaction": ".transactions.producer",
    "TransactionHealth": ".transactions.health",
    "TransactionInfo": ".core.transactions",
    "TransactionProducer": ".transactions.producer",
    "DelayStats": ".core.delays",
    "DelayedMessages": ".core.delays",
    "Transactions": ".core.transactions",
    "TryLater": ".push.outcome",
    "UserInfo": ".core.users",
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
