"""Permission rules of remoting requests: what a user needs before a handler gets the request.

Each row of ``registry`` has one. A rule reads the extension fields; a field that is missing needs nothing, because the
handler refuses such a request before it does anything. A handler whose body names topics or groups checks them itself
with ``check`` after it has decoded them and before it changes anything; lists leave out what ``sees`` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ...protocol.auth.permissions import ADMIN, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from ..requests.request import Request

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""The producer group that each client of RocketMQ names beside its own, consumers too. No client needs a right on it,
but only clients with that right are in it."""
Rule: TypeAlias = Callable[[Mapping[str, str]], tuple[Need, ...]]


def check(request: Request, *needs: Need) -> None:
    """Raise ``NoPermission`` for the first of ``needs`` that the request's user lacks; without users do nothing."""
    access = request.peer.access
    if access is not None:
        for need in needs:
            access.check(need)


def sees(request: Request, kind: str, name: str) -> bool:
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
