"""Transactions of RocketMQ's clients at the level of the protocol: half messages, ends, and the broker's checks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.storage.record import Record, parse_offset_id
from tests.conftest import Brokers
from tests.remoting_tools import RemotingBroker, RemotingSocket, decode_records

KEY = "7F00000104D2A1B2C3D4"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """Yield a broker that asks producers soon and twice."""
    brokers = Brokers(tmp_path_factory.mktemp("checking"))
    settings = {
        "transactions.timeout_ms": 300,
        "transactions.check_interval_ms": 300,
        "transactions.check_times_max": 2,
    }
    yield RemotingBroker(brokers.start, settings)
    brokers.stop_all()


_numbers = itertools.count()


def send_half(
    remote: RemotingSocket, topic: str, group: str, number: int | None = None, **properties: str
) -> RemotingFrame:
    """Send a half message as the Java client does; return the answer. ``number``: in its key; None: a new one."""
    number = next(_numbers) if number is None else number
    marks = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"{KEY}{number:012X}"}
    return remote.produce(topic, b"half", {**marks, **properties}, a=group, f=4, e=1)


def end_fields(answer: RemotingFrame, group: str, decision: int, **changes: Any) -> dict[str, Any]:
    """Return the fields of END_TRANSACTION for the half message that ``answer`` is about."""
    parsed = parse_offset_id(answer.fields["msgId"])
    assert parsed is not None
    return {
        "producerGroup": group,
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": parsed[1],
        "commitOrRollback": decision,
        "fromTransactionCheck": False,
        "msgId": answer.fields["transactionId"],
        "transactionId": answer.fields["transactionId"],
        **changes,
    }


def test_a_half_message_is_delivered_when_it_is_committed(remote: RemotingSocket, topic: str, group: str) -> None:
    answer = send_half(remote, topic, group, 1 << 40, TAGS="t")
    assert answer.code == codes.SUCCESS, answer.remark
    assert answer.fields["transactionId"] == f"{KEY}{1 << 40:012X}"
    assert remote.pull(topic, 1) == []
    assert remote.call(codes.END_TRANSACTION, end_fields(answer, group, COMMIT)).code == codes.SUCCESS
    (record,) = remote.pull(topic, 1, wait_ms=5_000)
    assert (record.body, record.property_map()["TAGS"]) == (b"half", "t")
    assert record.prepared_transaction_offset == end_fields(answer, group, COMMIT)["commitLogOffset"]


def test_a_connection_closes_after_the_end_of_a_transaction_that_is_not_there(
    gateway: RemotingBroker, topic: str, group: str
) -> None:
    with gateway.connect() as remote:
        answer = remote.produce(topic)
        no_half = end_fields(answer, group, COMMIT, tranStateTableOffset=2**40)
        del no_half["transactionId"]
        refused = remote.call(codes.END_TRANSACTION, no_half)
        assert (refused.code, "there is no half message" in refused.remark) == (codes.SYSTEM_ERROR, True)
        remote.send_no_more()
        assert remote.is_closed()


def test_ends_may_be_one_way_and_repeated(remote: RemotingSocket, topic: str, group: str) -> None:
    answer = send_half(remote, topic, group)
    remote.send(codes.END_TRANSACTION, end_fields(answer, group, COMMIT), one_way=True)
    assert len(remote.pull(topic, 1, wait_ms=5_000)) == 1
    assert remote.call(codes.END_TRANSACTION, end_fields(answer, group, COMMIT)).code == codes.SUCCESS
    assert len(remote.pull(topic, 1)) == 1


@pytest.mark.parametrize("decision", [UNKNOWN, 4, 99])
def test_an_undecided_end_changes_nothing(remote: RemotingSocket, topic: str, group: str, decision: int) -> None:
    answer = send_half(remote, topic, group)
    assert remote.call(codes.END_TRANSACTION, end_fields(answer, group, decision)).code == codes.SUCCESS
    assert remote.call(codes.END_TRANSACTION, end_fields(answer, group, COMMIT)).code == codes.SUCCESS
    assert len(remote.pull(topic, 1, wait_ms=5_000)) == 1


@pytest.mark.parametrize("without_key", [False, True])
def test_the_offsets_alone_tell_the_transaction(
    remote: RemotingSocket, topic: str, group: str, without_key: bool
) -> None:
    answer = send_half(remote, topic, group)
    fields = end_fields(answer, group, COMMIT, transactionId="another", msgId="another")
    if without_key:
        del fields["transactionId"]
    assert remote.call(codes.END_TRANSACTION, fields).code == codes.SUCCESS
    assert len(remote.pull(topic, 1, wait_ms=5_000)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"producerGroup": "another"},
        {"commitLogOffset": 1},
        {"tranStateTableOffset": 1_000_000, "transactionId": f"{KEY}FFFFFFFFFFFF"},
        {"tranStateTableOffset": 1_000_000, "transactionId": "", "commitLogOffset": 1 << 60},
        {"tranStateTableOffset": 1_000_000, "transactionId": "", "commitLogOffset": 3},
    ],
    ids=["group", "physical offset", "unknown", "no such offset", "inside of a record"],
)
def test_an_end_of_another_transaction_is_refused(
    remote: RemotingSocket, topic: str, group: str, changes: dict[str, Any]
) -> None:
    answer = send_half(remote, topic, group)
    refused = remote.call(codes.END_TRANSACTION, {**end_fields(answer, group, COMMIT), **changes})
    assert refused.code == codes.SYSTEM_ERROR
    assert refused.remark
    assert remote.pull(topic, 1) == []


@pytest.mark.parametrize("missing", ["producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback"])
def test_an_end_without_a_field_is_refused(remote: RemotingSocket, topic: str, group: str, missing: str) -> None:
    fields = end_fields(send_half(remote, topic, group), group, COMMIT)
    del fields[missing]
    assert remote.call(codes.END_TRANSACTION, fields).code == codes.INVALID_PARAMETER


def test_half_messages_are_stored_once_and_an_open_key_is_refused(
    gateway: RemotingBroker, topic: str, group: str
) -> None:
    answers = []
    for _ in range(2):
        with gateway.connect() as remote:
            answers.append(send_half(remote, topic, group, 2 << 40))
    assert answers[0].fields["queueOffset"] == answers[1].fields["queueOffset"]
    with gateway.connect() as remote:
        send_half(remote, topic, group, 3 << 40)
        again = send_half(remote, topic, group, 3 << 40)
        assert again.code == codes.MESSAGE_ILLEGAL
        assert "open transaction" in again.remark


@pytest.mark.parametrize("mark", ["false", "no"])
def test_other_marks_make_no_half_message(remote: RemotingSocket, topic: str, mark: str) -> None:
    remote.produce(topic, b"body", {"TRAN_MSG": mark})
    assert [record.body for record in remote.pull(topic)] == [b"body"]


def test_the_producers_group_is_that_of_the_send_if_the_message_has_none(
    remote: RemotingSocket, topic: str, group: str
) -> None:
    answer = remote.produce(topic, b"half", {"TRAN_MSG": "TRUE"}, a=group)
    assert remote.call(codes.END_TRANSACTION, end_fields(answer, group, COMMIT)).code == codes.SUCCESS
    assert len(remote.pull(topic, wait_ms=5_000)) == 1


# ---- questions of the broker ----


def _asked(remote: RemotingSocket) -> tuple[dict[str, str], Record]:
    request = remote.receive_request(codes.CHECK_TRANSACTION_STATE)
    (record,) = decode_records(bytes(request.body))
    return dict(request.fields), record


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_the_broker_asks_a_producer_of_the_group_and_takes_its_decision(
    checking: RemotingBroker, topic: str, group: str, decision: int
) -> None:
    with checking.connect() as remote, checking.connect() as other:
        other.heart_beat("other", (f"{group}-other",))
        remote.heart_beat("client", (group,))
        answer = send_half(remote, topic, group, KEYS="k")
        fields, record = _asked(remote)
        key = answer.fields["transactionId"]
        assert (fields["msgId"], fields["transactionId"]) == (key, key)
        assert (record.topic, record.queue_id, record.body) == (topic.encode(), 1, b"half")
        assert record.property_map()["PGROUP"] == group
        assert record.property_map()["KEYS"] == "k"
        assert fields["tranStateTableOffset"] == str(record.queue_offset)
        assert fields["commitLogOffset"] == str(record.physical_offset)
        assert parse_offset_id(fields["offsetMsgId"]) == (checking.address, record.physical_offset)
        end = {
            "producerGroup": group,
            "tranStateTableOffset": fields["tranStateTableOffset"],
            "commitLogOffset": fields["commitLogOffset"],
            "commitOrRollback": decision,
            "fromTransactionCheck": True,
            "msgId": key,
            "transactionId": fields["transactionId"],
        }
        remote.send(codes.END_TRANSACTION, end, one_way=True)
        if decision == COMMIT:
            assert len(remote.pull(topic, 1, wait_ms=5_000)) == 1
        else:
            assert remote.call(codes.END_TRANSACTION, end).code == codes.SUCCESS
            assert remote.pull(topic, 1) == []
        assert not other.requests


def test_a_parked_transaction_is_resumed_and_asked_about_again(
    checking: RemotingBroker, topic: str, group: str
) -> None:
    with checking.connect() as remote:
        remote.heart_beat("client", (group,))
        send_half(remote, topic, group)
        for _ in range(2):
            _, asked = _asked(remote)
        parked = _parked(remote, asked.property_map()["UNIQ_KEY"])
        parked_id = f"{parked.store_host.hex()}{parked.physical_offset:016x}".upper()
        half_id = f"{asked.store_host.hex()}{asked.physical_offset:016x}".upper()
        for wrong in (half_id, parked_id[:-1] + "0", "x" * 32):
            assert remote.call(codes.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": wrong}).code != codes.SUCCESS
        answer = remote.call(codes.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": parked_id})
        assert answer.code == codes.SUCCESS, answer.remark
        fields, record = _asked(remote)
        assert record.property_map()["UNIQ_KEY"] == asked.property_map()["UNIQ_KEY"]
        again = remote.call(codes.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": parked_id})
        assert again.code == codes.SUCCESS
        end = {"producerGroup": group, "commitOrRollback": COMMIT, "transactionId": fields["transactionId"]}
        offsets = {name: fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
        assert remote.call(codes.END_TRANSACTION, {**end, **offsets}).code == codes.SUCCESS
        assert len(remote.pull(topic, 1, wait_ms=5_000)) == 1
        late = remote.call(codes.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": parked_id})
        assert (late.code, "committed" in late.remark) == (codes.SYSTEM_ERROR, True)


def _parked(remote: RemotingSocket, key: str) -> Record:
    """Return the parked message with a unique key, after waiting for it."""
    offset = 0
    while True:
        for record in remote.pull("TRANS_CHECK_MAX_TIME_TOPIC", 0, offset, wait_ms=5_000):
            offset = record.queue_offset + 1
            if record.property_map()["UNIQ_KEY"] == key:
                return record
