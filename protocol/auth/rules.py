"""Permission rules: what a user needs before a handler gets the request. The declaration of each command has one.

A rule reads a frame's undecoded fields. If a field is missing or has a wrong type, the rule needs nothing, because the
handler refuses such a request before it does anything. If a permission depends on the body, the log or a table
(subscriptions, a message found by its id, the topic of a transaction), the handler checks it with
``request.peer.access``; lists leave out what the user may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .permissions import ANY, BROKER, CONSUME, GROUP, PUBLISH, TOPIC, Need

Rule = Callable[[Mapping[str, Any]], tuple[Need, ...]]


def anybody(fields: Mapping[str, Any]) -> tuple[Need, ...]:
    """Need nothing: the command is for every user, and returns only what that user may see."""
    return ()


def broker(action: str) -> Rule:
    """Need ``action`` on the broker."""
    needs = (Need((action,), BROKER),)
    return lambda fields: needs


def on_any_topic(action: str) -> Rule:
    """Need ``action`` on at least one topic; the handler checks which ones."""
    needs = (Need((action,), TOPIC, ANY),)
    return lambda fields: needs


def topic(*actions: str) -> Rule:
    """Need one of ``actions`` on the topic in the field ``topic``, if there is one."""
    return lambda fields: _need(actions, TOPIC, fields.get("topic"))


def group(*actions: str) -> Rule:
    """Need one of ``actions`` on the group in the field ``group``, if there is one."""
    return lambda fields: _need(actions, GROUP, fields.get("group"))


def of_group_in_topic(on_group: str, on_topic: str) -> Rule:
    """Need ``on_group`` on the group and ``on_topic`` on the topic, if the fields name them."""
    first, second = group(on_group), topic(on_topic)
    return lambda fields: first(fields) + second(fields)


def member(fields: Mapping[str, Any]) -> tuple[Need, ...]:
    """Need what a member of a consumer group, or of a producer group, needs."""
    action = PUBLISH if fields.get("kind") == "producer" else CONSUME
    return _need((action,), GROUP, fields.get("group"))


def _need(actions: tuple[str, ...], kind: str, name: object) -> tuple[Need, ...]:
    return (Need(actions, kind, name),) if type(name) is str and name else ()
