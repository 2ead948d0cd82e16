"""A broker that is killed right after an answer has kept what ``docs/reliability.md`` says; its table names every
command."""

from __future__ import annotations

import base64
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.broker.remoting.registry import ROWS as REMOTING_ROWS
from flintmq.protocol import commands
from flintmq.protocol.auth.scram import ITERATIONS_MIN, make_verifier
from flintmq.protocol.auth.users import verifier_row
from flintmq.protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    PHYSICAL_OFFSET_STRUCT,
    RECEIPT_STRUCT,
    Command,
    RowCommand,
    RowsCommand,
)
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from tests import pop_tools, prepared_tools, transaction_tools
from tests.conftest import Answer, BrokerFactory, Brokers, ConnectionFactory, RawConnection
from tests.group_tools import RawMember, until
from tests.remoting_tools import RemotingBroker, batch_body, json_blob, send_fields
from tests.security_tools import SCRAM, authenticate, set_user

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
OWN, REMOTING = "FlintMQ", "RocketMQ"
CHANGES_NOTHING = {
    *"HELLO AUTH PULL BROWSE_MESSAGES QUERY_BY_KEY VIEW_MESSAGE_BY_ID QUERY_CONSUMER_OFFSET GET_PREPARED".split(),
    *"SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET GET_EARLIEST_MSG_STORETIME GET_DELAY_STATS".split(),
    *"GET_TOPIC_STATS_INFO GET_BROKER_RUNTIME_INFO GET_RIGHTS".split(),
}
"""Commands that change nothing, besides those that only return rows."""
REMOTING_CHANGES_NOTHING = re.compile(
    "GET_|QUERY_|VIEW_|CHECK_CLIENT_CONFIG|NOTIFICATION|POLLING_INFO|SEARCH_|CLEAN_|NOTIFY_MIN|DELETE_TOPIC_IN_NAMESRV|DELETE_KV_"
)
WITHOUT_CASE = {
    # The tests of replica sets kill their members.
    *((OWN, name) for name in ("SWITCH_PRIMARY", "CHANGE_MEMBERS", "REPLICATE", "REPORT_POSITION")),
    # These promise nothing.
    *((OWN, name) for name in ("UNREGISTER_CLIENT", "CLOSE_CONNECTION")),
    *((REMOTING, name) for name in "PULL_MESSAGE LITE_PULL_MESSAGE HEART_BEAT UNREGISTER_CLIENT LOCK_BATCH_MQ".split()),
    *((REMOTING, name) for name in "UNLOCK_BATCH_MQ SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2".split()),
    *((REMOTING, name) for name in "CONSUME_MESSAGE_DIRECTLY WIPE_WRITE_PERM_OF_BROKER".split()),
    (REMOTING, "ADD_WRITE_PERM_OF_BROKER"),
    # It needs a transaction that fifteen checks could not end; what it stores is a message like any other.
    (REMOTING, "RESUME_CHECK_HALF_MESSAGE"),
}
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
}
"""Fields of SEND_MESSAGE by their short names in SEND_MESSAGE_V2."""


def table() -> Iterator[tuple[str, str]]:
    """Yield protocol and name of each command in the document's table."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("## What is on disk when it is answered\n")[2]
    for line in text.partition("\n## ")[0].splitlines():
        if found := re.match(r"\| ([A-Z–][^a-z|]*) \| ([A-Z–][^a-z|]*) \| [^|]+ \|$", line):
            yield from ((OWN, name) for name in re.findall(r"\w+", found[1]))
            yield from ((REMOTING, name) for name in re.findall(r"\w+", found[2]))


def test_the_table_names_every_command_that_changes_something() -> None:
    named = {name for protocol, name in table() if protocol == OWN}
    assert not named & CHANGES_NOTHING
    asked = [each for each in commands.COMMANDS.values() if not each.from_broker]
    rows = {each.name for each in asked if isinstance(each, RowsCommand | RowCommand)}
    assert named | CHANGES_NOTHING | rows == {each.name for each in asked}

    served = {code for code, _, _ in REMOTING_ROWS}
    text = Path(codes.__file__).read_text(encoding="utf-8").partition("# ---- requests of clients ----")[2]
    requests = {name for name, code in re.findall(r"^(\w+) = (\d+)$", text, re.MULTILINE) if int(code) in served}
    named = {name for protocol, name in table() if protocol == REMOTING}
    assert {name for name in requests if not REMOTING_CHANGES_NOTHING.match(name)} == named


class Node:
    """A broker that can be killed. ``peer`` and ``remote`` are connections to the one that runs.

    ``topic`` has one queue with three messages; no other case uses it or ``group``.
    """

    topic: str
    group: str

    def __init__(self, start: BrokerFactory) -> None:
        self._start = start
        self._begin(RemotingBroker(start))

    def _begin(self, gateway: RemotingBroker) -> None:
        self.running = gateway.running
        self.remote = gateway.connect()
        self.peer = RawConnection(socket.create_connection((self.running.host, self.running.port), timeout=120.0))
        self.peer.call(commands.HELLO, {"protocol": 1, "client": "test"}).raise_for_error()

    def begin_case(self, number: int) -> None:
        """Make the topic of a case."""
        self._case = number
        self.topic, self.group = self.name("t"), self.name("g")
        self.call(commands.UPDATE_AND_CREATE_TOPIC, topic=self.topic, read_queues=1, write_queues=1)
        self.peer.produce(self.topic, b"0", b"1", b"2").raise_for_error()

    def name(self, word: str) -> str:
        """Return a name that no other case has."""
        return f"{word}-{self._case}"

    def close(self) -> None:
        """Close the connections."""
        self.remote.close()
        self.peer.close()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the broker, or end it with another signal, and start it again."""
        self.running.stop(number)
        self.close()
        self._begin(RemotingBroker(self._start, store=self.running.store))

    def call(self, command: Command, body: bytes = b"", /, **fields: Any) -> Answer:
        """Call a command that succeeds."""
        return self.peer.call(command, fields, body).raise_for_error()

    def ask(self, code: int, body: bytes = b"", /, **fields: Any) -> RemotingFrame:
        """Send a request of RocketMQ's that succeeds."""
        answer = self.remote.call(code, fields, body)
        assert answer.code == codes.SUCCESS, answer.remark
        return answer

    def committed(self, topic: str = "") -> dict[int, int]:
        answer = self.call(commands.QUERY_CONSUMER_OFFSET, group=self.group, topic=topic or self.topic)
        return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))

    def commit(self, offset: int, group: str = "", topic: str = "") -> None:
        body = CONSUMER_OFFSET_STRUCT.pack(0, offset)
        fields = {"group": group or self.group, "topic": topic or self.topic}
        self.call(commands.UPDATE_CONSUMER_OFFSET, body, **fields, count=1)

    def pop(self, **fields: Any) -> Answer:
        fields = {"group": self.group, "topic": self.topic, "start": "first", "lease_ms": 600_000, **fields}
        return self.call(commands.POP_MESSAGE, **fields)

    def heart_beat(self) -> None:
        self.remote.heart_beat("c", (), ({"groupName": self.group, "subscriptionDataSet": []},))

    def bodies(self, topic: str = "") -> list[bytes]:
        return [record.body for record in transaction_tools.messages(self.peer, topic or self.topic, 1)]

    def topics(self) -> dict[str, int]:
        """Return the number of queues of each topic."""
        rows = msgpack.unpackb(self.call(commands.GET_ALL_TOPIC_CONFIG).body)
        return {row["topic"]: row["read_queues"] for row in rows}

    def groups(self) -> dict[str, int]:
        """Return the number of retries of each group."""
        rows = msgpack.unpackb(self.call(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
        return {row["group"]: row["retry_times_max"] for row in rows}


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield one broker for all cases, which is killed in each."""
    brokers = Brokers(tmp_path_factory.mktemp("answered"))
    node = Node(brokers.start)
    yield node
    node.close()
    brokers.stop_all()


Case = Callable[[Node], None]
CASES: dict[tuple[str, str], Case] = {}
"""By protocol and command: the change, the kill, and what must be there."""


def case(protocol: str, *names: str) -> Callable[[Case], Case]:
    """Enter the case of these commands."""

    def enter(check: Case) -> Case:
        CASES.update({(protocol, name): check for name in names})
        return check

    return enter


# ---- messages


@case(OWN, "PRODUCE")
def produce(node: Node) -> None:
    node.peer.produce(node.name("new"), b"x", queue=0).raise_for_error()
    node.kill()
    assert node.bodies(node.name("new")) == [b"x"]


@case(REMOTING, "SEND_MESSAGE", "SEND_MESSAGE_V2", "SEND_BATCH_MESSAGE")
def remoting_send_message(node: Node) -> None:
    short = send_fields(node.topic, {})
    node.ask(codes.SEND_MESSAGE, b"x", **{long: short[name] for name, long in LONG_NAMES.items()})
    node.ask(codes.SEND_MESSAGE_V2, b"y", **short)
    node.ask(codes.SEND_BATCH_MESSAGE, batch_body((b"z", {})), **{**short, "m": True})
    node.kill()
    assert node.bodies() == [b"0", b"1", b"2", b"x", b"y", b"z"]


@case(REMOTING, "RECALL_MESSAGE")
def remoting_recall_message(node: Node) -> None:
    due = {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + 2_000)}
    first = node.remote.produce(node.topic, b"recalled", {**due, "UNIQ_KEY": "7F00000104D2A1B2C3D40000000000A1"})
    node.remote.produce(node.topic, b"beside", {**due, "UNIQ_KEY": "7F00000104D2A1B2C3D40000000000A2"})
    node.ask(codes.RECALL_MESSAGE, producerGroup="p", topic=node.topic, recallHandle=first.fields["recallHandle"])
    node.kill()
    assert [record.body for record in node.remote.pull(node.topic, offset=3, wait_ms=20_000)] == [b"beside"]


@case(OWN, "CONSUMER_SEND_MSG_BACK")
def consumer_send_msg_back(node: Node) -> None:
    body = PHYSICAL_OFFSET_STRUCT.pack(transaction_tools.messages(node.peer, node.topic, 1)[1].physical_offset)
    node.call(commands.CONSUMER_SEND_MSG_BACK, body, group=node.group, count=1, delay_level=-1)
    node.kill()
    assert node.bodies(f"%DLQ%{node.group}") == [b"1"]


@case(REMOTING, "CONSUMER_SEND_MSG_BACK")
def remoting_consumer_send_msg_back(node: Node) -> None:
    node.heart_beat()
    at = transaction_tools.messages(node.peer, node.topic, 1)[1].physical_offset
    node.ask(
        codes.CONSUMER_SEND_MSG_BACK, group=node.group, offset=at, delayLevel=-1, originMsgId="", originTopic=node.topic
    )
    node.kill()
    assert node.bodies(f"%DLQ%{node.group}") == [b"1"]


@case(OWN, "END_TRANSACTION")
def end_transaction(node: Node) -> None:
    half = transaction_tools.send_half(node.peer, node.topic, b"half", 1, queue=0)
    transaction_tools.end(node.peer, half).raise_for_error()
    node.kill()
    assert node.bodies()[3:] == [b"half"]


@case(REMOTING, "END_TRANSACTION")
def remoting_end_transaction(node: Node) -> None:
    half = transaction_tools.send_half(node.peer, node.topic, b"half", 1, queue=0)
    node.ask(
        codes.END_TRANSACTION,
        producerGroup=transaction_tools.GROUP,
        tranStateTableOffset=half.queue_offset,
        commitLogOffset=half.physical_offset,
        commitOrRollback=8,
        msgId=half.transaction_id,
    )
    node.kill()
    assert node.bodies()[3:] == [b"half"]


@case(OWN, "COMMIT_PREPARED")
def commit_prepared(node: Node) -> None:
    prepared_tools.prepare(node.peer, node.name("stage"), node.topic, b"x", b"y", queue=0)
    prepared_tools.commit(node.peer, 1, {node.name("stage"): 2}).raise_for_error()
    node.kill()
    assert [record.body for record in node.remote.pull(node.topic, offset=3, wait_ms=20_000)] == [b"x", b"y"]


@case(OWN, "ABORT_PREPARED")
def abort_prepared(node: Node) -> None:
    prepared_tools.prepare(node.peer, node.name("stage"), node.topic, b"x", queue=0)
    assert prepared_tools.abort(node.peer, node.name("stage")) == 1
    node.kill()
    assert prepared_tools.abort(node.peer, node.name("stage")) == 0


# ---- groups


@case(OWN, "HEART_BEAT")
def heart_beat(node: Node) -> None:
    node.kill(signal.SIGTERM)  # after a kill the broker would not know which groups are new
    member = RawMember(node.peer, node.group, "m", start="last", session_timeout_ms=60_000)
    member.beat(node.topic, node.name("later")).raise_for_error()
    node.kill()
    assert node.committed() == {0: 3}
    # The topic did not exist when the group subscribed to it, so the group misses nothing of it.
    node.peer.produce(node.name("later"), b"x", queue=0).raise_for_error()
    member = RawMember(node.peer, node.group, "m", start="last", session_timeout_ms=60_000)
    member.beat(node.topic, node.name("later")).raise_for_error()
    # A broker that just started grants queues only to members that held them.
    until(lambda: bool(member.beat().raise_for_error() and member.queues), "the grant of the queues")
    assert (member.rows[node.topic, 0][0], member.rows[node.name("later"), 0][0]) == (3, 0)


@case(OWN, "UPDATE_CONSUMER_OFFSET")
def update_consumer_offset(node: Node) -> None:
    node.commit(2)
    body = PHYSICAL_OFFSET_STRUCT.pack(transaction_tools.messages(node.peer, node.topic, 1)[1].physical_offset)
    node.call(commands.CONSUMER_SEND_MSG_BACK, 2 * body, group=node.group, count=2, delay_level=-1)
    node.commit(1, topic=f"%DLQ%{node.group}")
    node.kill()
    assert node.committed() == {0: 2}
    node.commit(2, topic=f"%DLQ%{node.group}")  # only moves on, but in dead letters, which an operator has dealt with
    node.kill()
    assert node.committed(f"%DLQ%{node.group}") == {0: 2}


@case(REMOTING, "UPDATE_CONSUMER_OFFSET")
def remoting_update_consumer_offset(node: Node) -> None:
    for offset in (3, 1):
        node.heart_beat()
        node.ask(
            codes.UPDATE_CONSUMER_OFFSET, consumerGroup=node.group, topic=node.topic, queueId=0, commitOffset=offset
        )
        node.kill()
        assert node.committed() == {0: offset}


@case(OWN, "POP_MESSAGE")
def pop_message(node: Node) -> None:
    assert node.pop(start="last").fields["count"] == 0
    node.kill()
    assert node.committed() == {0: 3}
    node.peer.produce(node.topic, b"3").raise_for_error()
    assert node.pop(start="last").fields["count"] == 1
    node.kill()
    assert node.pop(start="last").fields.get("count", 0) == 0, "the lease outlives the kill"


@case(REMOTING, "POP_MESSAGE")
def remoting_pop_message(node: Node) -> None:
    assert (
        len(
            pop_tools.messages(pop_tools.pop(node.remote, node.topic, node.group, order=True, maxMsgNums=1), node.topic)
        )
        == 1
    )
    node.kill()
    assert node.committed() == {0: 0}


@case(OWN, "ACK_MESSAGE")
def ack_message(node: Node) -> None:
    popped = node.pop(max_count=2)
    receipts = [RECEIPT_STRUCT.pack(0, 0, offset, popped.fields["pop_ms"]) for offset in (0, 1)]
    node.call(commands.ACK_MESSAGE, b"".join(receipts), group=node.group, topic=node.topic, count=2)
    node.kill()
    assert node.committed() == {0: 2}


@case(REMOTING, "ACK_MESSAGE", "BATCH_ACK_MESSAGE", "CHANGE_MESSAGE_INVISIBLETIME")
def remoting_ack_message(node: Node) -> None:
    first, second, third = pop_tools.messages(pop_tools.pop(node.remote, node.topic, node.group), node.topic)
    assert pop_tools.settle(node.remote, first, node.group).code == codes.SUCCESS
    at, pop_ms, invisible_ms, revive = second.handle.split(" ")[:4]
    ack = {"c": node.group, "t": node.topic, "r": "0", "so": int(at), "q": 0, "rq": int(revive), "pt": int(pop_ms)}
    acks = [{**ack, "it": int(invisible_ms), "b": base64.b64encode(b"\x02").decode()}]
    node.ask(codes.BATCH_ACK_MESSAGE, json_blob({"brokerName": "b", "acks": acks}))
    longer = {"code": codes.CHANGE_MESSAGE_INVISIBLETIME, "invisibleTime": 600_000}
    again = pop_tools.renewed(third, pop_tools.settle(node.remote, third, node.group, **longer))
    node.kill()
    assert node.committed() == {0: 2}
    assert pop_tools.settle(node.remote, again, node.group).code == codes.SUCCESS, "the new receipt holds"


@case(OWN, "CHANGE_MESSAGE_INVISIBLETIME")
def change_message_invisibletime(node: Node) -> None:
    popped = node.pop(max_count=1)
    receipt = RECEIPT_STRUCT.pack(0, 0, 0, popped.fields["pop_ms"])
    node.call(commands.CHANGE_MESSAGE_INVISIBLETIME, receipt, group=node.group, topic=node.topic, count=1, lease_ms=0)
    node.kill()
    assert node.pop().fields["count"] == 3


def _reset(node: Node, reset: Callable[[], object]) -> None:
    node.commit(3)
    node.kill()
    reset()
    node.kill()
    assert node.committed() == {0: 0}


@case(OWN, "INVOKE_BROKER_TO_RESET_OFFSET")
def invoke_broker_to_reset_offset(node: Node) -> None:
    _reset(
        node, lambda: node.call(commands.INVOKE_BROKER_TO_RESET_OFFSET, group=node.group, topic=node.topic, to="first")
    )


@case(REMOTING, "INVOKE_BROKER_TO_RESET_OFFSET")
def remoting_invoke_broker_to_reset_offset(node: Node) -> None:
    _reset(
        node,
        lambda: node.ask(
            codes.INVOKE_BROKER_TO_RESET_OFFSET, group=node.group, topic=node.topic, timestamp=0, isForce=True
        ),
    )


@case(REMOTING, "CLONE_GROUP_OFFSET")
def remoting_clone_group_offset(node: Node) -> None:
    fields = {"srcGroup": node.name("other"), "destGroup": node.group, "topic": node.topic}
    node.commit(0, group=node.name("other"))
    _reset(node, lambda: node.ask(codes.CLONE_GROUP_OFFSET, **fields))


def _delete_group(node: Node, delete: Callable[[], object]) -> None:
    node.commit(3)
    node.ask(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json_blob({"groupName": node.group}))
    node.kill()
    assert node.group in node.groups()
    delete()
    node.kill()
    assert (node.group in node.groups(), node.committed()) == (False, {})


@case(OWN, "DELETE_SUBSCRIPTIONGROUP")
def delete_subscriptiongroup(node: Node) -> None:
    _delete_group(node, lambda: node.call(commands.DELETE_SUBSCRIPTIONGROUP, group=node.group))


@case(REMOTING, "DELETE_SUBSCRIPTIONGROUP")
def remoting_delete_subscriptiongroup(node: Node) -> None:
    _delete_group(node, lambda: node.ask(codes.DELETE_SUBSCRIPTIONGROUP, groupName=node.group, cleanOffset=True))


@case(REMOTING, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST")
def remoting_update_and_create_subscriptiongroup(node: Node) -> None:
    node.ask(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json_blob({"groupName": node.name("a"), "retryMaxTimes": 3}))
    node.kill()
    rows = [{"groupName": node.name("a"), "retryMaxTimes": 4}, {"groupName": node.name("b"), "retryMaxTimes": 5}]
    assert (node.groups()[node.name("a")], node.name("b") in node.groups()) == (3, False)
    node.ask(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, json_blob({"groupConfigList": rows}))
    node.kill()
    assert (node.groups()[node.name("a")], node.groups()[node.name("b")]) == (4, 5)


@case(REMOTING, "SET_MESSAGE_REQUEST_MODE")
def remoting_set_message_request_mode(node: Node) -> None:
    body = json_blob({"topic": node.topic, "consumerGroup": node.group, "mode": "POP", "popShareQueueNum": 2})
    node.ask(codes.SET_MESSAGE_REQUEST_MODE, body)
    node.kill()
    assert b'"popShareQueueNum":2' in bytes(node.ask(codes.GET_MESSAGE_REQUEST_MODE).body)


# ---- topics, users, settings


@case(OWN, "UPDATE_AND_CREATE_TOPIC", "DELETE_TOPIC_IN_BROKER")
def update_and_create_topic(node: Node) -> None:
    node.call(commands.UPDATE_AND_CREATE_TOPIC, topic=node.name("new"), read_queues=7, write_queues=7)
    node.kill()
    assert node.topics()[node.name("new")] == 7
    node.call(commands.DELETE_TOPIC_IN_BROKER, topic=node.topic)
    node.kill()
    assert node.topic not in node.topics()


@case(REMOTING, "UPDATE_AND_CREATE_TOPIC", "UPDATE_AND_CREATE_TOPIC_LIST", "DELETE_TOPIC_IN_BROKER")
def remoting_update_and_create_topic(node: Node) -> None:
    fields = {"readQueueNums": 7, "writeQueueNums": 7, "perm": 6}
    node.ask(codes.UPDATE_AND_CREATE_TOPIC, topic=node.name("new"), **fields, topicFilterType="SINGLE_TAG", order=False)
    node.kill()
    assert node.topics()[node.name("new")] == 7
    node.ask(
        codes.UPDATE_AND_CREATE_TOPIC_LIST, json_blob({"topicConfigList": [{"topicName": node.name("more"), **fields}]})
    )
    node.kill()
    assert node.topics()[node.name("more")] == 7
    node.ask(codes.DELETE_TOPIC_IN_BROKER, topic=node.topic)
    node.kill()
    assert node.topic not in node.topics()


@case(OWN, "UPDATE_BROKER_CONFIG")
@case(REMOTING, "UPDATE_BROKER_CONFIG")
def remoting_update_broker_config(node: Node) -> None:
    body = msgpack.packb({"topics.default_queues": 7})
    node.call(commands.UPDATE_BROKER_CONFIG, body, count=1)
    node.kill()
    rows = msgpack.unpackb(node.call(commands.GET_BROKER_CONFIG).body)
    assert [row["value"] for row in rows if row["name"] == "topics.default_queues"] == [4]


@pytest.mark.parametrize("check", dict.fromkeys(CASES.values()), ids=lambda check: check.__name__)
def test_what_was_answered_is_there_after_a_kill(living: Node, check: Case) -> None:
    living.begin_case(list(CASES.values()).index(check))
    check(living)


OF_USERS = {(OWN, name) for name in ("AUTH_CREATE_USER", "AUTH_UPDATE_USER", "AUTH_DELETE_USER")}


def test_users_are_there_after_a_kill(broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    set_user(store, "root")

    def users(call: Callable[[Callable[..., Answer]], object]) -> dict[str, list[Any]]:
        running = broker(store=store, settings=SCRAM)
        peer = authenticate(connect(running), "root")
        call(lambda command, body, **fields: peer.call(command, fields, msgpack.packb(body)).raise_for_error())
        running.kill()
        running = broker(store=store, settings=SCRAM)
        rows = msgpack.unpackb(authenticate(connect(running), "root").call(commands.AUTH_LIST_USER).body)
        running.kill()
        return {row["user"]: row["grants"] for row in rows}

    scram, grants = verifier_row(make_verifier("pencil", ITERATIONS_MIN)), [{"actions": ["query"], "broker": True}]
    assert users(lambda call: call(commands.AUTH_CREATE_USER, {"scram": scram}, user="ada"))["ada"] == []
    assert users(lambda call: call(commands.AUTH_UPDATE_USER, {"grant": grants}, user="ada"))["ada"] == grants
    assert "ada" not in users(lambda call: call(commands.AUTH_DELETE_USER, {}, user="ada"))


def test_each_command_of_the_table_has_a_case() -> None:
    assert set(table()) == CASES.keys() | WITHOUT_CASE | OF_USERS
