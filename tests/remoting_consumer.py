"""A consumer of RocketMQ's kind that acts only when the test tells it to, and what its requests look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flintmq.protocol.remoting import codes, fastjson
from flintmq.protocol.remoting.command import RemotingFrame
from flintmq.protocol.storage.record import Record, decode_record
from tests.remoting_tools import RemotingSocket, json_blob

COMMIT, HOLD, OWN_SUBSCRIPTION = 1, 2, 4


def subscription(topic: str, expression: str = "*", kind: str = "TAG", version: int = 1) -> dict[str, Any]:
    """Return a row of ``subscriptionDataSet``."""
    return {"topic": topic, "subString": expression, "expressionType": kind, "subVersion": version}


def records_of(answer: RemotingFrame) -> list[Record]:
    """Return the records in the answer to a pull."""
    view, found = bytes(answer.body), []
    while view:
        size = int.from_bytes(view[:4], "big")
        found.append(decode_record(view[:size]))
        view = view[size:]
    return found


class RemotingConsumer:
    """One client of one group on one connection."""

    def __init__(self, remote: RemotingSocket, group: str, client_id: str, model: str = "CLUSTERING") -> None:
        self.remote = remote
        self.group = group
        self.client_id = client_id
        self.model = model

    def row(self, *subscriptions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's row of ``consumerDataSet``."""
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": self.model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": list(subscriptions),
        }

    def beat(self, *subscriptions: Mapping[str, Any] | str, **fields: Any) -> RemotingFrame:
        """Send a heartbeat. A text subscribes to all messages of that topic."""
        rows = [subscription(each) if isinstance(each, str) else each for each in subscriptions]
        body = {"clientID": self.client_id, "producerDataSet": [], "consumerDataSet": [self.row(*rows)], **fields}
        return self.remote.call(codes.HEART_BEAT, {}, json_blob(body))

    def pull_fields(self, topic: str, queue: int = 0, offset: int = 0, **fields: Any) -> dict[str, Any]:
        """Return the fields of a pull that is not held."""
        return {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subVersion": 0,
            **fields,
        }

    def pull(self, topic: str, queue: int = 0, offset: int = 0, **fields: Any) -> RemotingFrame:
        """Send a pull and return its answer."""
        return self.remote.call(codes.PULL_MESSAGE, self.pull_fields(topic, queue, offset, **fields))

    def committed(self, topic: str, queue: int = 0, **fields: Any) -> RemotingFrame:
        """Ask for the group's committed offset."""
        wanted = {"consumerGroup": self.group, "topic": topic, "queueId": queue, **fields}
        return self.remote.call(codes.QUERY_CONSUMER_OFFSET, wanted)

    def commit(self, topic: str, offset: int, queue: int = 0) -> RemotingFrame:
        """Commit an offset."""
        wanted = {"consumerGroup": self.group, "topic": topic, "queueId": queue, "commitOffset": offset}
        return self.remote.call(codes.UPDATE_CONSUMER_OFFSET, wanted)

    def listed(self) -> list[str]:
        """Return the ids of the group's clients; none if the broker knows no client."""
        answer = self.remote.call(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        if answer.code != codes.SUCCESS:
            return []
        return sorted(fastjson.decode(bytes(answer.body))["consumerIdList"])

    def leave(self) -> RemotingFrame:
        """Leave the group."""
        return self.remote.call(codes.UNREGISTER_CLIENT, {"clientID": self.client_id, "consumerGroup": self.group})

    def lock(self, topic: str, *queues: int, code: int = codes.LOCK_BATCH_MQ) -> list[int]:
        """Lock queues; return those that are held now."""
        rows = [{"brokerName": "flintmq", "queueId": queue, "topic": topic} for queue in queues]
        answer = self.remote.call(
            code, {}, json_blob({"clientId": self.client_id, "consumerGroup": self.group, "mqSet": rows})
        )
        assert answer.code == codes.SUCCESS, answer.remark
        if code != codes.LOCK_BATCH_MQ:
            return []
        return sorted(row["queueId"] for row in fastjson.decode(bytes(answer.body))["lockOKMQSet"])
