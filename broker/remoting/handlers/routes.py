"""Requests of clients to a name server, whose role the broker has: the routes of topics, and the cluster."""

from __future__ import annotations

import json
from typing import Any

from ....protocol.errors import TopicNotExist
from ...store import MessageStore
from ..gateway import RemotingGateway
from ..request import RemotingRequest
from ..sends import DEFAULT_TOPIC

PERM_READ_WRITE_INHERIT = 7
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def get_routeinfo_by_topic(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return the broker and the queues of a topic."""
    topic = request.ext.text("topic")
    config = store.topics.get(topic)
    if config is not None:
        read, write, perm = config.read_queues, config.write_queues, config.perm
    elif topic == DEFAULT_TOPIC and request.broker.auto_create:
        read = write = 8
        perm = PERM_READ_WRITE_INHERIT
    elif topic in (gateway.cluster, gateway.broker_name):
        read = write = 8 if topic == gateway.cluster else 1
        perm = PERM_READ_WRITE_INHERIT
    else:
        raise TopicNotExist(f"No topic route info in name server for the topic: {topic}")
    queues = {
        "brokerName": gateway.broker_name,
        "perm": perm,
        "readQueueNums": read,
        "topicSysFlag": 0,
        "writeQueueNums": write,
    }
    route = {"brokerDatas": [broker_data(gateway)], "filterServerTable": {}, "queueDatas": [queues]}
    request.reply(body=_encode(route).encode())


def broker_data(gateway: RemotingGateway) -> dict[str, Any]:
    """Return the broker as routes describe it."""
    return {
        "brokerAddrs": {"0": gateway.address},
        "brokerName": gateway.broker_name,
        "cluster": gateway.cluster,
        "enableActingMaster": False,
    }


def get_broker_cluster_info(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the cluster: one broker."""
    cluster = {
        "brokerAddrTable": {gateway.broker_name: broker_data(gateway)},
        "clusterAddrTable": {gateway.cluster: [gateway.broker_name]},
    }
    request.reply(body=_encode(cluster).encode())
