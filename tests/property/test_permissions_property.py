"""Permissions against a model that reads the grants one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flintmq.protocol.auth.permissions import ACTIONS, Permissions
from flintmq.protocol.names import SYSTEM_TOPICS
from flintmq.protocol.storage.delivery import UNREADABLE_TOPICS, dead_letter_topic, retry_topic

NAMES = st.text("abR-", min_size=1, max_size=3)
OWN = st.one_of(
    NAMES.map(retry_topic),
    NAMES.map(dead_letter_topic),
    st.sampled_from(sorted(SYSTEM_TOPICS | UNREADABLE_TOPICS)),
    NAMES.map(lambda name: f"rmq_sys_{name}"),
    NAMES.map(lambda name: f"RMQ_SYS_{name}"),
)
OWN_GROUPS = NAMES.map(lambda name: f"CID_RMQ_SYS_{name}")
PREFIXES = st.text("abR-", max_size=2) | st.sampled_from(
    ["%", "r", "S", "O", "T", "%D", "%R", "rmq", "RMQ", "C", "CID"]
)
SOME = st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4, unique=True)
GRANTS = st.one_of(
    st.builds(lambda actions, name: {"actions": actions, "topic": name}, SOME, NAMES | OWN),
    st.builds(lambda actions, name: {"actions": actions, "topicPrefix": name}, SOME, PREFIXES),
    st.builds(lambda actions, name: {"actions": actions, "group": name}, SOME, NAMES | OWN_GROUPS),
    st.builds(lambda actions, name: {"actions": actions, "groupPrefix": name}, SOME, PREFIXES),
    st.just({"actions": ["query"], "broker": True}),
)
ADMIN_GRANT: dict[str, Any] = {"actions": ["admin"], "broker": True}


def model(grants: list[dict[str, Any]], action: str, kind: str, name: str) -> bool:
    """Return whether the grants allow the action, by the README's rules."""
    if ADMIN_GRANT in grants:
        return True
    enough = {action, "consume"} if action == "query" else {action}
    if kind == "group":
        own = name.startswith("CID_RMQ_SYS_")
    else:
        own = name.startswith(("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_")) or name in SYSTEM_TOPICS | UNREADABLE_TOPICS
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


@given(
    st.lists(GRANTS, max_size=6),
    st.booleans(),
    st.sampled_from(ACTIONS),
    st.one_of(st.tuples(st.just("topic"), NAMES | OWN), st.tuples(st.just("group"), NAMES | OWN_GROUPS)),
)
@settings(max_examples=300)
@example([{"actions": list(ACTIONS), "topicPrefix": "%D"}], False, "consume", ("topic", "%DLQ%a"))
@example([{"actions": list(ACTIONS), "topicPrefix": "R"}], False, "publish", ("topic", "RMQ_SYS_a"))
@example([{"actions": list(ACTIONS), "groupPrefix": "C"}], False, "consume", ("group", "CID_RMQ_SYS_a"))
@example([{"actions": ["consume"], "group": "a"}], False, "query", ("topic", "%RETRY%a"))
@example([{"actions": ["admin"], "group": "a"}], False, "consume", ("topic", "%RETRY%a"))
def test_grants_allow_exactly_the_granted_actions(
    grants: list[dict[str, Any]], is_admin: bool, action: str, target: tuple[str, str]
) -> None:
    kind, name = target
    grants = [*grants, ADMIN_GRANT] if is_admin else grants
    permissions = Permissions.parse(grants, "u")
    assert permissions.allows(action, kind, name) == model(grants, action, kind, name)
    assert permissions.sees(kind, name) == any(model(grants, each, kind, name) for each in ACTIONS)


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
