"""Permissions over TCP: the broker refuses every command without its grants, and serves it with exactly these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from flintmq.broker.handlers.registry import RULES
from flintmq.broker.handlers.rules import anybody
from flintmq.protocol import commands
from flintmq.protocol.auth.permissions import ACTIONS
from flintmq.protocol.auth.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.auth.users import verifier_row
from flintmq.protocol.commands import COMMANDS, CONSUMER_OFFSET_STRUCT, PHYSICAL_OFFSET_STRUCT, Command
from flintmq.protocol.errors import MemberUnknown, MessageNotFound, NoPermission, TopicNotExist
from flintmq.protocol.frames import ONE_WAY
from flintmq.protocol.storage.ids import offset_id
from flintmq.protocol.storage.record import decode_record
from tests.conftest import Answer, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.security_tools import PASSWORD, SCRAM, authenticate, set_grants
from tests.store_tools import split_answer

Grants = list[dict[str, Any]]

ADMIN: Grants = [{"actions": ["admin"], "broker": True}]
HALF = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02"
PREFIX = "00" * 10


def on(kind: str, name: str, *actions: str) -> dict[str, Any]:
    return {"actions": list(actions), kind: name}


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
        """Return the grants that the request needs."""
        return [self.named(grant) for grant in self.needs]


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
        MEMBER,
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
    Case(commands.GET_DELAY_STATS, [{"actions": ["query"], "broker": True}]),
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
"""Commands whose rule is ``anybody`` are not here: what they show is tested below."""

BY_NAME = {case.name or case.command.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


def test_every_command_has_a_rule_and_every_rule_a_case() -> None:
    served = {code for code, command in COMMANDS.items() if not command.from_broker}
    assert set(RULES) == served
    assert {case.command.code for case in CASES} == {code for code in served if RULES[code] is not anybody}


def user_of(case: str, without: int | None) -> str:
    """Return the user with the case's grants except number ``without``; None: all of them, -1: none of them."""
    return f"{case}.{'all' if without is None else 'none' if without < 0 else without}"


def users() -> dict[str, Grants]:
    """Return all users of the tests. A user who lacks a grant has every action on every other name."""
    found: dict[str, Grants] = {"admin": ADMIN, "changed-user": [], "removed-user": []}
    for name, case in BY_NAME.items():
        needs = case.grants
        found[user_of(name, None)] = needs
        found[user_of(name, -1)] = []
        for index, missing in enumerate(needs):
            others = [need for need in needs if need is not missing]
            found[user_of(name, index)] = [*others, *nearly(missing)]
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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with all of these users."""
    folder = tmp_path_factory.mktemp("permissions")
    set_grants(folder / "store", users() | SEEING)
    brokers = Brokers(folder)
    settings = SCRAM | {"topics.auto_create": True, "transactions.timeout_ms": 3_600_000}
    yield brokers.start(store=folder / "store", settings=settings)
    brokers.stop_all()


@pytest.fixture
def log_in(guarded: RunningBroker, connect: ConnectionFactory) -> Callable[[str], RawConnection]:
    """Return a function ``log_in(name)`` that opens a connection of that user."""

    def connected(name: str) -> RawConnection:
        connection = connect(guarded)
        authenticate(connection, name)
        return connection

    return connected


LogIn = Callable[[str], RawConnection]


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
    if case.command is commands.CONSUMER_SEND_MSG_BACK:
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


def everything(admin: RawConnection) -> Any:
    """Return the broker's state: log end, topics, offsets, groups, transactions, stages, settings."""
    info = msgpack.unpackb(admin.call(commands.GET_BROKER_RUNTIME_INFO).raise_for_error().body)
    others = [
        admin.call(command).raise_for_error().body
        for command in (
            commands.GET_ALL_TOPIC_CONFIG,
            commands.GET_CONSUME_STATS,
            commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            commands.GET_TRANSACTIONS,
            commands.GET_PREPARED,
            commands.GET_BROKER_CONFIG,
        )
    ]
    return info["write_offset"], info["group_members"], others


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_is_refused_without_each_of_its_grants_and_served_with_exactly_them(name: str, log_in: LogIn) -> None:
    case = BY_NAME[name]
    admin = log_in("admin")
    prepared = prepare(admin, case)
    before = everything(admin)
    for missing in [-1, *range(len(case.needs))]:
        user = user_of(name, missing)
        peer = log_in(user)
        answer = peer.call(case.command, prepared.fields, prepared.body)
        check_refused(case, missing, user, answer)
        if case.command.one_way:
            peer.send(case.command, prepared.fields, prepared.body, kind=ONE_WAY)
            peer.call(commands.HELLO, {"protocol": 1}).raise_for_error()
        assert everything(admin) == before, user
    served = log_in(user_of(name, None)).call(case.command, prepared.fields, prepared.body)
    if case.command is commands.UNREGISTER_CLIENT and served.code == MemberUnknown.code:
        return  # the request that was sent
    served.raise_for_error()


def check_refused(case: Case, missing: int, user: str, answer: Answer) -> None:
    """Check that the error names the user, the action, the object and the remedy.

    If that would reveal an object that the user may not know of, the response must be the same as for a missing object.
    """
    grant = case.grants[max(missing, 0)]
    if missing >= 0 and case.command is commands.CONSUMER_SEND_MSG_BACK and "topic" in grant:
        assert answer.code == MessageNotFound.code
        return
    if missing >= 0 and case.command is commands.ABORT_PREPARED:
        assert answer.raise_for_error().fields.get("count", 0) == 0
        return
    assert answer.code == NoPermission.code, answer
    message = answer.fields["message"]
    assert user in message
    if case.command is commands.COMMIT_PREPARED or (case.command is commands.END_TRANSACTION and missing == 1):
        assert case.topic not in message.replace(f"attempt-of-{case.topic}", "")
        return
    if case.command is commands.ABORT_PREPARED:
        assert "publish on any topic" in message
        return
    missed = [grant] if missing >= 0 else case.grants
    if case.name != "stats-for-a-producer":
        assert any(says(message, each) for each in missed)
    assert f"flintmq user grant {user} --" in message


def says(message: str, grant: dict[str, Any]) -> bool:
    ((kind, name),) = [(key, value) for key, value in grant.items() if key != "actions"]
    return f"{grant['actions'][0]} on {'the broker' if kind == 'broker' else f'{kind} {name}'}" in message


# ---- lists show only permitted objects

SEEING: dict[str, Grants] = {
    "nobody": [],
    "seer": [on("topic", "seen", "publish"), on("group", "seen-group", "query")],
    "wide": [{"actions": list(ACTIONS), "topicPrefix": ""}, {"actions": list(ACTIONS), "groupPrefix": ""}],
    "watcher": [{"actions": ["query"], "broker": True}],
    "finder": [on("topic", "seen", "query")],
    "member": [on("group", "retrying", "consume"), on("topic", "seen", "consume")],
    "undertaker": [on("group", "retrying", "consume"), on("topic", "%DLQ%retrying", "consume")],
}


@pytest.fixture
def seen(log_in: LogIn) -> RawConnection:
    """Administrator who has created objects, some of which the user may see."""
    admin = log_in("admin")
    for topic in ("seen", "hidden"):
        admin.produce(topic, b"m", queue=0).raise_for_error()
        for group in ("seen-group", "hidden-group"):
            fields = {"group": group, "topic": topic, "count": 1}
            admin.call(commands.UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 0)).raise_for_error()
    return admin


def rows(peer: RawConnection, command: Command, **fields: Any) -> list[Any]:
    answer = peer.call(command, fields).raise_for_error()
    found = msgpack.unpackb(answer.body)
    assert isinstance(found, list)
    assert answer.fields["count"] == len(found)
    return found


def test_topics_and_groups_are_listed_for_users_with_any_right_on_them(seen: RawConnection, log_in: LogIn) -> None:
    seer, nobody = log_in("seer"), log_in("nobody")
    assert [row["topic"] for row in rows(seer, commands.GET_ALL_TOPIC_CONFIG)] == ["seen"]
    (group,) = rows(seer, commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert group["group"] == "seen-group"
    assert group["topics"] == ["seen"]
    for command in (commands.GET_ALL_TOPIC_CONFIG, commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        assert rows(nobody, command) == []
    members = msgpack.unpackb(
        seer.call(commands.GET_CONSUMER_CONNECTION_LIST, {"group": "seen-group"}).raise_for_error().body
    )
    assert {queue[0] for queue in members["queues"]} == {"seen"}


def test_the_first_forbidden_offset_is_named_whether_or_not_it_holds_a_message(
    seen: RawConnection, log_in: LogIn
) -> None:
    case = BY_NAME["CONSUMER_SEND_MSG_BACK"]
    there = seen.produce("hidden", b"m", queue=0).raise_for_error().body
    seen.pull("hidden", 0, 0).raise_for_error()
    asked = log_in(user_of("CONSUMER_SEND_MSG_BACK", 1)).call(
        case.command, {"group": case.group, "count": 2}, there + PHYSICAL_OFFSET_STRUCT.pack(1 << 60)
    )
    assert asked.code == MessageNotFound.code
    (named,) = PHYSICAL_OFFSET_STRUCT.unpack(there)
    assert f"at physical offset {named}:" in asked.fields["message"]


def test_no_prefix_shows_the_brokers_own_topics(seen: RawConnection, log_in: LogIn) -> None:
    open_transaction(seen, "seen", "some-producers", 9)
    wide = log_in("wide")
    names = {row["topic"] for row in rows(wide, commands.GET_ALL_TOPIC_CONFIG)}
    assert {"seen", "hidden"} <= names
    everything_there = rows(seen, commands.GET_ALL_TOPIC_CONFIG)
    system = {row["topic"] for row in everything_there if row["system"]}
    assert system
    assert not names & system
    for topic in system | {"OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%x"}:
        assert wide.pull(topic).code == NoPermission.code, topic


def test_lag_is_shown_of_groups_and_topics_that_one_may_see_both(seen: RawConnection, log_in: LogIn) -> None:
    assert rows(log_in("seer"), commands.GET_CONSUME_STATS) == []
    found = rows(log_in("wide"), commands.GET_CONSUME_STATS)
    assert {(row[0], row[1]) for row in found} >= {("seen-group", "seen"), ("hidden-group", "hidden")}


def test_users_without_query_permission_see_little_of_the_broker(seen: RawConnection, log_in: LogIn) -> None:
    def info(name: str) -> dict[str, Any]:
        found: dict[str, Any] = msgpack.unpackb(log_in(name).call(commands.GET_BROKER_RUNTIME_INFO).body)
        return found

    assert set(info("nobody")) == {"name", "version", "uptime_seconds", "flush", "withheld"}
    assert "--query-broker" in info("nobody")["withheld"]
    assert info("watcher")["withheld"] == ""
    assert "store_path" in info("watcher")


def test_transactions_and_attempts_are_listed_by_their_topics(seen: RawConnection, log_in: LogIn) -> None:
    hidden_id = open_transaction(seen, "hidden", "p", 77)
    seen.produce("seen", b"x", prepare="seen-attempt").raise_for_error()
    seen.produce("hidden", b"x", prepare="hidden-attempt").raise_for_error()
    seer, nobody = log_in("seer"), log_in("nobody")
    answer = nobody.call(commands.GET_TRANSACTIONS).raise_for_error()
    assert answer.fields.get("open", 0) == 0
    assert msgpack.unpackb(answer.body) == []
    assert hidden_id not in [row["id"] for row in rows(seer, commands.GET_TRANSACTIONS)]
    assert hidden_id in [row["id"] for row in rows(log_in("watcher"), commands.GET_TRANSACTIONS)]
    attempts = msgpack.unpackb(seer.call(commands.GET_PREPARED).raise_for_error().body)["attempts"]
    assert {row["attempt"] for row in attempts} == {"seen-attempt"}
    # nor may the user add to objects without a grant
    assert seer.produce("seen", b"x", prepare="hidden-attempt").code == NoPermission.code


# ---- messages


def test_a_message_by_id_that_one_may_not_read_is_as_if_it_were_not_there(seen: RawConnection, log_in: LogIn) -> None:
    finder = log_in("finder")
    unique = {"unique_prefix": "AB" * 10, "unique_first": 5}
    hidden = seen.produce("hidden", b"secret", **unique).raise_for_error()
    shown = seen.produce("seen", b"shown", **unique).raise_for_error()
    half = seen.produce("seen", b"half", common=HALF.format("p"), unique_prefix="CD" * 10, unique_first=1)

    def by_id(message_id: str, **fields: Any) -> Answer:
        return finder.call(commands.VIEW_MESSAGE_BY_ID, {"id": message_id, **fields})

    def id_of(answer: Answer) -> str:
        (physical_offset,) = PHYSICAL_OFFSET_STRUCT.unpack(answer.raise_for_error().body)
        return offset_id_of(seen, shown, physical_offset)

    assert by_id(id_of(shown)).code == 0
    never = by_id("00" * 16)
    for answer in (by_id(id_of(hidden)), by_id(id_of(half))):
        assert answer.code == never.code == MessageNotFound.code
    assert answer.fields["message"].replace(id_of(half), "") == never.fields["message"].replace("00" * 16, "")
    # two messages have the unique key; the user may find one of them
    key = "AB" * 10 + f"{5:012X}"
    found = by_id(key).raise_for_error()
    assert b"shown" in found.body
    assert b"secret" not in found.body
    assert by_id(key, topic="hidden").code == NoPermission.code


def offset_id_of(admin: RawConnection, sample: Answer, physical_offset: int) -> str:
    """Return the offset id of a message, with the broker's address from the id of another one."""
    pulled = admin.pull("seen", sample.fields["queue"], sample.fields["queue_offset"]).raise_for_error()
    return offset_id(decode_record(split_answer(pulled.body, pulled.fields["count"])[0]).store_host, physical_offset)


def test_a_member_reads_its_groups_retry_topic_but_not_its_dead_letters(seen: RawConnection, log_in: LogIn) -> None:
    member, undertaker, wide = log_in("member"), log_in("undertaker"), log_in("wide")
    sent = seen.produce("seen", b"m", queue=0).raise_for_error()
    for level in (1, -1):
        fields = {"group": "retrying", "count": 1, "delay_level": level}
        member.call(commands.CONSUMER_SEND_MSG_BACK, fields, sent.body).raise_for_error()
    member.pull("%RETRY%retrying").raise_for_error()
    assert member.pull("%RETRY%another").code == NoPermission.code
    assert member.pull("%DLQ%retrying").code == NoPermission.code
    assert wide.pull("%DLQ%retrying").code == NoPermission.code
    assert wide.call(commands.GET_MAX_OFFSET, {"topic": "%DLQ%retrying", "queue": 0}).code == NoPermission.code
    undertaker.pull("%DLQ%retrying").raise_for_error()


def test_responses_keep_their_order_if_some_frames_are_refused(log_in: LogIn) -> None:
    peer = log_in("seer")
    fields: Grants = [
        {"topic": topic, "count": 1, "queue": 0} for topic in ("seen", "hidden", "seen", "hidden", "seen")
    ]
    ids = [peer.send(commands.PRODUCE, each, ROW) for each in fields]
    answers = [peer.receive() for _ in ids]
    assert [answer.request_id for answer in answers] == ids
    assert [answer.code for answer in answers] == [0, NoPermission.code, 0, NoPermission.code, 0]


def test_a_user_without_read_permission_does_not_learn_whether_a_topic_exists(
    seen: RawConnection, log_in: LogIn
) -> None:
    nobody = log_in("nobody")
    there, not_there = nobody.pull("hidden"), nobody.pull("nowhere")
    assert there.code == not_there.code == NoPermission.code
    assert there.fields["message"].replace("hidden", "") == not_there.fields["message"].replace("nowhere", "")
    assert seen.pull("nowhere").code == TopicNotExist.code
