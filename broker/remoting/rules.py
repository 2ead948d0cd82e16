"""Permission rules of remoting requests: what a user needs before a handler gets the request.

Each row of ``registry`` has one. A rule reads the extension fields; a field that is missing needs nothing, because the
handler refuses such a request before it does anything. A handler whose body names topics or groups checks them itself
with ``check`` after it has decoded them and before it changes anything; lists leave out what ``sees`` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ...protocol.auth.permissions import ADMIN, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need
from ...protocol.remoting import codes
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ..requests.request import author

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from .request import RemotingRequest

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""The producer group that each client of RocketMQ names beside its own, consumers too. No client needs a right on it,
but only clients with that right are in it."""
Rule: TypeAlias = Callable[[Mapping[str, str]], tuple[Need, ...]]


def check(request: RemotingRequest, *needs: Need) -> None:
    """Raise ``NoPermission`` for the first of ``needs`` that the request's user lacks; without users do nothing."""
    access = request.peer.access
    if access is not None:
        for need in needs:
            access.check(need)


def sees(request: RemotingRequest, kind: str, name: str) -> bool:
    """Return whether lists show a topic or group to the request's user, who needs any right on it.

    ``kind``: ``TOPIC`` or ``GROUP``.
    """
    access = request.peer.access
    return access is None or access.sees(kind, name)


# ---- rules ----


def anybody(fields: Mapping[str, str]) -> tuple[Need, ...]:
    """Need nothing: the handler checks the body, or returns only what the user may see."""
    return ()


def broker(action: str) -> Rule:
    """Need ``action`` on the broker."""
    needs = (Need((action,), BROKER),)
    return lambda fields: needs


def topic(*actions: str, field: str = "topic") -> Rule:
    """Need one of ``actions`` on the topic in ``field``."""
    return lambda fields: _need(actions, TOPIC, fields.get(field))


def group(*actions: str, field: str = "consumerGroup") -> Rule:
    """Need one of ``actions`` on the group in ``field``."""
    return lambda fields: _need(actions, GROUP, fields.get(field))


def all_of(*rules: Rule) -> Rule:
    """Need what every one of ``rules`` needs."""
    return lambda fields: tuple(need for rule in rules for need in rule(fields))


def of_group_in_topic(on_group: str, on_topic: str, field: str = "consumerGroup") -> Rule:
    """Need ``on_group`` on the group in ``field`` and ``on_topic`` on the topic in the field ``topic``."""
    return all_of(group(on_group, field=field), topic(on_topic))


def of_client(fields: Mapping[str, str]) -> tuple[Need, ...]:
    """Need what the client of UNREGISTER_CLIENT needed to join the group that it leaves."""
    producer = fields.get("producerGroup")
    needs = _need((PUBLISH,), GROUP, producer) if producer != INNER_PRODUCER_GROUP else ()
    return needs + _need((CONSUME,), GROUP, fields.get("consumerGroup"))


def of_popped(fields: Mapping[str, str]) -> tuple[Need, ...]:
    """Need what a client needs to settle a message that it popped: a retry topic belongs to the group."""
    topic_name = fields.get("topic", "")
    needs = _need((CONSUME,), GROUP, fields.get("consumerGroup"))
    return needs if topic_name.startswith(RETRY_TOPIC_PREFIX) else needs + _need((CONSUME,), TOPIC, topic_name)


def _need(actions: tuple[str, ...], kind: str, name: str | None) -> tuple[Need, ...]:
    return (Need(actions, kind, name),) if name else ()


PUBLISHES = topic(PUBLISH)
PUBLISHES_V2 = topic(PUBLISH, field="b")
"""The same for the requests whose field names are single letters."""
CLONES = all_of(group(QUERY, field="srcGroup"), group(ADMIN, field="destGroup"), topic(QUERY))


# ---- The audit log's entries about requests that only RocketMQ's programs have, and about those that are
# refused.

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
