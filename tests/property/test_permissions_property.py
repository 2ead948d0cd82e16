"""Permissions against a model that reads the grants one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.auth.permissions import ACTIONS, Permissions
from flintmq.protocol.names import SYSTEM_TOPICS
from flintmq.protocol.storage.delivery import dead_letter_topic, retry_topic

NAMES = st.text("ab-", min_size=1, max_size=3)
OWN = st.one_of(
    NAMES.map(retry_topic),
    NAMES.map(dead_letter_topic),
    st.sampled_from(sorted(SYSTEM_TOPICS)),
    NAMES.map(lambda name: f"rmq_sys_{name}"),
)
SOME = st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4, unique=True)
GRANTS = st.one_of(
    st.builds(lambda actions, name: {"actions": actions, "topic": name}, SOME, NAMES | OWN),
    st.builds(lambda actions, name: {"actions": actions, "topicPrefix": name}, SOME, st.text("ab-", max_size=2)),
    st.builds(lambda actions, name: {"actions": actions, "group": name}, SOME, NAMES),
    st.builds(lambda actions, name: {"actions": actions, "groupPrefix": name}, SOME, st.text("ab-", max_size=2)),
    st.just({"actions": ["query"], "broker": True}),
)


def model(grants: list[dict[str, Any]], action: str, kind: str, name: str) -> bool:
    """Return whether the grants allow the action, by the README's rules."""
    enough = {action, "consume"} if action == "query" else {action}
    own = kind == "topic" and (name.startswith(("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_")) or name in SYSTEM_TOPICS)
    for grant in grants:
        if not enough & set(grant["actions"]):
            continue
        if grant.get(kind) == name:
            return True
        if not own and f"{kind}Prefix" in grant and name.startswith(grant[f"{kind}Prefix"]):
            return True
    if kind == "topic" and name.startswith("%RETRY%") and action in ("consume", "query"):
        return model(grants, action, "group", name.removeprefix("%RETRY%"))
    return False


@given(st.lists(GRANTS, max_size=6), st.sampled_from(ACTIONS), st.sampled_from(["topic", "group"]), NAMES, OWN)
def test_grants_allow_exactly_the_granted_actions(
    grants: list[dict[str, Any]], action: str, kind: str, name: str, own: str
) -> None:
    permissions = Permissions.parse(grants, "u")
    assert permissions.allows(action, kind, name) == model(grants, action, kind, name)
    assert permissions.allows(action, "topic", own) == model(grants, action, "topic", own)
    assert permissions.sees("topic", own) == any(
        set(grant["actions"]) and grant.get("topic") == own for grant in grants
    ) or own.startswith("%RETRY%")


@given(st.lists(GRANTS, max_size=6), st.lists(GRANTS, max_size=3))
def test_added_grants_allow_and_removed_grants_do_not(before: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    added = Permissions.parse(more, "u").grants
    after = Permissions.parse(before, "u").plus(added)
    on = {grant.on: grant.actions for grant in after.grants}
    assert len(on) == len(after.grants)
    assert all(grant.actions <= on[grant.on] for grant in added)
    assert Permissions.parse(after.as_json(), "u").grants == after.grants
    left = after.minus(after.grants)
    assert left.grants == ()
