"""Groups as RocketMQ's admin tools see them: their clients and progress, and resets of their offsets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import GROUP, TOPIC
from ....protocol.commands import ResetOffsetRequest
from ....protocol.errors import GroupNotExist, InvalidParameter, QueueNotExist, TopicNotExist
from ....protocol.names import check_client_group
from ....protocol.remoting import codes, fastjson
from ....protocol.remoting.command import VERSION
from ....protocol.remoting.fastjson import ObjectMap
from ....protocol.storage.javahash import tags_code
from ...addresses import format_address
from ...delivery.groups.consumer_clients import ClientSubscription
from ...handlers.group_admin import HOT_QUEUES_MAX, ProgressParts, reset_progress
from ...handlers.offsets import sees_progress
from ...store import WouldBlock
from ..client import RemotingClient
from ..rules import sees
from ..subscription import SQL92, TAG, split_tags
from .locks import queue_row
from .progress import offset_wrapper

if TYPE_CHECKING:
    from ...background.held_pulls import PullRequestHoldService
    from ...delivery.client_handle import ClientHandle
    from ...delivery.groups.assignment import Queue
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...delivery.groups.group import ConsumerGroup
    from ...delivery.groups.producer_groups import ProducerGroups
    from ...delivery.pop.service import PopService
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

OWN_LANGUAGE = "PYTHON"
"""Language of FlintMQ's own clients in ``LanguageCode``: RocketMQ's tools know no other names."""
TOPICS_MAX = 1_000
TOPIC_SEPARATOR = ";"


# ---- connections ----


def get_consumer_connection_list(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Return the live clients of a group, or its members of FlintMQ's own kind, and what they subscribe to."""
    content: dict[str, Any]
    name = check_client_group(request.ext.text("consumerGroup"))
    native, clients = groups.groups.get(name), groups.clients.groups.get(name)
    if native is not None:
        content = _native_connections(native)
    elif clients is not None:
        role = clients.newest
        content = {
            "connectionSet": [
                connection_row(client_id, client.identity.remote) for client_id, client in clients.clients.items()
            ],
            "consumeFromWhere": role.consume_from or None,
            "consumeType": role.consume_type or None,
            "messageModel": role.message_model or None,
            "subscriptionTable": {topic: subscription_row(each) for topic, each in clients.subscriptions.items()},
        }
    else:
        request.reply(code=codes.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        return
    subscriptions = content["subscriptionTable"].items()
    content["subscriptionTable"] = {topic: row for topic, row in subscriptions if sees(request, TOPIC, topic)}
    request.reply(body=fastjson.encode(content))


def _native_connections(group: ConsumerGroup) -> dict[str, Any]:
    subscriptions = {}
    for member in group.members.values():
        for topic, each in member.subscriptions.items():
            kind, expression = (SQL92, each.filter) if each.filter else (TAG, each.tags or "*")
            subscriptions[topic] = subscription_row(ClientSubscription(topic, expression, kind))
    return {
        "connectionSet": [connection_row(name, member.remote) for name, member in group.members.items()],
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": group.mode.upper(),
        "subscriptionTable": subscriptions,
    }


def get_producer_connection_list(request: RemotingRequest, producer_groups: ProducerGroups) -> None:
    """Return the live producers of a producer group."""
    name = request.ext.text("producerGroup")
    rows = [
        connection_row(client_id, remote) for group, client_id, remote in producer_groups.members() if group == name
    ]
    if rows:
        request.reply(body=fastjson.encode({"connectionSet": rows}))
    else:
        request.reply(code=codes.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")


def connection_row(client_id: str, remote: ClientHandle) -> dict[str, Any]:
    """Return a client as RocketMQ's ``Connection``."""
    language, version = OWN_LANGUAGE, VERSION
    if isinstance(remote, RemotingClient):
        language, version = remote.language, remote.version
    return {
        "clientAddr": format_address(*remote.address),
        "clientId": client_id,
        "language": language,
        "version": version,
    }


def subscription_row(subscription: ClientSubscription) -> dict[str, Any]:
    """Return a subscription as RocketMQ's ``SubscriptionData``."""
    tags = split_tags(subscription.expression) if subscription.expression_type == TAG else []
    return {
        "classFilterMode": False,
        "codeSet": [tags_code(tag) for tag in tags],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }


# ---- progress ----


def query_topic_consume_by_who(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Return the groups that read a topic, or have read it."""
    topic = request.ext.text("topic")
    names = sorted(
        name for name, topics in groups.known_topics().items() if topic in topics and sees(request, GROUP, name)
    )
    request.reply(body=fastjson.encode({"groupList": names}))


def get_consume_stats(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Return a group's progress in each queue of its topics, or of those that the request names."""
    ext = request.ext
    group = check_client_group(ext.text("consumerGroup"))
    topics = [topic for topic in ext.text("topicList", "").split(TOPIC_SEPARATOR) if topic]
    topics = topics or [topic for topic in (ext.text("topic", ""),) if topic]
    if len(topics) > TOPICS_MAX:
        raise InvalidParameter(f"topicList names {len(topics):,} topics; the maximum is {TOPICS_MAX:,}")
    if not topics:
        known = groups.known_topics().get(group, set())
        topics = sorted(known.union(groups.retry_topics(group, known)))
    queues: list[Queue] = []
    for topic in filter(lambda topic: sees_progress(request, group, topic), topics):
        config = store.topics.get(topic)
        queues += [(topic, queue_id) for queue_id in range(config.read_queues if config is not None else 0)]
    pulled = {queue: groups.pulled.get((group, *queue), 0) for queue in queues}

    def answer(rows: list[tuple[Queue, dict[str, int]]]) -> None:
        table = ObjectMap((queue_row(gateway, queue), row) for queue, row in rows)
        request.reply(body=fastjson.encode({"consumeTps": 0.0, "offsetTable": table}))

    request.after_dispatch(lambda: request.read(lambda hot: _progress(store, group, pulled, hot), answer))


def _progress(
    store: MessageStore, group: str, pulled: dict[Queue, int], hot: bool
) -> list[tuple[Queue, dict[str, int]]]:
    """Return each queue that still exists, with RocketMQ's ``OffsetWrapper``. ``pulled``: next offsets by queue."""
    # So many queues would hold up the loop, even if all of them are in memory.
    if hot and len(pulled) > HOT_QUEUES_MAX:
        raise WouldBlock
    rows = []
    for queue, next_offset in pulled.items():
        with contextlib.suppress(TopicNotExist, QueueNotExist):  # deleted in the meantime
            committed = store.consumer_offsets.committed_of(group, *queue) or 0
            low, high = store.queue_reads.min_offset(*queue, hot=hot), store.queue_reads.max_offset(*queue)
            rows.append((queue, offset_wrapper(store, queue, low, high, committed, next_offset, hot=hot)))
    return rows


def reset_offset(
    request: RemotingRequest,
    gateway: RemotingGateway,
    groups: GroupCoordinator,
    store: MessageStore,
    pops: PopService,
    holds: PullRequestHoldService,
) -> None:
    """Move a group's committed offsets in a topic to a time, the end, or in one queue to an offset; return them.

    Its live clients continue from there: the next pull of each queue is told so.
    """
    ext = request.ext
    group, topic = check_client_group(ext.text("group")), ext.text("topic")
    queue = ext.integer("queueId", -1, low=-1, high=2**31 - 1)
    offset = ext.integer("offset", -1, low=-1)
    timestamp_ms = ext.integer("timestamp", -1, low=-(2**63))
    if store.topics.get(topic) is None:
        raise TopicNotExist(f"Topic {topic} does not exist")
    if group not in groups.known_topics():
        raise GroupNotExist(f"Group {group} does not exist")
    to_offset = queue >= 0 and offset >= 0
    params = ResetOffsetRequest(
        group=group,
        topic=topic,
        to="offset" if to_offset else "time" if timestamp_ms >= 0 else "last",
        queue=queue,
        timestamp_ms=max(timestamp_ms, 0),
        force=True,
        count=int(to_offset),
    )

    def answer(offsets: dict[int, int]) -> None:
        table = ObjectMap((queue_row(gateway, (topic, queue_id)), offset) for queue_id, offset in offsets.items())
        request.reply(body=fastjson.encode({"offsetTable": table}))

    parts = ProgressParts(store, groups, pops, holds)
    reset_progress(request, parts, params, {queue: offset} if to_offset else {}, answer)
