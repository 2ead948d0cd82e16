"""Clients and their groups: HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP."""

from __future__ import annotations

import json
from typing import Any

from ....protocol.errors import InvalidParameter
from ....protocol.names import check_client_group
from ....protocol.remoting import codes
from ....protocol.storage.delivery import retry_topic
from ...delivery.groups.producer_groups import ProducerGroups
from ...delivery.writer import RecordWriter
from ...store import TopicConfig
from ..client import RemotingClient
from ..consumer_clients import EXPIRY_S, ClientGroup, ClientSubscription
from ..gateway import RemotingGateway
from ..request import RemotingRequest


def heart_beat(
    request: RemotingRequest, gateway: RemotingGateway, producer_groups: ProducerGroups, writer: RecordWriter
) -> None:
    """Register a client in the groups that it names; it expires after two minutes without a heartbeat."""
    data = json_body(request)
    client_id = str(data.get("clientID", ""))
    peer = request.peer
    assert isinstance(peer, RemotingClient)
    for producer in data.get("producerDataSet") or ():
        name = check_client_group(str(producer.get("groupName", "")))
        producer_groups.heart_beat(name, client_id, peer, EXPIRY_S)
    retry_topics = []
    for consumer in data.get("consumerDataSet") or ():
        group = _group(consumer)
        check_client_group(group.name)
        request.broker.groups.ensure_group(group.name)
        received = request.received
        gateway.consumers.heart_beat(group, client_id, peer, received.language, received.version)
        retry_topics.append(TopicConfig(retry_topic(group.name), read_queues=1, write_queues=1))
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
    writer.with_topics(retry_topics, request.later(lambda: request.reply(fields)))


def _group(consumer: dict[str, Any]) -> ClientGroup:
    subscriptions = {}
    for row in consumer.get("subscriptionDataSet") or ():
        topic = str(row.get("topic", ""))
        subscriptions[topic] = ClientSubscription(
            topic,
            str(row.get("subString") or "*"),
            str(row.get("expressionType") or "TAG"),
            int(row.get("subVersion") or 0),
        )
    return ClientGroup(
        str(consumer.get("groupName", "")),
        str(consumer.get("consumeType", "")),
        str(consumer.get("messageModel", "")),
        str(consumer.get("consumeFromWhere", "")),
        subscriptions,
    )


def unregister_client(request: RemotingRequest, gateway: RemotingGateway, producer_groups: ProducerGroups) -> None:
    """Remove a client from its groups."""
    ext = request.ext
    client_id, producer, consumer = ext.text("clientID"), ext.text("producerGroup", ""), ext.text("consumerGroup", "")
    if producer:
        producer_groups.leave(producer, client_id)
    if consumer:
        gateway.consumers.leave(consumer, client_id)
    request.reply()


def get_consumer_list_by_group(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the ids of the live clients of a group, which share its queues by them."""
    name = request.ext.text("consumerGroup")
    group = gateway.consumers.groups.get(name)
    if group is None:
        request.reply(code=codes.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return
    request.reply(body=json.dumps({"consumerIdList": list(group.clients)}).encode())


def json_body(request: RemotingRequest) -> dict[str, Any]:
    """Return the JSON object in the request's body. Raises ``InvalidParameter``."""
    try:
        data = json.loads(bytes(request.received.body))
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"the body of request {request.received.code} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidParameter(f"the body of request {request.received.code} must be a JSON object")
    return data
