"""Requests of clients to a name server, whose role the broker has: the routes of topics, and the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import TOPIC
from ....protocol.remoting import codes
from ....protocol.remoting.fastjson import encode
from ....protocol.remoting.signature import ACCESS_KEY
from ...store import TopicConfig
from ..audit import audit_change
from ..bodies import encode_lines
from ..name_server import PRIMARY_ID
from ..rules import sees
from ..sends import DEFAULT_TOPIC

if TYPE_CHECKING:
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

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
    """Return the cluster: one broker."""
    names = gateway.names
    cluster = {
        "brokerAddrTable": {names.broker_name: names.broker_data()},
        "clusterAddrTable": {names.cluster: [names.broker_name]},
    }
    reply_json(request, cluster)


def get_all_topic_list_from_nameserver(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the names of all topics."""
    _reply_topics(request, _seen(request, gateway))


def get_topics_by_cluster(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return the names of all topics of a cluster; none for another one's name."""
    cluster, names = request.ext.text("cluster"), gateway.names
    _reply_topics(request, _seen(request, gateway) if cluster == names.cluster else ())


def _seen(request: RemotingRequest, gateway: RemotingGateway) -> list[str]:
    """Return the names of the topics that the user may see."""
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
        audit_change(request, f"the routes of {broker_name}", not names.write_wiped, not wiped)
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
