"""Permissions over TCP: the broker refuses every command without its grants, serves it with exactly these, and shows in
lists and single messages only what a user may see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from flintmq.protocol import commands
from flintmq.protocol.auth.rules import anybody
from flintmq.protocol.commands import COMMANDS, CONSUMER_OFFSET_STRUCT, PHYSICAL_OFFSET_STRUCT
from flintmq.protocol.errors import (
    InvalidParameter,
    MemberUnknown,
    MessageNotFound,
    NoPermission,
    ReplicationRefused,
    TopicNotExist,
)
from flintmq.protocol.frames import ONE_WAY
from flintmq.protocol.storage.record import decode_record, offset_id
from tests.conftest import Answer, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import until
from tests.permission_cases import (
    BY_NAME,
    CASES,
    HALF,
    ROW,
    SEEING,
    Case,
    Grants,
    listed,
    open_transaction,
    prepare,
    user_of,
    users,
)
from tests.security_tools import LogIn, authenticate, broker_with_users
from tests.store_tools import split_answer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with all of these users."""
    folder = tmp_path_factory.mktemp("permissions")
    with broker_with_users(folder, users() | SEEING, {"transactions.timeout_ms": 3_600_000}) as running:
        yield running


@pytest.fixture
def log_in(guarded: RunningBroker, connect: ConnectionFactory) -> LogIn:
    return lambda name: authenticate(connect(guarded), name)


def test_every_rule_has_a_case() -> None:
    assert {case.command.code for case in CASES} == {
        code for code, command in COMMANDS.items() if command.rule is not anybody
    }


OF_REPLICA_SETS = {
    command.code
    for command in (commands.REPLICATE, commands.REPORT_POSITION, commands.SWITCH_PRIMARY, commands.CHANGE_MEMBERS)
}


def everything(admin: RawConnection) -> Any:
    """Return the broker's state: log end, topics, offsets, groups, transactions, stages, settings."""
    info = admin.runtime_info()
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
    # A member of an earlier case leaves a while after its connection.
    until(lambda: admin.runtime_info()["group_members"] == 0, "no member is left")
    before = everything(admin)
    # What a rule judges is tested without a broker, in `tests/unit/test_permissions.py`.
    for missing in [-1, *(() if case.is_judged_by_its_rule else range(len(case.needs)))]:
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
    if case.command.code in OF_REPLICA_SETS:
        assert served.code in (ReplicationRefused.code, InvalidParameter.code)  # served, by a broker on its own
        return
    if case.command is commands.CLOSE_CONNECTION:
        assert served.code == InvalidParameter.code  # served, and there is no such connection
        return
    served.raise_for_error()


def check_refused(case: Case, missing: int, user: str, answer: Answer) -> None:
    """Check that the error names the user, the action, the object and the remedy.

    If that would reveal an object that the user may not know of, the response must be the same as for a missing object.
    """
    grant = case.grants[max(missing, 0)]
    if (
        missing >= 0
        and case.command is commands.CONSUMER_SEND_MSG_BACK
        and "topic" in grant
        and "topic" not in case.fields
    ):
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


# ---- what commands without a rule show ----


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


def test_topics_and_groups_are_listed_for_users_with_any_right_on_them(seen: RawConnection, log_in: LogIn) -> None:
    seer, nobody = log_in("seer"), log_in("nobody")
    assert [row["topic"] for row in listed(seer, commands.GET_ALL_TOPIC_CONFIG)] == ["seen"]
    assert [row[0] for row in listed(seer, commands.GET_TOPICS_STATS)] == ["seen"]
    (group,) = listed(seer, commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert group["group"] == "seen-group"
    assert group["topics"] == ["seen"]
    for command in (
        commands.GET_ALL_TOPIC_CONFIG,
        commands.GET_TOPICS_STATS,
        commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    ):
        assert listed(nobody, command) == []
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
    names = {row["topic"] for row in listed(wide, commands.GET_ALL_TOPIC_CONFIG)}
    assert {"seen", "hidden"} <= names
    everything_there = listed(seen, commands.GET_ALL_TOPIC_CONFIG)
    system = {row["topic"] for row in everything_there if row["system"]}
    assert system
    assert not names & system
    for topic in system | {"OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%x"}:
        assert wide.pull(topic).code == NoPermission.code, topic


def test_lag_is_shown_of_groups_and_topics_that_one_may_see_both(seen: RawConnection, log_in: LogIn) -> None:
    assert listed(log_in("seer"), commands.GET_CONSUME_STATS) == []
    found = listed(log_in("wide"), commands.GET_CONSUME_STATS)
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
    assert hidden_id not in [row["id"] for row in listed(seer, commands.GET_TRANSACTIONS)]
    assert hidden_id in [row["id"] for row in listed(log_in("watcher"), commands.GET_TRANSACTIONS)]
    attempts = msgpack.unpackb(seer.call(commands.GET_PREPARED).raise_for_error().body)["attempts"]
    assert {row["attempt"] for row in attempts} == {"seen-attempt"}
    # nor may the user add to objects without a grant
    assert seer.produce("seen", b"x", prepare="hidden-attempt").code == NoPermission.code


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
    unknown = "00" * 8 + "00000000FFFFFFFF"  # beyond the log's end
    never = by_id(unknown)
    for answer in (by_id(id_of(hidden)), by_id(id_of(half))):
        assert answer.code == never.code == MessageNotFound.code
    assert answer.fields["message"].replace(id_of(half), "") == never.fields["message"].replace(unknown, "")
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
