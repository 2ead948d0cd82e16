"""Half messages and their ends over a plain connection, and producers that the broker checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from flintmq.protocol.commands import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    GET_TRANSACTIONS,
    HEART_BEAT,
    PHYSICAL_OFFSET_STRUCT,
)
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.frames import REQUEST, RESPONSE, Frame, encode_frame
from flintmq.protocol.storage.record import Record, decode_record
from tests.conftest import Answer, RawConnection

PREFIX = "7F00000104D2A1B2C3D4"
GROUP = "payers"


@dataclass(frozen=True)
class Half:
    """A half message as its producer knows it."""

    transaction_id: str
    queue_offset: int
    physical_offset: int


def transaction_id(number: int) -> str:
    """Return the unique key of the message with this counter."""
    return f"{PREFIX}{number:012X}"


def common(group: str = GROUP) -> str:
    """Return the common properties of half messages."""
    return f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"


def send_half(connection: RawConnection, topic: str, body: bytes, number: int, **fields: Any) -> Half:
    """Produce one half message with that counter."""
    fields = {"common": common(), "unique_prefix": PREFIX, "unique_first": number, **fields}
    answer = connection.produce(topic, body, **fields).raise_for_error()
    physical_offset = PHYSICAL_OFFSET_STRUCT.unpack(answer.body)[0]
    return Half(transaction_id(number), answer.fields["queue_offset"], physical_offset)


def end(connection: RawConnection, half: Half | str, *, commit: bool = True, group: str = GROUP) -> Answer:
    """End a transaction, identified by its half message or only by its id."""
    fields: dict[str, Any] = {"group": group, "commit": commit}
    if isinstance(half, str):
        fields["transaction_id"] = half
    else:
        fields |= {
            "transaction_id": half.transaction_id,
            "half_queue_offset": half.queue_offset,
            "half_physical_offset": half.physical_offset,
        }
    return connection.call(END_TRANSACTION, fields)


def listed(connection: RawConnection, *, parked: bool = False, **fields: Any) -> list[dict[str, Any]]:
    """Return one page of the open or the parked transactions."""
    answer = connection.call(GET_TRANSACTIONS, {"parked": parked, **fields}).raise_for_error()
    return list(msgpack.unpackb(answer.body))


def messages(connection: RawConnection, topic: str, queues: int = 4) -> list[Record]:
    """Return all records of a topic."""
    found = []
    for queue in range(queues):
        offset = 0
        while (answer := connection.pull(topic, queue, offset).raise_for_error()).fields.get("count"):
            at = 4 * answer.fields["count"]
            while at < len(answer.body):
                record = decode_record(answer.body, at)
                found.append(record)
                at += len(record.encode())
            offset = answer.fields["next_offset"]
    return found


class CheckedProducer:
    """A producer of a group on its own connection that answers the broker's checks."""

    def __init__(self, connection: RawConnection, member: str, group: str = GROUP) -> None:
        self.connection = connection
        connection.call(HEART_BEAT, {"group": group, "member": member, "kind": "producer"}).raise_for_error()

    def wait_for_check(self) -> Frame:
        """Return the broker's next request; its body stays valid until the one after it."""
        parser = self.connection.parser
        while (frame := parser.next_frame()) is None:
            count = self.connection.sock.recv_into(parser.writable())
            assert count, "the broker closed the connection"
            parser.received(count)
        assert (frame.kind, frame.code) == (REQUEST, CHECK_TRANSACTION_STATE.code)
        return frame

    def answer(self, frame: Frame, outcome: str) -> None:
        """Answer how a transaction ended."""
        self.connection.send_bytes(encode_frame(RESPONSE, SUCCESS, frame.request_id, {"outcome": outcome}))


def wait_until(holds: Callable[[], bool], connection: RawConnection) -> None:
    """Poll the broker until a condition holds that it brings about by itself."""
    while not holds():
        listed(connection, max_count=1)
