"""Topics as RocketMQ's clients and tools see and change them, and their routes, which clients ask a name server for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import ADMIN, TOPIC, Need
from ....protocol.commands import UpdateAndCreateTopicRequest
from ....protocol.commands.common import QUEUES_MAX
from ....protocol.errors import InvalidParameter, TopicNotExist
from ....protocol.remoting import codes
from ....protocol.remoting.command import ACCESS_KEY
from ....protocol.remoting.fastjson import ObjectMap, encode
from ...delivery.topic_changes import AS_IT_IS
from ...store import TopicConfig
from ..json_fields import JsonFields
from ..name_server import PRIMARY_ID, pop_retry_topics
from ..request import encode_lines, message_queue
from ..rules import check, sees
from ..sends import DEFAULT_TOPIC

if TYPE_CHECKING:
    from ...delivery.topic_changes import TopicService
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest


# ---- Requests of clients to a name server, whose role the broker has: the routes of topics, and the cluster.

NOT_SHOWN = TopicConfig(DEFAULT_TOPIC, read_queues=1, write_queues=1)
"""Topic whose settings the routes of all topics show that the user may not see."""
# Without spaces: the Go client splits ``brokerAddrs`` at its punctuation itself.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def get_routeinfo_by_topic(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the broker and the queues of a topic.

    A user without any right on the topic gets the same route whether it exists or not: only the refusal of what the
    client sends next tells its program the reason. A question without a signature only gets here where routes are open
    to everybody. The answer is standard JSON, whether or not the client asks for that by ``acceptStandardJsonOnly``.
    """
    topic = request.ext.text("topic")
    is_hidden = ACCESS_KEY in request.received.fields and topic != DEFAULT_TOPIC and not sees(request, TOPIC, topic)
    config = NOT_SHOWN if is_hidden else gateway.names.find(topic)
    reply_json(request, gateway.names.route(config))


def get_broker_cluster_info(request: RemotingRequest, gateway: RemotingGateway) -> None:
    names = gateway.names
    cluster = {
        "brokerAddrTable": {names.broker_name: names.broker_data()},
        "clusterAddrTable": {names.cluster: [names.broker_name]},
    }
    reply_json(request, cluster)


def get_all_topic_list_from_nameserver(request: RemotingRequest, gateway: RemotingGateway) -> None:
    _reply_topics(request, _seen(request, gateway))


def get_topics_by_cluster(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the names of all topics of a cluster; none for another one's name."""
    cluster, names = request.ext.text("cluster"), gateway.names
    _reply_topics(request, _seen(request, gateway) if cluster == names.cluster else ())


def _seen(request: RemotingRequest, gateway: RemotingGateway) -> list[str]:
    return [config.name for config in gateway.names.all_topics() if sees(request, TOPIC, config.name)]


def get_system_topic_list_from_ns(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the names of cluster and broker, which are topics too, and the broker's address."""
    names = gateway.names
    reply_json(request, {"brokerAddr": names.own_address, "topicList": [names.cluster, names.broker_name]})


def get_unit_topic_list(request: RemotingRequest) -> None:
    """Return the topics of units (copies of a cluster in several regions), which FlintMQ does not have."""
    _reply_topics(request, ())


def _reply_topics(request: RemotingRequest, topics: Iterable[str]) -> None:
    reply_json(request, {"topicList": sorted(topics)})


def get_kv_config(request: RemotingRequest) -> None:
    """Answer that a name server's table of settings does not have the key: this one is always empty."""
    namespace, key = request.ext.text("namespace"), request.ext.text("key")
    request.reply(code=codes.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace} Key: {key}")


def delete_kv_config(request: RemotingRequest) -> None:
    """Confirm the deletion of a setting of a name server, which is not there."""
    request.ext.text("namespace"), request.ext.text("key")
    request.reply()


def get_kvlist_by_namespace(request: RemotingRequest) -> None:
    """Answer that a name server's table of settings does not have the namespace: this one is always empty."""
    namespace = request.ext.text("namespace")
    request.reply(code=codes.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")


def delete_topic_in_namesrv(request: RemotingRequest) -> None:
    """Confirm the removal of a route: the broker already has none for a topic that was deleted."""
    # A request without its topic is refused.
    request.ext.text("topic")
    request.reply()


def wipe_write_perm_of_broker(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Let routes say that the broker's topics cannot be written, so that producers turn to others."""
    request.reply({"wipeTopicCount": str(_change_write_perm(request, gateway, wiped=True))})


def add_write_perm_of_broker(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Let routes tell the permissions of the topics again."""
    request.reply({"addTopicCount": str(_change_write_perm(request, gateway, wiped=False))})


def _change_write_perm(request: RemotingRequest, gateway: RemotingGateway, *, wiped: bool) -> int:
    """Set whether routes leave out the permission to write; return the number of topics with it, 0 for another
    broker's name."""
    names = gateway.names
    broker_name = request.ext.text("brokerName")
    if broker_name != names.broker_name:
        return 0
    if names.write_wiped != wiped:
        request.audit_change(f"the routes of {broker_name}", not names.write_wiped, not wiped)
    return names.wipe(wiped)


def get_namesrv_config(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return what is set of the role of a name server, a line for each setting."""
    _, _, port = gateway.address.rpartition(":")
    values = {"listenPort": port, "clusterTest": "false", "orderMessageEnable": "false"}
    request.reply(body=encode_lines(values))


def get_broker_member_group(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the brokers of a name: the one that takes messages, or none for another name."""
    cluster, broker_name = request.ext.text("clusterName"), request.ext.text("brokerName")
    names = gateway.names
    known = (cluster, broker_name) == (names.cluster, names.broker_name)
    group: dict[str, Any] = {"cluster": cluster, "brokerName": broker_name, "brokerAddrs": {}}
    if known:
        group["brokerAddrs"] = {PRIMARY_ID: names.own_address}
    request.reply(body=encode({"brokerMemberGroup": group}))


def notify_min_broker_id_change(request: RemotingRequest) -> None:
    """Take a name server's note that another broker of this name has the smallest number now; it changes nothing."""
    request.reply()


def reply_json(request: RemotingRequest, value: Any) -> None:
    """Respond with standard JSON."""
    request.reply(body=_encode(value).encode("utf-8", "replace"))


# ---- Administration of topics: create, change, delete and show them, and the offsets of their queues.

TOPICS_AT_ONCE_MAX = 1_000
PERM_MAX = 7
MESSAGE_TYPE = "message.type"
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


async def update_and_create_topic(request: RemotingRequest, topics: TopicService) -> None:
    """Create or change a topic; respond once the table is on disk."""
    ext = request.ext
    row = {
        "topicName": ext.text("topic"),
        "readQueueNums": ext.integer("readQueueNums"),
        "writeQueueNums": ext.integer("writeQueueNums"),
        "perm": ext.integer("perm"),
        "order": ext.flag("order"),
        "topicFilterType": ext.text("topicFilterType", "") or FILTER_TYPES[0],
        "topicSysFlag": ext.integer("topicSysFlag", 0),
        "attributes": _split_attributes(ext.text("attributes", "")),
    }
    params, extra = _decode_topic(JsonFields(row, "the request"))
    # As with RocketMQ, a topic may get fewer queues.
    await topics.change(request, params, extra, may_shrink=True)
    request.reply()


async def update_and_create_topic_list(request: RemotingRequest, topics: TopicService) -> None:
    """Create or change topics, one after the other; respond once all are on disk, or with the first one's error."""
    rows = request.json_body().objects("topicConfigList", TOPICS_AT_ONCE_MAX)
    changes = [_decode_topic(row) for row in rows]
    for params, _ in changes:
        check(request, Need((ADMIN,), TOPIC, params.topic))
    for params, extra in changes:
        await topics.change(request, params, extra, may_shrink=True)
    request.reply()


def _split_attributes(text: str) -> dict[str, str]:
    """Return the pairs of ``+message.type=DELAY,-other``, with the signs in the names."""
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split(",") if pair)}


def _decode_topic(row: JsonFields) -> tuple[UpdateAndCreateTopicRequest, dict[str, Any]]:
    """Return the change that a row asks for, with RocketMQ's other fields. Raises ``InvalidParameter``."""
    name = row.text("topicName")
    read, write = (
        row.integer("readQueueNums", low=1, high=QUEUES_MAX),
        row.integer("writeQueueNums", low=1, high=QUEUES_MAX),
    )
    perm = row.integer("perm", low=0, high=PERM_MAX)
    extra = {
        "topicFilterType": row.word("topicFilterType", FILTER_TYPES, FILTER_TYPES[0]),
        "topicSysFlag": row.integer("topicSysFlag", 0, 0, 3),
        "attributes": _changed_attributes(name, row.texts("attributes")),
    }
    return (UpdateAndCreateTopicRequest(name, read, write, perm, row.flag("order"), AS_IT_IS, -1), extra)


def _changed_attributes(topic: str, given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return new values by name, None for those to remove.

    RocketMQ's own attributes besides ``message.type`` choose stores that FlintMQ does not have.
    """
    changes: dict[str, str | None] = {}
    for signed, value in given.items():
        sign, name = (signed[0], signed[1:]) if signed[:1] in ("+", "-") else ("+", signed)
        if name != MESSAGE_TYPE:
            raise InvalidParameter(
                f"topic {topic}: attribute {name[:80]!r} is not supported, only {MESSAGE_TYPE}; nothing was changed"
            )
        if sign == "-":
            changes[name] = None
        elif value not in MESSAGE_TYPES:
            raise InvalidParameter(f"topic {topic}: {MESSAGE_TYPE} must be one of {', '.join(MESSAGE_TYPES)}")
        else:
            changes[name] = value
    return changes


async def delete_topic_in_broker(request: RemotingRequest, store: MessageStore, topics: TopicService) -> None:
    """Delete a topic, and the topics with its messages that groups still have to receive again by POP.

    As with RocketMQ, a topic that does not exist is deleted already: its tool deletes some more than once.
    """
    topic = request.ext.text("topic")
    names = [name for name in (topic, *pop_retry_topics(store, topic)) if store.topics.get(name) is not None]
    for name in names:
        await topics.delete(request, name)
    request.reply()


def get_all_topic_config(request: RemotingRequest, gateway: RemotingGateway, auto_create: bool) -> None:
    """Return every topic that the user may see, and the version of the table."""
    version = gateway.names.topics_version()
    table = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": {
            config.name: config.to_json()
            for config in gateway.names.topics.all(auto_create=auto_create)
            if sees(request, TOPIC, config.name)
        },
        "topicQueueMappingDetailMap": {},
    }
    reply_json(request, table)


def get_topic_config(request: RemotingRequest, gateway: RemotingGateway, auto_create: bool) -> None:
    """Return one topic."""
    reply_json(request, _existing(request, gateway, auto_create).to_json())


def _existing(request: RemotingRequest, gateway: RemotingGateway, auto_create: bool) -> TopicConfig:
    topic = request.ext.text("topic")
    config = gateway.names.topics.get(topic, auto_create=auto_create)
    if config is None:
        raise TopicNotExist(f"topic[{topic}] not exist")
    return config


async def get_topic_stats_info(
    request: RemotingRequest, gateway: RemotingGateway, store: MessageStore, auto_create: bool
) -> None:
    """Return both ends of each queue of a topic, and the store time of its last message."""
    config = _existing(request, gateway, auto_create)
    is_stored = store.topics.get(config.name) is not None

    def read(hot: bool) -> list[tuple[int, int, int, int]]:
        # The store does not have the topics that RocketMQ's programs expect of every broker until they are used.
        if is_stored:
            return store.queue_reads.topic_stats(config.name, hot=hot)
        return [(queue_id, 0, 0, -1) for queue_id in range(config.queues)]

    await request.dispatched()
    table = ObjectMap(
        (
            message_queue(gateway.broker_name, config.name, queue_id),
            {"lastUpdateTimestamp": max(stored_ms, 0), "maxOffset": high, "minOffset": low},
        )
        for queue_id, low, high, stored_ms in await request.read(read)
        if queue_id < config.write_queues
    )
    request.reply(body=encode({"offsetTable": table, "topicPutTps": gateway.figures.put_tps(config.name)}))


def get_system_topic_list_from_broker(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the names of the topics that each broker has."""
    reply_json(request, {"topicList": gateway.names.topics.system_names()})


def confirm(request: RemotingRequest) -> None:
    """Confirm a request to clean up what FlintMQ removes itself: queues go with their topic or their last message."""
    request.reply()
