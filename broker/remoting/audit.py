"""The audit log's entries about requests that only RocketMQ's programs have, and about those that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol.remoting import codes
from ..requests.audit import author

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from .request import RemotingRequest

ADMINISTRATIVE = {
    getattr(codes, name): name
    for name in (
        "UPDATE_AND_CREATE_TOPIC",
        "UPDATE_AND_CREATE_TOPIC_LIST",
        "DELETE_TOPIC_IN_BROKER",
        "DELETE_TOPIC_IN_NAMESRV",
        "CLEAN_UNUSED_TOPIC",
        "CLEAN_EXPIRED_CONSUMEQUEUE",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
        "DELETE_SUBSCRIPTIONGROUP",
        "INVOKE_BROKER_TO_RESET_OFFSET",
        "CLONE_GROUP_OFFSET",
        "SET_MESSAGE_REQUEST_MODE",
        "CONSUME_MESSAGE_DIRECTLY",
        "RESUME_CHECK_HALF_MESSAGE",
        "UPDATE_BROKER_CONFIG",
        "GET_BROKER_CONFIG",
        "WIPE_WRITE_PERM_OF_BROKER",
        "ADD_WRITE_PERM_OF_BROKER",
        "DELETE_KV_CONFIG",
    )
}
"""Names of the requests of administrators, whose refusals are recorded, by code; some of them change nothing."""
NAMING_FIELDS = {
    "topic": "topic",
    "group": "group",
    "groupName": "group",
    "consumerGroup": "group",
    "srcGroup": "group",
    "destGroup": "group",
    "clientId": "client",
    "msgId": "message",
    "brokerName": "broker",
}
"""Kinds of targets, by the fields that name them in a request's header or in the object of its body."""


def audit_change(request: RemotingRequest, target: str, before: Any = None, after: Any = None) -> None:
    """Record that the client changed ``target`` by a request that only RocketMQ's programs have."""
    action = ADMINISTRATIVE[request.received.code]
    request.broker.audit.write(action, target, author=author(request.peer), before=before, after=after)


def audit_refused(request: RemotingRequest, error: BrokerError) -> None:
    """Record a refused request of an administrator."""
    action = ADMINISTRATIVE.get(request.received.code)
    if action is None:
        return
    named = request.received.fields | (request.json if isinstance(request.json, dict) else {})
    names = [
        f"{kind} {value}"
        for field, kind in NAMING_FIELDS.items()
        if (value := named.get(field)) and isinstance(value, str)
    ]
    request.broker.audit.write(
        action, ", ".join(names) or "the broker", author=author(request.peer), outcome=error.name, reason=error.message
    )
