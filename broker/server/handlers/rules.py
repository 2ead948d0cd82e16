"""What a request needs before its handler sees it: one rule for each command, in the table of ``dispatch``.

A rule looks at a frame's fields as they came. A field that is missing or of a wrong type needs nothing: the handler
refuses the request for it before it does anything. What only the body, the log or a table tells (subscriptions, a
message found by its id, the topic of a transaction) the handler checks, with ``peer.access``, and lists leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....protocol.frames import Frame
from ....protocol.permissions import ANY, BROKER, CONSUME, GROUP, PUBLISH, TOPIC, Need
from .context import Peer

Rule = Callable[[Mapping[str, Any]], tuple[Need, ...]]
Handler = Callable[[Peer, Frame], None]


def anybody(fields: Mapping[str, Any]) -> tuple[Need, ...]:
    """Any user; what it answers is only what that user may see."""
    return ()


def broker(action: str) -> Rule:
    """``action`` on the broker."""
    needs = (Need((action,), BROKER),)
    return lambda fields: needs


def on_any_topic(action: str) -> Rule:
    """``action`` on some topic: which ones, the handler checks."""
    needs = (Need((action,), TOPIC, ANY),)
    return lambda fields: needs


def topic(*actions: str) -> Rule:
    """One of ``actions`` on the topic in the field ``topic``, if there is one."""
    return lambda fields: _need(actions, TOPIC, fields.get("topic"))


def group(*actions: str) -> Rule:
    """One of ``actions`` on the group in the field ``group``, if there is one."""
    return lambda fields: _need(actions, GROUP, fields.get("group"))


def of_group_in_topic(on_group: str, on_topic: str) -> Rule:
    """``on_group`` on the group, ``on_topic`` on the topic, as far as the fields name them."""
    first, second = group(on_group), topic(on_topic)
    return lambda fields: first(fields) + second(fields)


def member(fields: Mapping[str, Any]) -> tuple[Need, ...]:
    """To be in a group of consumers, or of producers."""
    action = PUBLISH if fields.get("kind") == "producer" else CONSUME
    return _need((action,), GROUP, fields.get("group"))


def _need(actions: tuple[str, ...], kind: str, name: object) -> tuple[Need, ...]:
    return (Need(actions, kind, name),) if type(name) is str and name else ()


def guarded(handler: Handler, rule: Rule) -> Handler:
    """``handler`` for connections whose user is known: called only where the user may do what ``rule`` needs."""
    if rule is anybody:
        return handler

    def check_and_handle(peer: Peer, frame: Frame) -> None:
        access = peer.access
        assert access is not None, "for connections with a user"
        for need in rule(frame.fields):
            access.check(need)
        handler(peer, frame)

    return check_and_handle


def guarded_produce(produce: Handler) -> Handler:
    """As ``guarded`` with ``topic(PUBLISH)``, for one look into a set."""

    def check_and_produce(peer: Peer, frame: Frame) -> None:
        name, access = frame.fields.get("topic"), peer.access
        assert access is not None, "for connections with a user"
        if type(name) is str and name not in access.publishes:
            access.check_publish(name)
        produce(peer, frame)

    return check_and_produce
