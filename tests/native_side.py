"""One of two paired brokers, whose client speaks FlintMQ's protocol."""

from __future__ import annotations

from typing import Any

from flintmq.broker.net.connection import ClientConnection
from flintmq.protocol.commands import DELETE_TOPIC_IN_BROKER, HELLO, PROTOCOL_VERSION, UPDATE_AND_CREATE_TOPIC, Command
from flintmq.protocol.frames import REQUEST, FrameParser, encode_head
from tests.paired_brokers import Side

TOPICS = ("orders", "payments", "returns")
CHANGES = ("delete", "read only", "writable", "one queue")


class NativeSide(Side):
    """A broker whose client speaks FlintMQ's protocol."""

    def make_connection(self) -> ClientConnection:
        """Return a new connection to the broker."""
        return ClientConnection(self.broker, ("127.0.0.1", 4000), lambda connection: None)

    async def prepare(self) -> None:
        """Say HELLO, and create the topics."""
        await self.feed([_request(HELLO, 1, {"protocol": PROTOCOL_VERSION, "client": "test"})], 1)
        for number, topic in enumerate(TOPICS, 2):
            await self.feed([_request(UPDATE_AND_CREATE_TOPIC, number, {"topic": topic, **_queues(2)})], number)

    def answers(self) -> list[Any]:
        """Return the responses."""
        return _frames(self.wire.sent)

    def pulled(self) -> dict[str, tuple[int, int, int]]:
        """Return the frames, messages and bytes that were pulled, by topic."""
        counted = self.broker.counters.pulled.by_topic
        return {name: (each.frames, each.messages, each.bytes) for name, each in counted.items()}


def _request(command: Command, request_id: int, fields: dict[str, Any]) -> bytes:
    return encode_head(REQUEST, command.code, request_id, fields, 0)


def _queues(count: int) -> dict[str, int]:
    return {"read_queues": count, "write_queues": count}


def _frames(sent: bytearray) -> list[tuple[int, int, dict[str, Any], bytes]]:
    parser = FrameParser()
    frames = []
    for at in range(0, len(sent), 4096):
        piece = sent[at : at + 4096]
        parser.writable()[: len(piece)] = piece
        parser.received(len(piece))
        while (frame := parser.next_frame()) is not None:
            frames.append((frame.request_id, frame.code, frame.fields, bytes(frame.body)))
    return frames


def change_topic(topic: str, change: str, request_id: int) -> bytes:
    """Return the request that makes one of ``CHANGES``."""
    if change == "delete":
        return _request(DELETE_TOPIC_IN_BROKER, request_id, {"topic": topic})
    fields: dict[str, Any] = {"topic": topic, **_queues(1 if change == "one queue" else 2)}
    return _request(UPDATE_AND_CREATE_TOPIC, request_id, {**fields, "perm": 4 if change == "read only" else 6})
