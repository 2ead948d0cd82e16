"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: translated into FlintMQ's PRODUCE, which then does the rest."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgpack

from ....protocol.commands import LAYOUT_ROWS, ProduceRequest
from ....protocol.errors import MessageIllegal
from ....protocol.remoting import codes
from ....protocol.storage.delivery import (
    PROPERTY_HALF,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SECONDS,
    PROPERTY_TIMER_DELIVER_MS,
)
from ....protocol.storage.ids import UNIQUE_PREFIX_DIGITS
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    PROPERTY_DELAY,
    PROPERTY_UNIQ_KEY,
)
from ...handlers.produce import append_frame
from ..request import RemotingRequest

DEFAULT_TOPIC = "TBW102"
"""Topic whose route means that producers may create topics."""
KEPT_SYS_FLAG = 0x703
"""Bits of a send's ``sysFlag`` that are stored: compression and its kind."""
UNIQUE_KEY_DIGITS = 32
ROUTED_PROPERTIES = frozenset(
    {
        PROPERTY_HALF,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_DELAY,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SECONDS,
    }
)
"""Properties that decide where a message goes: FlintMQ expects them among the common properties of a frame."""
_BROKER_PROPERTIES = frozenset((*FORBIDDEN_PROPERTIES, "POP_CK"))
_BATCH_HEAD = struct.Struct(">iiiii")
_I16 = struct.Struct(">h")


class SendFields(NamedTuple):
    """The fields of a send, whichever of its three codes it has."""

    group: str
    topic: str
    queue: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: str
    default_topic: str
    default_queues: int
    batch: bool


_V1 = (
    "producerGroup",
    "topic",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "defaultTopic",
    "defaultTopicQueueNums",
    "batch",
)  # fmt: skip - one line for a name would hide that both rows have the same columns
_V2 = ("a", "b", "e", "f", "g", "h", "i", "c", "d", "m")


def decode_send(request: RemotingRequest) -> SendFields:
    """Return the fields of a send. Raises ``InvalidParameter``."""
    names = _V1 if request.received.code == codes.SEND_MESSAGE else _V2
    group, topic, queue, sys_flag, born, flag, properties, default_topic, default_queues, batch = names
    ext = request.ext
    return SendFields(
        ext.text(group),
        ext.text(topic),
        ext.integer(queue, low=-1, high=2**31 - 1),
        ext.integer(sys_flag, 0, high=2**31 - 1),
        ext.integer(born, 0, low=-(2**63)),
        ext.integer(flag, 0, low=-(2**31), high=2**31 - 1),
        ext.text(properties, ""),
        ext.text(default_topic, ""),
        ext.integer(default_queues, 4, low=-(2**31), high=2**31 - 1),
        request.received.code == codes.SEND_BATCH_MESSAGE or ext.flag(batch),
    )


def split_properties(text: str) -> dict[str, str]:
    """Return the pairs of a properties string without those that lack a name or a value: honest clients send some."""
    pairs = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value and name not in _BROKER_PROPERTIES and not name.startswith(FORBIDDEN_PROPERTY_PREFIX):
            pairs[name] = value
    return pairs


def send_message(request: RemotingRequest) -> None:
    """Append one message, or the messages of a batch; answer when they are as safe as the flush policy demands."""
    send = decode_send(request)
    if send.batch:
        send_batch(request, send)
        return
    properties = split_properties(send.properties)
    common = "".join(f"{name}\x01{properties.pop(name)}\x02" for name in ROUTED_PROPERTIES & properties.keys())
    prefix, first = "", 0
    own_key = properties.get(PROPERTY_UNIQ_KEY, "")
    if len(own_key) == UNIQUE_KEY_DIGITS and own_key.isalnum():
        try:
            first = int(own_key[UNIQUE_PREFIX_DIGITS:], 16)
            int(own_key[:UNIQUE_PREFIX_DIGITS], 16)
        except ValueError:
            pass
        else:
            # A client keeps the key when it sends a message again, so the broker can store it once.
            prefix = own_key[:UNIQUE_PREFIX_DIGITS]
            del properties[PROPERTY_UNIQ_KEY]
    row = (bytes(request.received.body), properties, send.sys_flag & KEPT_SYS_FLAG, send.flag)
    params = ProduceRequest(
        topic=send.topic,
        count=1,
        queue=send.queue,
        layout=LAYOUT_ROWS,
        common=common,
        unique_prefix=prefix,
        unique_first=first,
        born_ms=max(send.born_ms, 0),
    )
    request.translate(bytearray(msgpack.packb(row)))
    append_frame(request, params)


def send_batch(request: RemotingRequest, send: SendFields) -> None:
    """Append the messages of a batch, all or none."""
    if send.sys_flag & SysFlag.COMPRESSED:
        raise MessageIllegal("a batch that is compressed as a whole is not supported; compress its messages, or none")
    rows = bytearray()
    count = 0
    packer = msgpack.Packer()
    view = request.received.body
    at = 0
    while at < len(view):
        flag, body, properties, at = _batch_message(view, at, count)
        rows += packer.pack((body, properties, 0, flag))
        count += 1
    if not count:
        raise MessageIllegal("the batch has no message")
    params = ProduceRequest(
        topic=send.topic, count=count, queue=send.queue, layout=LAYOUT_ROWS, born_ms=max(send.born_ms, 0)
    )
    request.translate(rows)
    append_frame(request, params)


def _batch_message(view: memoryview, at: int, index: int) -> tuple[int, bytes, dict[str, str], int]:
    """Return flag, body and properties of the message at ``at`` of a batch, and the position after it."""
    try:
        size, _, _, flag, body_bytes = _BATCH_HEAD.unpack_from(view, at)
        body_at = at + _BATCH_HEAD.size
        (properties_bytes,) = _I16.unpack_from(view, body_at + max(body_bytes, 0))
        properties_at = body_at + body_bytes + _I16.size
        end = properties_at + properties_bytes
        if body_bytes < 0 or properties_bytes < 0 or end != at + size or end > len(view):
            raise MessageIllegal(f"message {index} of the batch: its sizes do not add up; nothing was written")
        properties = split_properties(bytes(view[properties_at:end]).decode())
    except (struct.error, UnicodeDecodeError):
        raise MessageIllegal(f"message {index} of the batch is cut or not UTF-8; nothing was written") from None
    return flag, bytes(view[body_at : body_at + body_bytes]), properties, end
