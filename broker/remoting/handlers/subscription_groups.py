"""Administration of groups: their settings, what they read, and copies of their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import ADMIN, GROUP, TOPIC, Need
from ....protocol.errors import GroupNotExist, GroupRunning, InvalidParameter, NoPermission, TopicNotExist
from ....protocol.names import check_client_group
from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ...handlers.group_admin import GroupParts, remove_group
from ...handlers.offsets import sees_progress
from ..audit import audit_change
from ..json_fields import json_body
from ..rules import check, sees
from .routes import reply_json

if TYPE_CHECKING:
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...delivery.pop.service import PopService
    from ...delivery.topic_changes import TopicChanges
    from ...requests.counters import Counters
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..json_fields import JsonFields
    from ..request import RemotingRequest

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


def update_and_create_subscriptiongroup(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Create a group or change its settings; respond once the table is on disk."""
    _put(request, groups, store, [_decode_group(request, json_body(request))])


def update_and_create_subscriptiongroup_list(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Create groups or change their settings, all or none; respond once the table is on disk."""
    rows = [_decode_group(request, row) for row in json_body(request).objects("groupConfigList", GROUPS_AT_ONCE_MAX)]
    if len({row["groupName"] for row in rows}) < len(rows):
        raise InvalidParameter("groupConfigList names a group twice; nothing was changed")
    _put(request, groups, store, rows)


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


def _put(request: RemotingRequest, groups: GroupCoordinator, store: MessageStore, rows: list[dict[str, Any]]) -> None:
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
        audit_change(request, f"group {name}", before, table.settings_of(name))
    request.after_saved(request.reply)


def get_all_subscriptiongroup_config(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return the settings of every group that the user may see."""
    table = {name: store.groups.settings_of(name) for name in store.groups.names() if sees(request, GROUP, name)}
    version = gateway.names.data_version(store.groups.changes)
    reply_json(request, {"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": table})


def get_subscriptiongroup_config(request: RemotingRequest, store: MessageStore) -> None:
    """Return the settings of a group. One that does not exist yet has the default ones, which it would begin with."""
    reply_json(request, store.groups.settings_of(check_client_group(request.ext.text("group"))))


def delete_subscriptiongroup(
    request: RemotingRequest,
    store: MessageStore,
    groups: GroupCoordinator,
    pops: PopService,
    counters: Counters,
    topic_changes: TopicChanges,
) -> None:
    """Delete a group without members, with its progress; a group that does not exist is deleted already."""
    name = check_client_group(request.ext.text("groupName"))
    try:
        remove_group(request, GroupParts(store, groups, pops, counters, topic_changes), name, request.reply)
    except GroupNotExist:
        request.reply()


def query_topics_by_consumer(request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator) -> None:
    """Return the topics in which a group has committed an offset."""
    name = check_client_group(request.ext.text("group"))
    topics = {topic for topic in groups.known_topics().get(name, ()) if sees(request, TOPIC, topic)}
    reply_json(request, {"brokerAddr": gateway.address, "topicList": sorted(topics)})


def clone_group_offset(
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
            f"group {target} has {len(live.clients)} live members; stop them first", members=len(live.clients)
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
        audit_change(request, f"group {target}, topic {name}", before, row)
    request.after_saved(request.reply)
