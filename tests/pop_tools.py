"""Requests of consumers that pop, as RocketMQ's Java client sends them, and the messages of their answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.storage.record import Record, decode_record
from tests.remoting_tools import RemotingSocket

INVISIBLE_MS = 60_000


class Popped(NamedTuple):
    """One message of an answer. ``handle``: its receipt handle."""

    body: bytes
    topic: str
    queue: int
    offset: int
    reconsume_times: int
    properties: dict[str, str]
    handle: str


def pop(remote: RemotingSocket, topic: str, group: str, /, **fields: Any) -> RemotingFrame:
    return remote.receive_for(ask(remote, topic, group, **fields))


def ask(remote: RemotingSocket, topic: str, group: str, /, **fields: Any) -> int:
    """Send a POP_MESSAGE as the Java client does."""
    asked = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
        **fields,
    }
    return remote.send(codes.POP_MESSAGE, asked)


def messages(answer: RemotingFrame, topic: str, broker: str = "b") -> list[Popped]:
    """Return the messages of an answer with the handles that a client builds from it."""
    assert answer.code == codes.SUCCESS, answer.remark
    fields = answer.fields
    starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in fields["startOffsetInfo"].split(";")}
    told = {
        (mark, queue, int(offset))
        for mark, queue, offsets in (part.split(" ") for part in fields["msgOffsetInfo"].split(";"))
        for offset in offsets.split(",")
    }
    blob, at, found = bytes(answer.body), 0, []
    while at < len(blob):
        record = decode_record(blob, at)
        at += int.from_bytes(blob[at : at + 4], "big")
        assert record.topic.decode() == topic
        properties = record.property_map()
        handle = properties.get("POP_CK")
        if handle is None:
            start = starts["0", str(record.queue_id)]
            handle = (
                f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 {broker} "
                f"{record.queue_id} {record.queue_offset}"
            )
        mark = handle.split(" ")[4]
        assert (mark, str(record.queue_id), record.queue_offset) in told
        found.append(
            Popped(record.body, topic, record.queue_id, record.queue_offset, record.reconsume_times, properties, handle)
        )
    assert len(found) == len(told)
    return found


def bodies(answer: RemotingFrame, topic: str) -> list[bytes]:
    return [message.body for message in messages(answer, topic)]


def settle(
    remote: RemotingSocket, message: Popped, group: str, code: int = codes.ACK_MESSAGE, **fields: Any
) -> RemotingFrame:
    """Acknowledge a message as a client does, or send another request about it."""
    mark = message.handle.split(" ")[4]
    real_topic = {"0": "", "1": f"%RETRY%{group}_", "2": f"%RETRY%{group}+"}[mark] + message.topic
    return remote.call(
        code,
        {
            "consumerGroup": group,
            "topic": real_topic,
            "queueId": message.queue,
            "extraInfo": message.handle,
            "offset": message.offset,
            **fields,
        },
    )


def renewed(message: Popped, answer: RemotingFrame) -> Popped:
    """Return the message with the handle that a client makes of the answer to a renewal."""
    assert answer.code == codes.SUCCESS, answer.remark
    parts = message.handle.split(" ")
    parts[1:4] = [answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
    return message._replace(handle=" ".join(parts))


def produce(remote: RemotingSocket, topic: str, *texts: str, **fields: Any) -> None:
    for text in texts:
        assert remote.produce(topic, text.encode(), **fields).code == codes.SUCCESS


def committed(remote: RemotingSocket, topic: str, group: str, queue: int = 0) -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "setZeroIfNotFound": False}
    answer = remote.call(codes.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.fields["offset"]) if answer.code == codes.SUCCESS else -1


def pull(remote: RemotingSocket, topic: str, offset: int = 0) -> list[Record]:
    fields = {
        "consumerGroup": "reader",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
    }
    blob, at, found = bytes(remote.call(codes.PULL_MESSAGE, fields).body), 0, []
    while at < len(blob):
        found.append(decode_record(blob, at))
        at += int.from_bytes(blob[at : at + 4], "big")
    return found


def ordered(remote: RemotingSocket, topic: str, group: str, **fields: Any) -> RemotingFrame:
    return pop(remote, topic, group, order=True, queueId=0, **fields)


def notice(remote: RemotingSocket, topic: str, group: str, **fields: Any) -> int:
    asked = {"consumerGroup": group, "topic": topic, "queueId": -1, "pollTime": 0, "bornTime": 0, **fields}
    return remote.send(codes.NOTIFICATION, asked)
