"""PULL_MESSAGE and LITE_PULL_MESSAGE: translated into FlintMQ's PULL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....protocol.commands import PullRequest
from ....protocol.errors import BrokerError, InvalidParameter, NoPermission, QueueNotExist
from ....protocol.frames import REQUEST
from ....protocol.names import check_client_group
from ....protocol.remoting import codes
from ...delivery.groups.consumer_clients import ClientSubscription
from ...handlers.groups import SUBSCRIPTION_CHARS_MAX
from ...handlers.pull import pull_records
from ...handlers.readable import check_has_messages
from ..request import pull_fields
from ..subscription import TAG, tags_and_filter

if TYPE_CHECKING:
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...requests.outlet import Outlet
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
FLAG_CLASS_FILTER = 8
BYTES_MAX_DEFAULT = 256 * 1024
"""RocketMQ's ``maxTransferBytesOnMessageInMemory``."""
COUNT_MAX = 32
"""RocketMQ's ``maxTransferCountOnMessageInMemory``."""
WAIT_MS_MAX = 30_000
_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1
_I64_MIN = -(2**63)


class SubscriptionMissing(BrokerError):
    """The broker knows no heartbeat of the group with this topic, such as after its start: the client sends one."""

    code, name, retriable = codes.SUBSCRIPTION_NOT_EXIST, "SUBSCRIPTION_NOT_EXIST", True


class SubscriptionOutdated(BrokerError):
    """The client changed its subscription after the last heartbeat that the broker got: the client sends another."""

    code, name, retriable = codes.SUBSCRIPTION_NOT_LATEST, "SUBSCRIPTION_NOT_LATEST", True


def pull_message(request: RemotingRequest, gateway: RemotingGateway, outlet: Outlet) -> None:
    """Answer a pull from memory, pass it to a reader thread, or hold it."""
    groups, store = outlet.groups, outlet.store
    ext = request.ext
    topic, group, flags = ext.text("topic"), ext.text("consumerGroup"), ext.integer("sysFlag", 0, high=_I32_MAX)
    queue, offset = ext.integer("queueId", high=_I32_MAX), ext.integer("queueOffset", low=_I64_MIN)
    check_may_pull(request, groups, store, group, topic, queue)
    if request.received.kind != REQUEST:
        raise InvalidParameter("a pull cannot be sent one-way, because it returns messages")
    if flags & FLAG_CLASS_FILTER:
        raise InvalidParameter("filter classes are not supported; subscribe with tags or with an SQL92 condition")
    request.group, request.asked = group, offset
    live = groups.clients.groups.get(group)
    commits = live is None or live.clustering
    tags, condition = tags_and_filter(_subscription(request, groups, group, topic, flags))
    params = PullRequest(
        topic=topic,
        queue=queue,
        offset=max(offset, 0),
        max_count=min(max(ext.integer("maxMsgNums", COUNT_MAX, low=_I32_MIN, high=_I32_MAX), 1), COUNT_MAX),
        max_bytes=max(ext.integer("maxMsgBytes", BYTES_MAX_DEFAULT, low=_I32_MIN, high=_I32_MAX), 1),
        wait_ms=min(ext.integer("suspendTimeoutMillis", 0), WAIT_MS_MAX) if flags & FLAG_SUSPEND else 0,
        tags=tags,
        filter=condition,
        # A group that commits nothing has no progress that could be moved.
        group=group if commits else "",
    )
    # Clients that choose their queues themselves may pull and commit before their first heartbeat.
    groups.ensure_group(group)
    if flags & FLAG_COMMIT_OFFSET:
        committed = ext.integer("commitOffset", 0, low=_I64_MIN)
        if committed >= 0:
            gateway.commit(group, topic, queue, committed)
    # All fields have been read, and a pull that is held must not keep them in memory.
    request.translate(bytearray())
    request.release_frame()
    # FlintMQ's PULL has no such offsets; RocketMQ answers with the first one of the queue.
    if offset < 0:
        request.check_pull(params)
        request.after_dispatch(
            lambda: request.read(
                lambda hot: store.queue_reads.min_offset(topic, queue, hot=hot),
                lambda low: _before_the_first(request, low, store.queue_reads.max_offset(topic, queue)),
            )
        )
        return
    pull_records(request, outlet, params)


def _before_the_first(request: RemotingRequest, low: int, high: int) -> None:
    remark = "OFFSET_TOO_SMALL" if high else "NO_MESSAGE_IN_QUEUE"
    request.reply(pull_fields(low, low, high), code=codes.PULL_OFFSET_MOVED, remark=remark)


def check_may_pull(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore, group: str, topic: str, queue: int
) -> None:
    """Raise unless clients of the group may read the queue."""
    check_client_group(group)
    if not store.groups.may_consume(group):
        raise NoPermission(f"group {group} is disabled; to enable it, set its consumeEnable")
    check_has_messages(store.topics, topic)
    config = store.topics.get(topic)
    queues = config.read_queues if config is not None else 0
    if queue >= queues:
        raise QueueNotExist(f"topic {topic} has no queue {queue} to read; it has {queues}", queues=queues)


def _subscription(
    request: RemotingRequest, groups: GroupCoordinator, group: str, topic: str, flags: int
) -> ClientSubscription:
    """Return the subscription that a pull selects with: its own, or that of its client's heartbeats."""
    ext = request.ext
    if flags & FLAG_SUBSCRIPTION:
        expression = ext.text("subscription", "*")
        if len(expression) > SUBSCRIPTION_CHARS_MAX:
            raise InvalidParameter(
                f"the subscription has {len(expression):,} characters; the maximum is {SUBSCRIPTION_CHARS_MAX:,}"
            )
        return ClientSubscription(topic, expression or "*", ext.text("expressionType", TAG) or TAG)
    consumers = groups.clients.groups.get(group)
    if consumers is None:
        raise SubscriptionMissing(f"the consumer's group info not exist: no heartbeat of group {group} has arrived")
    found = consumers.subscription(topic, request.peer)
    if found is None:
        raise SubscriptionMissing(
            f"the consumer's subscription not exist: no heartbeat of group {group} names topic {topic}"
        )
    wanted = ext.integer("subVersion", 0, low=_I64_MIN)
    if found.version < wanted:
        raise SubscriptionOutdated(
            f"the consumer's subscription not latest: the last heartbeat of group {group} has version {found.version} "
            f"for topic {topic}, and the pull {wanted}"
        )
    return found
