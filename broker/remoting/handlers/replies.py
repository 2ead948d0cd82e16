"""SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2: replies to requests, passed on to the client that waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ....protocol.errors import BrokerFailure, MessageIllegal, MessageNotFound, TopicNotExist
from ....protocol.names import check_name
from ....protocol.remoting import codes
from ....protocol.remoting.command import REGION
from ....protocol.storage.record import decode_host
from ...addresses import format_address
from ..client import RemotingClient
from ..sends import PROPERTY_REGION, PROPERTY_TRACE, decode_send, join_properties, split_properties

if TYPE_CHECKING:
    from ....protocol.frames import Frame
    from ...delivery.groups.producer_groups import ProducerGroups
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest
    from ..sends import SendFields

ANSWER_S = 10.0
"""Time that the asking client has to accept the reply."""
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
"""Time at which the broker passed a reply on, ms since 1970."""


def send_reply_message(
    request: RemotingRequest, gateway: RemotingGateway, producer_groups: ProducerGroups, store: MessageStore
) -> None:
    """Pass a reply on to the client that it names; respond when that client has it. The reply is not stored."""
    send = decode_send(request.received.code, request.received.version, request.ext)
    if check_name("topic", send.topic) != gateway.reply_topic:
        raise TopicNotExist(
            f"topic[{send.topic}] is not the topic of replies of cluster {gateway.cluster}; send replies to "
            f"{gateway.reply_topic}"
        )
    properties = split_properties(send.properties)
    client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
    if client_id is None:
        raise MessageIllegal(
            f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null; it names the asking client"
        )
    asker = producer_groups.find(client_id)
    if not isinstance(asker, RemotingClient) or asker.lost:
        raise MessageNotFound(
            f"push reply message fail, channel of <{client_id}> not found. The client that asked is not connected"
        )
    if not asker.may_be_sent():
        # RocketMQ's words, in which the blank is missing.
        raise BrokerFailure(f"push reply message to {client_id}fail. The client does not read what it is sent")
    request.deferred.check_may_wait()
    fields = _fields(request, store, send, properties)
    body = bytes(request.received.body)
    _Passing(request, client_id, max(send.queue, 0)).begin(asker, fields, body)


def _fields(
    request: RemotingRequest, store: MessageStore, send: SendFields, properties: dict[str, str]
) -> dict[str, str]:
    """Return the fields of PUSH_REPLY_MESSAGE_TO_CLIENT."""
    now_ms = store.clock.now_ms()
    properties[PROPERTY_PUSH_REPLY_TIME] = str(now_ms)
    return {
        "bornHost": format_address(*request.peer.address),
        "storeHost": format_address(*decode_host(store.commitlog.store_host)),
        "storeTimestamp": str(now_ms),
        "producerGroup": send.group,
        "topic": send.topic,
        "defaultTopic": send.default_topic,
        "defaultTopicQueueNums": str(send.default_queues),
        "queueId": str(send.queue),
        "sysFlag": str(send.sys_flag),
        "bornTimestamp": str(send.born_ms),
        "flag": str(send.flag),
        "properties": join_properties(properties),
        "reconsumeTimes": str(send.reconsume_times),
        "unitMode": "false",
    }


class _Passing:
    """A reply on its way to the client that asked. ``queue``: named in the answer to the client that replied."""

    def __init__(self, request: RemotingRequest, client_id: str, queue: int) -> None:
        self._request = request
        self._client_id = client_id
        self._queue = queue
        self._done = request.later(self._passed)
        self._timer = asyncio.get_running_loop().call_later(
            ANSWER_S, self._settle, f"it did not answer in {ANSWER_S:.0f} s"
        )
        self._settled = False

    def begin(self, asker: RemotingClient, fields: dict[str, str], body: bytes) -> None:
        """Send the reply."""
        asker.send_request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body, self._answered)

    def _answered(self, frame: Frame | None) -> None:
        if frame is None:
            self._settle("its connection was lost")
        else:
            self._settle("" if frame.code == codes.SUCCESS else f"it answered with code {frame.code}")

    def _settle(self, failure: str) -> None:
        # The answer, the loss of the connection and the timer may all come; the first one decides.
        if self._settled:
            return
        self._settled = True
        self._timer.cancel()
        error = BrokerFailure(f"push reply message to {self._client_id}fail. {failure}") if failure else None
        self._done(error)

    def _passed(self) -> None:
        self._request.reply(
            {
                "msgId": "0",
                "queueId": str(self._queue),
                "queueOffset": "0",
                PROPERTY_REGION: REGION,
                PROPERTY_TRACE: "true",
            }
        )
