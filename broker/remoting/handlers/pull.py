"""PULL_MESSAGE and LITE_PULL_MESSAGE: translated into FlintMQ's PULL."""

from __future__ import annotations

from ....protocol.commands import PullRequest
from ....protocol.errors import BrokerError
from ....protocol.frames import REQUEST
from ....protocol.remoting import codes
from ...handlers.pull import pull_records
from ..consumer_clients import ClientSubscription
from ..gateway import RemotingGateway
from ..request import RemotingRequest

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
FLAG_CLASS_FILTER = 8
BYTES_MAX_DEFAULT = 256 * 1024
"""RocketMQ's ``maxTransferBytesOnMessageInMemory``."""
WAIT_MS_MAX = 30_000
SQL92 = "SQL92"


class SubscriptionMissing(BrokerError):
    """The broker knows no heartbeat of the group with this topic, such as after its start: the client sends one."""

    code, name, retriable = codes.SUBSCRIPTION_NOT_EXIST, "SUBSCRIPTION_NOT_EXIST", True


def pull_message(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Answer a pull from memory, pass it to a reader thread, or hold it."""
    ext = request.ext
    topic, group, flags = ext.text("topic"), ext.text("consumerGroup"), ext.integer("sysFlag", 0, high=2**31 - 1)
    queue, offset = ext.integer("queueId", high=2**31 - 1), ext.integer("queueOffset", low=-(2**63))
    subscription = _subscription(request, gateway, group, topic, flags)
    is_sql = subscription.expression_type == SQL92
    params = PullRequest(
        topic=topic,
        queue=queue,
        offset=max(offset, 0),
        max_count=max(ext.integer("maxMsgNums", 32, low=-(2**31), high=2**31 - 1), 1),
        max_bytes=max(ext.integer("maxMsgBytes", BYTES_MAX_DEFAULT, low=-(2**31), high=2**31 - 1), 1),
        wait_ms=min(ext.integer("suspendTimeoutMillis", 0), WAIT_MS_MAX) if flags & FLAG_SUSPEND else 0,
        tags="" if is_sql else tags_of(subscription.expression),
        filter=subscription.expression if is_sql else "",
        group=group,
    )
    if flags & FLAG_COMMIT_OFFSET and request.received.kind == REQUEST:
        committed = ext.integer("commitOffset", 0, low=-(2**63))
        if committed >= 0:
            gateway.commit(group, topic, queue, committed)
    request.asked = offset
    request.translate(bytearray())
    request.release_frame()
    pull_records(request, params)


def _subscription(
    request: RemotingRequest, gateway: RemotingGateway, group: str, topic: str, flags: int
) -> ClientSubscription:
    """Return the subscription that a pull selects with: its own, or that of the group's heartbeats."""
    ext = request.ext
    if flags & FLAG_SUBSCRIPTION:
        return ClientSubscription(topic, ext.text("subscription", "*"), ext.text("expressionType", "TAG"))
    consumers = gateway.consumers.groups.get(group)
    found = consumers.subscriptions.get(topic) if consumers is not None else None
    if found is None:
        raise SubscriptionMissing(
            f"the consumer's subscription not exist: no heartbeat of group {group} names topic {topic}"
        )
    return found


def tags_of(expression: str) -> str:
    """Return RocketMQ's tag expression in FlintMQ's form; empty for all messages."""
    tags = [tag for tag in map(str.strip, expression.split("||")) if tag]
    return "" if not tags or tags == ["*"] else " || ".join(tags)
