"""Consumer groups for RocketMQ's clients and tools: settings, clients, progress and shares of queues."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import ADMIN, CONSUME, GROUP, TOPIC, Need
from ....protocol.commands import ResetOffsetRequest
from ....protocol.errors import (
    GroupNotExist,
    GroupRunning,
    InvalidParameter,
    NoPermission,
    QueueNotExist,
    TopicNotExist,
)
from ....protocol.names import check_client_group
from ....protocol.remoting import codes, fastjson
from ....protocol.remoting.command import VERSION
from ....protocol.remoting.fastjson import ObjectMap, encode
from ....protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from ....protocol.storage.javahash import tags_code
from ...addresses import format_address
from ...delivery.groups.clients import BROADCASTING, CLUSTERING, MESSAGE_MODELS, ClientSubscription, live_members
from ...delivery.pop.service import ALL_QUEUES
from ...handlers.groups import HOT_QUEUES_MAX
from ...handlers.offsets import sees_progress
from ...store import WouldBlock
from ..gateway import RemotingClient
from ..request import message_queue
from ..rules import check, sees
from .clients import SQL92, TAG, queue_row, split_tags
from .topics import reply_json

if TYPE_CHECKING:
    from ...delivery.client_handle import ClientHandle
    from ...delivery.groups.admin import GroupAdmin
    from ...delivery.groups.clients import ProducerGroups
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...delivery.groups.group import ConsumerGroup, Queue
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..json_fields import JsonFields
    from ..request import RemotingRequest


# ---- Progress of groups as RocketMQ's administration asks for it: how far behind in time, and all groups at
# once.


async def query_consume_time_span(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return the store times of a topic's first and last message, and of the last that a group has consumed, by queue.

    ``delayTime``: age of the next message to consume in ms; missing if there is none.
    """
    ext = request.ext
    topic, group = ext.text("topic"), check_client_group(ext.text("group"))
    store.topics.check_readable(topic)
    committed = store.consumer_offsets.committed(group, topic)
    now_ms = int(time.time() * 1000)

    def read(hot: bool) -> list[dict[str, Any]]:
        if hot:
            raise WouldBlock  # four records a queue
        rows = []
        for queue_id, low, high, last_ms in store.queue_reads.topic_stats(topic, hot=False):
            stored_ms = store.queue_reads.stored_ms
            first_ms = store.queue_reads.earliest_store_time(topic, queue_id, hot=False)
            consumed = committed.get(queue_id, 0)
            consumed_ms = first_ms
            if consumed > low:
                consumed_ms = stored_ms(topic, queue_id, consumed - 1, hot=False) or -1
            row: dict[str, Any] = {
                "messageQueue": message_queue(gateway.broker_name, topic, queue_id),
                "minTimeStamp": first_ms,
                "maxTimeStamp": last_ms,
                "consumeTimeStamp": consumed_ms,
            }
            next_ms = stored_ms(topic, queue_id, max(consumed, low), hot=False) if consumed < high else None
            rows.append(row | ({"delayTime": max(now_ms - next_ms, 0)} if next_ms is not None else {}))
        return rows

    await request.dispatched()
    reply_json(request, {"consumeTimeSpanSet": await request.read(read)})


async def get_broker_consume_stats(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Return the progress of all groups that the user may see; of ordered topics alone if ``isOrder`` says so."""
    only_ordered = request.ext.flag("isOrder")
    wanted: dict[str, dict[str, dict[int, int]]] = {}
    for group, topic, row, from_first in groups.all_progress():
        config = store.topics.get(topic)
        is_wanted = config is not None and (config.order or not only_ordered) and (row or from_first)
        if is_wanted and not topic.startswith(DEAD_LETTER_TOPIC_PREFIX) and sees_progress(request, group, topic):
            wanted.setdefault(group, {})[topic] = row

    def read(hot: bool) -> bytes:
        if hot:
            raise WouldBlock
        listed, total = [], 0
        for group, topics in sorted(wanted.items()):
            stats = []
            for topic, committed in sorted(topics.items()):
                table = _progress_table(store, gateway.broker_name, topic, committed)
                total += sum(row["brokerOffset"] - row["consumerOffset"] for _, row in table)
                stats.append({"consumeTps": 0.0, "offsetTable": table})
            listed.append({group: stats})
        return encode(
            {"brokerAddr": gateway.address, "consumeStatsList": listed, "totalDiff": total, "totalInflightDiff": 0}
        )

    await request.dispatched()
    request.reply(body=await request.read(read))


def _progress_table(store: MessageStore, broker_name: str, topic: str, committed: dict[int, int]) -> ObjectMap:
    """Return ends and progress of each queue of a topic that still exists. Blocks."""
    table = ObjectMap()
    try:
        ends = store.queue_reads.topic_stats(topic, hot=False)
    except TopicNotExist:  # deleted meanwhile
        return table
    for queue_id, low, high, _ in ends:
        row = offset_wrapper(store, (topic, queue_id), low, high, committed.get(queue_id, 0), hot=False)
        table.append((message_queue(broker_name, topic, queue_id), row))
    return table


def offset_wrapper(
    store: MessageStore, queue: Queue, low: int, high: int, committed: int, pulled: int = 0, *, hot: bool
) -> dict[str, int]:
    """Return RocketMQ's ``OffsetWrapper`` of a queue that has the offsets in ``[low, high)``. ``pulled``: the next
    offset to pull.

    RocketMQ's tools show the difference of the two ends as the lag. So that it counts what waits, progress is within
    the queue: a group reads on at ``low`` if what it has not read before that is deleted.
    """
    last_ms = store.queue_reads.stored_ms(*queue, committed - 1, hot=hot) if committed else None
    consumed = min(max(committed, low), high)
    return {
        "brokerOffset": high,
        "consumerOffset": consumed,
        "lastTimestamp": last_ms or 0,
        "pullOffset": max(consumed, pulled),
    }


# ---- Groups as RocketMQ's admin tools see them: their clients and progress, and resets of their offsets.

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
    name = request.ext.text("producerGroup")
    rows = [
        connection_row(client_id, remote) for group, client_id, remote in producer_groups.members() if group == name
    ]
    if rows:
        request.reply(body=fastjson.encode({"connectionSet": rows}))
    else:
        request.reply(code=codes.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")


def connection_row(client_id: str, remote: ClientHandle) -> dict[str, Any]:
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


async def get_consume_stats(
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

    await request.dispatched()
    rows = await request.read(lambda hot: _progress(store, group, pulled, hot))
    table = ObjectMap((queue_row(gateway, queue), row) for queue, row in rows)
    request.reply(body=fastjson.encode({"consumeTps": 0.0, "offsetTable": table}))


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


async def reset_offset(
    request: RemotingRequest,
    gateway: RemotingGateway,
    groups: GroupCoordinator,
    store: MessageStore,
    group_admin: GroupAdmin,
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

    offsets = await group_admin.reset(request, params, {queue: offset} if to_offset else {})
    table = ObjectMap((queue_row(gateway, (topic, queue_id)), offset) for queue_id, offset in offsets.items())
    request.reply(body=fastjson.encode({"offsetTable": table}))


# ---- Administration of groups: their settings, what they read, and copies of their progress.

GROUPS_AT_ONCE_MAX = 1_000
RETRY_TIMES_LARGEST = 10_000
QUEUES_LARGEST = 1_024
MINUTES_LARGEST = 1_000_000
RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")
CUSTOMIZED = RETRY_POLICIES[1]
_I32_MAX = 2**31 - 1
_SWITCHES = (
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "consumeMessageOrderly",
    "notifyConsumerIdsChangedEnable",
)
_NUMBERS = {
    "retryQueueNums": (0, QUEUES_LARGEST),
    "retryMaxTimes": (-1, RETRY_TIMES_LARGEST),
    "brokerId": (0, _I32_MAX),
    "whichBrokerWhenConsumeSlowly": (0, _I32_MAX),
    "groupSysFlag": (0, _I32_MAX),
    "consumeTimeoutMinute": (0, MINUTES_LARGEST),
}
"""Smallest and largest value of the settings that are numbers."""


async def update_and_create_subscriptiongroup(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Create a group or change its settings; respond once the table is on disk."""
    await _put(request, groups, store, [_decode_group(request, request.json_body())])


async def update_and_create_subscriptiongroup_list(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Create groups or change their settings, all or none; respond once the table is on disk."""
    rows = [_decode_group(request, row) for row in request.json_body().objects("groupConfigList", GROUPS_AT_ONCE_MAX)]
    if len({row["groupName"] for row in rows}) < len(rows):
        raise InvalidParameter("groupConfigList names a group twice; nothing was changed")
    await _put(request, groups, store, rows)


def _decode_group(request: RemotingRequest, row: JsonFields) -> dict[str, Any]:
    """Return the settings that a row has, checked; others that RocketMQ may have are left out."""
    name = check_client_group(row.text("groupName"))
    check(request, Need((ADMIN,), GROUP, name))
    kept: dict[str, Any] = {"groupName": name}
    kept |= {switch: row.flag(switch) for switch in _SWITCHES if row.has(switch)}
    kept |= {number: row.integer(number, 0, *bounds) for number, bounds in _NUMBERS.items() if row.has(number)}
    policy = row.object("groupRetryPolicy")
    if policy is not None and policy.word("type", RETRY_POLICIES, CUSTOMIZED) != CUSTOMIZED:
        raise InvalidParameter(
            f"group {name}: groupRetryPolicy must be CUSTOMIZED: messages are redelivered by the delay levels"
        )
    if row.texts("attributes"):
        raise InvalidParameter(f"group {name}: groups have no attributes that can be set; leave attributes empty")
    return kept


async def _put(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore, rows: list[dict[str, Any]]
) -> None:
    """Change the table of groups, then respond once it is on disk and, in a replica set, on the other members."""
    table = store.groups
    new = sum(not table.has(row["groupName"]) for row in rows)
    for row in rows:
        groups.check_may_be(row["groupName"])
    if len(table) + new > groups.groups_max:
        raise InvalidParameter(
            f"{new} new groups would make {len(table) + new}, and limits.groups_max is {groups.groups_max}; nothing "
            "was changed"
        )
    # Everything that may be refused is refused before the first change.
    for row in rows:
        name = row["groupName"]
        before = table.settings_of(name) if table.has(name) else None
        table.put(row)
        request.audit_change(f"group {name}", before, table.settings_of(name))
    await request.saved()
    request.reply()


def get_all_subscriptiongroup_config(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    table = {name: store.groups.settings_of(name) for name in store.groups.names() if sees(request, GROUP, name)}
    version = gateway.names.data_version(store.groups.changes)
    reply_json(request, {"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table})


def get_subscriptiongroup_config(request: RemotingRequest, store: MessageStore) -> None:
    """Return the settings of a group. One that does not exist yet has the default ones, which it would begin with."""
    reply_json(request, store.groups.settings_of(check_client_group(request.ext.text("group"))))


async def delete_subscriptiongroup(request: RemotingRequest, group_admin: GroupAdmin) -> None:
    """Delete a group without members, with its progress; a group that does not exist is deleted already."""
    name = check_client_group(request.ext.text("groupName"))
    with contextlib.suppress(GroupNotExist):
        await group_admin.delete(request, name)
    request.reply()


def query_topics_by_consumer(request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator) -> None:
    name = check_client_group(request.ext.text("group"))
    topics = {topic for topic in groups.known_topics().get(name, ()) if sees(request, TOPIC, topic)}
    reply_json(request, {"brokerAddr": gateway.address, "topicList": sorted(topics)})


async def clone_group_offset(
    request: RemotingRequest, gateway: RemotingGateway, store: MessageStore, groups: GroupCoordinator
) -> None:
    """Copy a group's committed offsets of one topic, or of all, to another group."""
    ext = request.ext
    source, target = check_client_group(ext.text("srcGroup")), check_client_group(ext.text("destGroup"))
    topic = ext.text("topic", "")
    if topic and store.topics.get(topic) is None:
        raise TopicNotExist(f"topic[{topic}] not exist")
    offsets = store.consumer_offsets
    rows = {
        name: row
        for group, name, row in offsets.rows()
        if group == source
        and (name == topic or not topic)
        # Its retry topic is for the source group alone.
        and not name.startswith(RETRY_TOPIC_PREFIX)
        and store.topics.get(name) is not None
    }
    groups.check_idle(target, "stop them first: they would commit their own offsets", topic)
    live = gateway.consumers.groups.get(target)
    if live is not None and live.clients:
        raise GroupRunning(
            f"group {target} has {live_members(len(live.clients))}; stop them first", members=len(live.clients)
        )
    if not all(sees_progress(request, source, name) for name in rows):
        raise NoPermission(
            f"group {source} has progress in topics that the user may not see; pass one topic that it may see"
        )
    # All of them before the first change, or a refusal would leave a part of the offsets copied.
    groups.check_may_commit(target, ((name, queue) for name, row in rows.items() for queue in row))
    groups.ensure_group(target)
    for name, row in rows.items():
        before = offsets.committed(target, name)
        groups.reset_offsets(target, name, row)
        request.audit_change(f"group {target}, topic {name}", before, row)
    await request.saved()
    request.reply()


# ---- QUERY_ASSIGNMENT: the share of a client that lets the broker divide the queues; and whether it pulls or
# pops them.

AVERAGE, CIRCLE = "AVG", "AVG_BY_CIRCLE"
MODES = PULL, POP = "PULL", "POP"


def query_assignment(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Return the queues of a topic that a client of a group consumes: its share, or all of them for broadcasting.

    A client that waits, or that is not known, gets none.
    """
    body = request.json_body()
    topic, name = body.text("topic"), check_client_group(body.text("consumerGroup"))
    client_id, strategy = body.text("clientId"), body.text("strategyName", AVERAGE)
    if strategy not in (AVERAGE, CIRCLE):
        raise InvalidParameter(f"the broker divides queues by {AVERAGE} or {CIRCLE}, not by {strategy[:80]!r}")
    check(request, Need((CONSUME,), GROUP, name), Need((CONSUME,), TOPIC, topic))
    store.topics.check_readable(topic)
    config = store.topics.get(topic)
    queues = [(topic, queue_id) for queue_id in range(config.read_queues if config is not None else 0)]
    group, mode = groups.clients.sharing(name), PULL
    if body.word("messageModel", MESSAGE_MODELS, CLUSTERING) != BROADCASTING:
        # Java compares text by its UTF-16 code units, and the clients that divide by themselves must agree.
        ids = sorted(group.clients if group is not None else (), key=lambda each: each.encode("utf-16-be"))
        share = store.groups.pop_share(name, topic)
        if share is None:
            queues = share_of(client_id, ids, queues, strategy)
        else:
            mode, queues = POP, shared_share_of(client_id, ids, queues, strategy, share)
    rows = [{"messageQueue": queue_row(gateway, queue), "mode": mode} for queue in queues]
    request.reply(body=fastjson.encode({"messageQueueAssignments": rows}))


def share_of(client_id: str, clients: list[str], queues: list[Queue], strategy: str) -> list[Queue]:
    """Return the queues of one client: consecutive ones, of which the first clients get one more, or in turns."""
    if client_id not in clients:
        return []
    at, count = clients.index(client_id), len(clients)
    if strategy == CIRCLE:
        return queues[at::count]
    each, more = divmod(len(queues), count)
    first = at * each + min(at, more)
    return queues[first : first + each + (at < more)]


def shared_share_of(client_id: str, clients: list[str], queues: list[Queue], strategy: str, share: int) -> list[Queue]:
    """Return the queues that a client pops from: all, as ``ALL_QUEUES``, or its own and those of the ``share`` next
    clients, as RocketMQ's ``allocate4Pop``."""
    if client_id not in clients or not queues:
        return []
    if share <= 0 or share >= len(clients) - 1:
        return [(queues[0][0], ALL_QUEUES)]
    at = clients.index(client_id)
    # With more clients than queues, several pop from the same one.
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    shared = [clients[(at + each) % len(clients)] for each in range(share + 1)]
    return [queue for each in shared for queue in share_of(each, clients, queues, strategy)]


async def set_message_request_mode(request: RemotingRequest, groups: GroupCoordinator, store: MessageStore) -> None:
    """Let push consumers of a group pop the messages of a topic, or pull them again. It applies to those that let the
    broker divide the queues, when they ask next."""
    body = request.json_body()
    topic, name = body.text("topic"), check_client_group(body.text("consumerGroup"))
    mode, share = body.word("mode", MODES, ""), body.integer("popShareQueueNum", 0, low=-(2**31), high=2**31 - 1)
    check(request, Need((ADMIN,), GROUP, name), Need((CONSUME,), TOPIC, topic))
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise NoPermission(f"topic {topic} is a retry topic: it is always pulled")
    if not mode:
        raise InvalidParameter(f"mode must be {PULL} or {POP}")
    store.topics.check_readable(topic)
    groups.ensure_group(name)
    before, after = store.groups.pop_share(name, topic), share if mode == POP else None
    store.groups.set_pop_share(name, topic, after)
    request.audit_change(f"group {name}, topic {topic}", _shown(before), _shown(after))
    await request.saved()
    request.reply()


def _shown(share: int | None) -> dict[str, object]:
    return {"mode": PULL} if share is None else {"mode": POP, "popShareQueueNum": share}


def get_message_request_mode(request: RemotingRequest, store: MessageStore) -> None:
    """Return the topics that push consumers pop, by topic and group."""
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for group, topic, share in store.groups.pop_shares():
        if sees(request, GROUP, group) and sees(request, TOPIC, topic):
            row = {"consumerGroup": group, "mode": POP, "popShareQueueNum": share, "topic": topic}
            rows.setdefault(topic, {})[group] = row
    request.reply(body=fastjson.encode({"messageRequestModeMap": rows}))


# ---- Live clients of all producer groups, and the subscription of a consumer group to one topic.


def get_all_producer_info(request: RemotingRequest, producer_groups: ProducerGroups) -> None:
    now_ms = int(time.time() * 1000)
    table: dict[str, list[dict[str, Any]]] = {}
    for group, client_id, remote in producer_groups.members():
        if sees(request, GROUP, group):
            row = connection_row(client_id, remote)
            # The tool prints the address without its first character, as Java writes a socket's.
            own = {"lastUpdateTimestamp": now_ms, "remoteIP": f"/{row.pop('clientAddr')}"}
            table.setdefault(group, []).append(row | own)
    request.reply(body=encode({"data": table}))


def query_subscription_by_consumer(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return what the live clients of a group want of a topic; nothing, if they do not subscribe to it."""
    group, topic = check_client_group(request.ext.text("group")), request.ext.text("topic")
    clients = gateway.consumers.groups.get(group)
    found = clients.subscriptions.get(topic) if clients is not None else None
    subscription = subscription_row(found) if found is not None else None
    request.reply(body=encode({"group": group, "subscriptionData": subscription, "topic": topic}))
