"""Permissions: what a grant covers and never covers, and invalid grants."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.delivery.groups.clients import ClientOwners, ProducerGroups
from flintmq.broker.remoting.registry import ROWS
from flintmq.broker.security.users import REMEMBERED_MAX, AccessTable, UserRights
from flintmq.protocol.auth.permissions import (
    ACTIONS,
    ADMIN,
    ANY,
    BROKER,
    CONSUME,
    GRANTS_MAX,
    GROUP,
    PUBLISH,
    QUERY,
    TOPIC,
    Need,
    Permissions,
)
from flintmq.protocol.commands import COMMANDS
from flintmq.protocol.errors import ConfigurationError, NoPermission
from tests.generated_tables import REQUEST_NAMES
from tests.permission_cases import BY_NAME
from tests.remotes import FakeRemote


def permissions(*grants: dict[str, Any]) -> Permissions:
    return Permissions.parse(list(grants), "u")


def test_admin_of_the_broker_may_everything() -> None:
    admin = permissions({"actions": ["admin"], "broker": True})
    for action in ACTIONS:
        assert admin.allows(action, TOPIC, "orders")
        assert admin.allows(action, GROUP, "billing")
        assert admin.allows_any(action, TOPIC)
    assert admin.allows(QUERY, BROKER)
    assert admin.allows(ADMIN, BROKER)


def test_a_need_of_any_topic_is_met_by_any_grant_of_the_action() -> None:
    need = Need((PUBLISH,), TOPIC, ANY)
    assert permissions({"actions": ["publish"], "topicPrefix": "x"}).meets(need)
    assert not permissions({"actions": ["consume"], "topic": "x"}).meets(need)
    assert not permissions({"actions": ["publish"], "group": "x"}).meets(need)


def test_grants_are_written_as_they_were_read() -> None:
    raw = [
        {"actions": ["publish", "query"], "topic": "orders"},
        {"actions": ["consume"], "topicPrefix": ""},
        {"actions": ["consume"], "group": "billing"},
        {"actions": ["admin"], "groupPrefix": "b"},
        {"actions": ["query", "admin"], "broker": True},
    ]
    assert Permissions.parse(raw, "u").as_json() == raw


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "must be a list"),
        ("publish", "must be a list"),
        ([[]], "grant 0 of user u: must be an object"),
        ([{}], "must have one of"),
        ([{"actions": ["publish"]}], "must have one of"),
        ([{"actions": ["publish"], "topic": "a", "group": "b"}], "got 2 of them"),
        ([{"actions": ["publish"], "topic": "a", "until": "tomorrow"}], "unknown key 'until'"),
        ([{"actions": [], "topic": "a"}], "actions must be a list"),
        ([{"actions": "publish", "topic": "a"}], "actions must be a list"),
        ([{"actions": [7], "topic": "a"}], "actions must be a list"),
        ([{"actions": ["read"], "topic": "a"}], "'read' is not an action"),
        ([{"actions": ["publish"], "broker": True}], "'publish' is not an action on a broker"),
        ([{"actions": ["admin"], "broker": False}], "broker must be true"),
        ([{"actions": ["admin"], "broker": "yes"}], "broker must be true"),
        ([{"actions": ["publish"], "topic": ""}], "the topic name is empty"),
        ([{"actions": ["publish"], "topic": "../x"}], "characters that are not allowed"),
        ([{"actions": ["publish"], "topic": "*"}], "characters that are not allowed"),
        ([{"actions": ["publish"], "topic": None}], "must be a string"),
        ([{"actions": ["publish"], "topicPrefix": "a" * 128}], "at most 127"),
        ([{"actions": ["consume"], "topicPrefix": "%DLQ%"}], "covers nothing"),
        ([{"actions": ["consume"], "topicPrefix": "%RETRY%bill"}], "covers nothing"),
        ([{"actions": ["consume"], "topicPrefix": "rmq_sys_"}], "covers nothing"),
        ([{"actions": ["consume"], "groupPrefix": "CID_RMQ_SYS_"}], "covers nothing"),
        ([{"actions": ["publish"], "topic": "a"}] * (GRANTS_MAX + 1), "at most"),
    ],
)
def test_a_grant_that_cannot_be_is_refused_by_its_place(raw: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match="user u") as refused:
        Permissions.parse(raw, "u")
    assert says in str(refused.value)


def test_grants_are_added_and_taken_away_by_object() -> None:
    before = permissions({"actions": ["publish"], "topic": "orders"}, {"actions": ["publish"], "topicPrefix": "orders"})
    more = permissions({"actions": ["consume"], "topic": "orders"}, {"actions": ["consume"], "group": "orders"})
    after = before.plus(more.grants)
    assert after.as_json() == [
        {"actions": ["publish", "consume"], "topic": "orders"},
        {"actions": ["publish"], "topicPrefix": "orders"},
        {"actions": ["consume"], "group": "orders"},
    ]
    assert after.minus(more.grants).as_json() == [
        {"actions": ["publish"], "topicPrefix": "orders"},
        {"actions": ["publish"], "topic": "orders"},
    ]
    with pytest.raises(ConfigurationError, match="no grant of consume on topics that begin with 'orders'"):
        after.minus(permissions({"actions": ["consume"], "topicPrefix": "orders"}).grants)


# ---- the rules of both protocols


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_asks_for_nothing_but_the_grants_of_its_case(name: str) -> None:
    case = BY_NAME[name]
    needs = case.command.rule(case.named(case.fields))
    assert all(Permissions.parse(case.grants, "u").meets(need) for need in needs)
    if case.is_judged_by_its_rule:
        for index in range(len(case.needs)):
            without = Permissions.parse(case.grants_without(index), "u")
            assert not all(without.meets(need) for need in needs), index


JUDGED_OTHERWISE = {
    "CONSUMER_SEND_MSG_BACK": "a RocketMQ client does not name the topic, so its handler judges that",
    "HEART_BEAT": "that of a RocketMQ client names groups in its body alone",
    "UNREGISTER_CLIENT": "that of a RocketMQ client leaves a group of consumers and one of producers",
    "GET_CONSUME_STATS": "a RocketMQ client may ask for all topics of a group and is shown some",
    "GET_BROKER_RUNTIME_INFO": "without the right, FlintMQ's own shows a part",
}
OTHER_NAMES = {
    "SEND_MESSAGE": "PRODUCE",
    "SEND_MESSAGE_V2": "PRODUCE",
    "PULL_MESSAGE": "PULL",
    "QUERY_MESSAGE": "QUERY_BY_KEY",
}


def test_a_request_of_both_protocols_takes_the_same_rights() -> None:
    objects = {"topic": "T", "b": "T"} | dict.fromkeys(("group", "consumerGroup", "producerGroup", "groupName"), "G")
    own = {command.name: command for command in COMMANDS.values()}
    differing, compared = set(), 0
    for code, _, rule in ROWS:
        name = REQUEST_NAMES[code]
        command = own.get(OTHER_NAMES.get(name, name))
        if command is not None:
            compared += 1
            if {*rule(objects)} != {*command.rule(objects)}:
                differing.add(name)
    assert compared > 25
    assert differing == JUDGED_OTHERWISE.keys()


# ---- while the broker runs


def test_a_refusal_names_action_object_user_and_remedy() -> None:
    access = UserRights("ann", permissions())
    with pytest.raises(NoPermission) as refused:
        access.check(Need((CONSUME, QUERY), TOPIC, "orders"))
    assert str(refused.value) == (
        "user ann has no permission: consume on topic orders; grant it with `flintmq user grant ann --consume orders`"
    )


@pytest.mark.parametrize("kind", [TOPIC, GROUP, BROKER])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_command_in_a_refusal_can_be_typed(action: str, kind: str) -> None:
    if kind == BROKER and action not in (QUERY, ADMIN):
        return
    with pytest.raises(NoPermission, match="flintmq user grant ann --"):
        UserRights("ann", permissions()).check(Need((action,), kind, "" if kind == BROKER else "it's"))


def test_a_change_of_grants_holds_at_once() -> None:
    changes: list[None] = []
    table = AccessTable(lambda: changes.append(None))
    grants = [{"actions": ["publish"], "topic": "orders"}]
    access = table.of("ann", grants)
    access.check_publish("orders")
    assert "orders" in access.publishes

    table.update({"ann": grants})
    assert not changes
    assert "orders" in access.publishes

    table.update({"ann": [{"actions": ["publish"], "topic": "bills"}]})
    assert len(changes) == 1
    assert not access.publishes
    assert not access.allows(PUBLISH, TOPIC, "orders")
    assert access.allows(PUBLISH, TOPIC, "bills")
    assert table.of("ann", []) is access

    table.update({})
    assert not access.allows(PUBLISH, TOPIC, "bills")


def test_grants_that_cannot_be_read_allow_nothing(caplog: pytest.LogCaptureFixture) -> None:
    access = AccessTable(lambda: None).of("ann", [{"actions": ["publish"], "topic": "orders"}, {"actions": ["fly"]}])
    assert not access.allows(PUBLISH, TOPIC, "orders")
    assert "no permissions until this is fixed" in caplog.text


def test_the_cache_is_bounded() -> None:
    access = UserRights("ann", permissions({"actions": ["publish"], "topicPrefix": ""}))
    for number in range(2 * REMEMBERED_MAX + 10):
        access.check_publish(f"t{number}")
    assert len(access.publishes) <= REMEMBERED_MAX
    assert len(access._met) <= REMEMBERED_MAX
    assert all(len(need.name) < 300 for need in access._met)


def test_a_producer_is_asked_only_about_topics_that_it_may_publish_to() -> None:
    groups = ProducerGroups(lambda: 0.0, ClientOwners())
    of_orders, of_bills = FakeRemote("orders"), FakeRemote("bills")
    of_orders.allowed, of_bills.allowed = {"orders"}, {"bills"}
    groups.heart_beat("shop", "a", of_orders, 10.0)
    groups.heart_beat("shop", "b", of_bills, 10.0)
    assert {groups.one_of("shop", "orders") for _ in range(4)} == {of_orders}
    assert {groups.one_of("shop", "bills") for _ in range(4)} == {of_bills}
    assert groups.one_of("shop", "secrets") is None
