"""A case for every command that needs a grant, and users who have all, or all but one, of its grants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack

from flintmq.protocol import commands
from flintmq.protocol.auth.permissions import ACTIONS, BROKER
from flintmq.protocol.auth.rules import anybody
from flintmq.protocol.auth.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.auth.users import verifier_row
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, RECEIPT_STRUCT, Command
from flintmq.protocol.fields import fields_of
from tests.conftest import RawConnection
from tests.security_tools import PASSWORD

Grants = list[dict[str, Any]]

ADMIN: Grants = [{"actions": ["admin"], "broker": True}]
HALF = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02"
PREFIX = "00" * 10


def on(kind: str, name: str, *actions: str) -> dict[str, Any]:
    return {"actions": list(actions), kind: name}


def _object_of(grant: dict[str, Any]) -> tuple[str, str]:
    ((kind, name),) = [(key, value) for key, value in grant.items() if key != "actions"]
    return kind, "" if kind == BROKER else name


@dataclass(frozen=True)
class Case:
    """A request that does something, and the grants that it needs. Names: its own topic and group, see ``names``."""

    command: Command
    needs: Grants
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    name: str = ""

    @property
    def topic(self) -> str:
        return f"t-{self.name or self.command.name}"

    @property
    def group(self) -> str:
        return f"g-{self.name or self.command.name}"

    def named(self, value: Any) -> Any:
        """Return ``value`` with this case's topic and group in place of T and G."""
        if isinstance(value, dict):
            return {key: self.named(each) for key, each in value.items()}
        if not isinstance(value, str):
            return value
        return {"T": self.topic, "T-new": f"{self.topic}-new", "G": self.group}.get(value, value)

    @property
    def grants(self) -> Grants:
        return [self.named(grant) for grant in self.needs]

    @property
    def is_judged_by_its_rule(self) -> bool:
        """Predicate: does the rule of the command name all objects that the request needs? If not, its handler judges
        some of them."""
        needs = self.command.rule(self.named(self.fields))
        named = {(need.kind, "" if need.kind == BROKER else need.name) for need in needs}
        return named == {_object_of(grant) for grant in self.grants}

    def grants_without(self, index: int) -> Grants:
        """Return the grants but one, and those that resemble it."""
        missing = self.grants[index]
        return [*(need for need in self.grants if need is not missing and need != missing), *nearly(missing)]


RECEIPT = RECEIPT_STRUCT.pack(0, 0, 0, 1)
OFFSETS = CONSUMER_OFFSET_STRUCT.pack(0, 1)
ROW = msgpack.packb([b"x", {}])
T, G = {"topic": "T"}, {"group": "G"}
QUEUE = {**T, "queue": 0}
MEMBER = {**G, "member": "m"}
SCRAM_ROW = verifier_row(make_verifier(PASSWORD, ITERATIONS_MIN))
ONE_SETTING = msgpack.packb({"limits.held_pulls_max": 100_000})

CASES = [
    Case(commands.PRODUCE, [on("topic", "T", "publish")], {**QUEUE, "count": 1}, ROW),
    Case(
        commands.PRODUCE,
        [on("topic", "T", "publish"), on("group", "G", "publish")],
        {**QUEUE, "count": 1, "common": HALF.format("g-half"), "unique_prefix": PREFIX, "unique_first": 7},
        ROW,
        "half",
    ),
    Case(commands.PRODUCE, [on("topic", "T", "publish")], {**QUEUE, "count": 1, "prepare": "p-1"}, ROW, "prepared"),
    Case(commands.PRODUCE, [on("topic", "T-new", "publish")], {"topic": "T-new", "count": 1}, ROW, "made"),
    Case(commands.PULL, [on("topic", "T", "consume")], {**QUEUE, "offset": 0}),
    Case(
        commands.PULL,
        [on("topic", "T", "consume"), on("group", "G", "consume")],
        {**QUEUE, **G, "offset": 0},
        name="pull-of-group",
    ),
    Case(commands.QUERY_BY_KEY, [on("topic", "T", "query")], {**T, "key": "k"}),
    Case(commands.VIEW_MESSAGE_BY_ID, [on("topic", "T", "query")], {**T, "id": "key-of-T"}, name="view"),
    Case(commands.QUERY_CONSUMER_OFFSET, [on("group", "G", "query"), on("topic", "T", "query")], {**G, **T}),
    Case(
        commands.UPDATE_CONSUMER_OFFSET,
        [on("group", "G", "consume"), on("topic", "T", "consume")],
        {**G, **T, "count": 1},
        OFFSETS,
    ),
    Case(commands.GET_CONSUME_STATS, [on("group", "G", "query"), on("topic", "T", "query")], {**G, **T}),
    Case(
        commands.HEART_BEAT,
        [on("group", "G", "consume"), on("topic", "T", "consume")],
        {**MEMBER, "session_timeout_ms": 300_000},  # it must not end within a test, however slow the machine is
        msgpack.packb([[["t-HEART_BEAT", "", ""]], []]),
    ),
    Case(commands.HEART_BEAT, [on("group", "G", "publish")], {**MEMBER, "kind": "producer"}, name="producer"),
    Case(commands.UNREGISTER_CLIENT, [on("group", "G", "consume")], MEMBER),
    Case(commands.UNREGISTER_CLIENT, [on("group", "G", "publish")], {**MEMBER, "kind": "producer"}, name="producer-2"),
    Case(
        commands.CONSUMER_SEND_MSG_BACK,
        [on("group", "G", "consume"), on("topic", "T", "consume")],
        {**G, "count": 1},
        b"physical offset",
    ),
    Case(
        commands.CONSUMER_SEND_MSG_BACK,
        [on("group", "G", "consume"), on("topic", "T", "consume")],
        {**G, **T, "count": 1},
        RECEIPT,
        "popped-sent-back",
    ),
    *(
        Case(command, [on("group", "G", "consume"), on("topic", "T", "consume")], {**G, **T, **fields}, body)
        for command, fields, body in (
            (commands.POP_MESSAGE, {"max_count": 0}, b""),
            (commands.ACK_MESSAGE, {"count": 1}, RECEIPT),
            (commands.CHANGE_MESSAGE_INVISIBLETIME, {"count": 1}, RECEIPT),
        )
    ),
    Case(commands.GET_CONSUMER_CONNECTION_LIST, [on("group", "G", "query")], G),
    Case(commands.DELETE_SUBSCRIPTIONGROUP, [on("group", "G", "admin")], G),
    Case(
        commands.INVOKE_BROKER_TO_RESET_OFFSET,
        [on("group", "G", "admin"), on("topic", "T", "query")],
        {**G, **T, "to": "first"},
    ),
    Case(commands.SEARCH_OFFSET_BY_TIMESTAMP, [on("topic", "T", "query")], {**QUEUE, "timestamp_ms": 0}),
    Case(commands.GET_MAX_OFFSET, [on("topic", "T", "query")], QUEUE),
    Case(commands.GET_MIN_OFFSET, [on("topic", "T", "query")], QUEUE),
    Case(commands.GET_EARLIEST_MSG_STORETIME, [on("topic", "T", "query")], QUEUE),
    Case(
        commands.END_TRANSACTION,
        [on("group", "G", "publish"), on("topic", "T", "publish")],
        {**G, "transaction_id": "transaction of T", "commit": True},
    ),
    Case(
        commands.COMMIT_PREPARED,
        [on("topic", "T", "publish")],
        {"series": "s", "number": 1, "count": 1},
        msgpack.packb([["attempt-of-t-COMMIT_PREPARED", 1]]),
    ),
    Case(commands.ABORT_PREPARED, [on("topic", "T", "publish")], {"drop": "attempt-of-t-ABORT_PREPARED"}),
    Case(commands.BROWSE_MESSAGES, [on("topic", "T", "query")], T),
    Case(commands.GET_DELAY_STATS, [{"actions": ["query"], "broker": True}]),
    Case(commands.GET_CONNECTIONS, [{"actions": ["query"], "broker": True}]),
    Case(commands.CLOSE_CONNECTION, ADMIN, {"connection": 2**62}),
    Case(commands.GET_QUARANTINE, [{"actions": ["query"], "broker": True}]),
    Case(
        commands.REPLICATE,
        ADMIN,
        {"cluster_id": "", "epoch": 1, "member": "b", "end": 0, "file_bytes": 1},
        msgpack.packb([]),
    ),
    Case(commands.REPORT_POSITION, ADMIN, {"epoch": 1, "written": 0, "flushed": 0, "complete": False}),
    Case(commands.GET_REPLICA_STATUS, [{"actions": ["query"], "broker": True}]),
    Case(commands.SWITCH_PRIMARY, ADMIN, {"member": "b"}),
    Case(commands.CHANGE_MEMBERS, ADMIN, {"member": "b"}),
    Case(commands.UPDATE_AND_CREATE_TOPIC, [on("topic", "T", "admin")], {**T, "perm": 4}),
    Case(commands.UPDATE_AND_CREATE_TOPIC, [on("topic", "T-new", "admin")], {"topic": "T-new"}, name="created"),
    Case(commands.DELETE_TOPIC_IN_BROKER, [on("topic", "T", "admin")], T),
    Case(commands.GET_TOPIC_STATS_INFO, [on("topic", "T", "query")], T),
    Case(commands.GET_TOPIC_STATS_INFO, [on("topic", "T", "publish")], T, name="stats-for-a-producer"),
    Case(commands.GET_BROKER_CONFIG, [{"actions": ["query"], "broker": True}]),
    Case(commands.UPDATE_BROKER_CONFIG, ADMIN, {"count": 1}, ONE_SETTING),
    Case(commands.AUTH_CREATE_USER, ADMIN, {"user": "new-user"}, msgpack.packb({"scram": SCRAM_ROW})),
    Case(commands.AUTH_UPDATE_USER, ADMIN, {"user": "changed-user"}, msgpack.packb({"grant": []})),
    Case(commands.AUTH_DELETE_USER, ADMIN, {"user": "removed-user"}),
    Case(commands.AUTH_LIST_USER, ADMIN),
]


def _case_of(command: Command) -> Case:
    """Return the case of a command that needs only what its declaration says, for its topic and its group."""
    fields = {name: value for name, value in (T | G).items() if name in fields_of(command.request).rules}
    needs = command.rule(fields)
    return Case(
        command,
        [
            {"actions": [need.actions[0]], "broker": True}
            if need.kind == BROKER
            else on(need.kind, need.name, need.actions[0])
            for need in needs
        ],
        fields,
    )


CASES += [
    _case_of(command)
    for command in commands.COMMANDS.values()
    if command.rule is not anybody and command not in {case.command for case in CASES}
]
"""Commands whose rule is ``anybody`` are not here: ``test_permissions.py`` tests what they show."""

BY_NAME = {case.name or case.command.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


def user_of(case: str, without: int | None) -> str:
    """Return the user with the case's grants except number ``without``; None: all of them, -1: none of them."""
    return f"{case}.{'all' if without is None else 'none' if without < 0 else without}"


def users() -> dict[str, Grants]:
    """Return all users of the tests: for each case one with its grants and one with none, and if its handler judges
    them, users who lack one of them but have every action on every other name."""
    found: dict[str, Grants] = {"admin": ADMIN, "changed-user": [], "removed-user": []}
    for name, case in BY_NAME.items():
        needs = case.grants
        found[user_of(name, None)] = needs
        found[user_of(name, -1)] = []
        if not case.is_judged_by_its_rule:
            for index in range(len(needs)):
                found[user_of(name, index)] = case.grants_without(index)
    return found


def nearly(grant: dict[str, Any]) -> Grants:
    """Return the grants that resemble this one: other actions on its object, and its action on other objects."""
    ((kind, name),) = [(key, value) for key, value in grant.items() if key != "actions"]
    (action,) = grant["actions"]
    if kind == "broker":
        found: Grants = [{"actions": list(ACTIONS), "topicPrefix": ""}, {"actions": list(ACTIONS), "groupPrefix": ""}]
        return found + ([{"actions": ["query"], "broker": True}] if action == "admin" else [])
    implying = {"query": {"query", "consume"}}.get(action, {action})
    describing = {"GET_TOPIC_STATS_INFO", "stats-for-a-producer"}
    if name.removeprefix("t-") in describing:
        implying = set(ACTIONS)
    other_actions = [each for each in ACTIONS if each not in implying]
    other_kind = "group" if kind == "topic" else "topic"
    return [
        on(kind, f"{name}x", *ACTIONS),
        on(f"{kind}Prefix", f"{name}x", *ACTIONS),
        on(other_kind, name, *ACTIONS),
        on(kind, name[:-1], *ACTIONS),
        *([on(kind, name, *other_actions)] if other_actions else []),
    ]


@dataclass(frozen=True)
class Prepared:
    """The objects that the administrator created for a case."""

    fields: dict[str, Any]
    body: bytes


def prepare(admin: RawConnection, case: Case) -> Prepared:
    """Create the case's topic with a message, and its group with a committed offset; return them with its request."""
    topic, group = case.topic, case.group
    key = f"KEYS\x01k\x02UNIQ_KEY\x01key-of-{topic}\x02"
    answer = admin.produce(topic, b"m", queue=0, common=key).raise_for_error()
    admin.call(
        commands.UPDATE_CONSUMER_OFFSET, {"group": group, "topic": topic, "count": 1}, CONSUMER_OFFSET_STRUCT.pack(0, 0)
    ).raise_for_error()
    fields, body = case.named(case.fields), case.body
    if case.command is commands.CONSUMER_SEND_MSG_BACK and case.body is not RECEIPT:
        body = answer.body
    if case.command is commands.VIEW_MESSAGE_BY_ID:
        fields["id"] = f"key-of-{topic}"
    if case.name == "half":
        fields["common"] = HALF.format(group)
    if case.command is commands.END_TRANSACTION:
        fields["transaction_id"] = open_transaction(admin, topic, group, 1_000)
    if case.command in (commands.COMMIT_PREPARED, commands.ABORT_PREPARED):
        admin.produce(topic, b"p", queue=0, prepare=f"attempt-of-{topic}").raise_for_error()
    return Prepared(fields, body)


def open_transaction(peer: RawConnection, topic: str, group: str, number: int) -> str:
    """Open a transaction; return its id."""
    unique = {"unique_prefix": PREFIX, "unique_first": number}
    peer.produce(topic, b"h", queue=0, common=HALF.format(group), **unique).raise_for_error()
    rows = msgpack.unpackb(peer.call(commands.GET_TRANSACTIONS).raise_for_error().body)
    (transaction_id,) = [row["id"] for row in rows if row["topic"] == topic]
    return str(transaction_id)


SEEING: dict[str, Grants] = {
    "nobody": [],
    "seer": [on("topic", "seen", "publish"), on("group", "seen-group", "query")],
    "wide": [{"actions": list(ACTIONS), "topicPrefix": ""}, {"actions": list(ACTIONS), "groupPrefix": ""}],
    "watcher": [{"actions": ["query"], "broker": True}],
    "finder": [on("topic", "seen", "query")],
    "member": [on("group", "retrying", "consume"), on("topic", "seen", "consume")],
    "undertaker": [on("group", "retrying", "consume"), on("topic", "%DLQ%retrying", "consume")],
}


def listed(peer: RawConnection, command: Command, **fields: Any) -> list[Any]:
    answer = peer.call(command, fields).raise_for_error()
    found = msgpack.unpackb(answer.body)
    assert isinstance(found, list)
    assert answer.fields["count"] == len(found)
    return found
