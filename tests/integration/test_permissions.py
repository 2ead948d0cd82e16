"""Permissions over TCP: the broker refuses every command without its grants, and serves it with exactly these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.protocol import commands
from flintmq.protocol.auth.rules import anybody
from flintmq.protocol.commands import COMMANDS
from flintmq.protocol.errors import InvalidParameter, MemberUnknown, MessageNotFound, NoPermission, ReplicationRefused
from flintmq.protocol.frames import ONE_WAY
from tests.conftest import Answer, ConnectionFactory, RawConnection, RunningBroker
from tests.group_tools import until
from tests.permission_cases import BY_NAME, CASES, Case, prepare, user_of, users
from tests.security_tools import LogIn, authenticate, broker_with_users


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with all of these users."""
    folder = tmp_path_factory.mktemp("permissions")
    with broker_with_users(folder, users(), {"transactions.timeout_ms": 3_600_000}) as running:
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
