"""RECALL_MESSAGE: a timed message that a producer takes back is never delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....protocol.commands import ProduceRequest
from ....protocol.errors import TopicNotExist
from ...delivery.routing import DAY_MS, route_recall
from ...handlers.produce import append_waiting, check_load
from ...store import LAYOUT_BODY
from ..recall import RecallRefused, split_recall_handle

if TYPE_CHECKING:
    from ...config import Settings
    from ...requests.intake import Intake
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

RECALL_BODY = b"0"
"""Body of a recall's record, as RocketMQ writes it: the properties say everything."""


def recall_message(request: RemotingRequest, gateway: RemotingGateway, intake: Intake, settings: Settings) -> None:
    """Append the recall of a timed message; answer when it is as safe as the flush policy demands.

    As with RocketMQ, a recall of a message that the broker does not have succeeds: only delivery looks for the message.
    """
    topic = request.ext.text("topic")
    check_load(request, intake, settings)
    if intake.store.topics.get(topic) is None:
        raise TopicNotExist(f"recall failed, the topic[{topic}] not exist; pass the topic that the message was sent to")
    handle = split_recall_handle(request.ext.text("recallHandle", ""))
    if handle.topic != topic:
        raise RecallRefused(
            f"recall failed, topic not match: the handle is of a message of topic {handle.topic:.200}, not of {topic}; "
            "pass the topic that the message was sent to"
        )
    if handle.broker != gateway.broker_name:
        raise RecallRefused(
            f"recall failed, broker service not available: the message is at broker {handle.broker:.200}, and this is "
            f"{gateway.broker_name}; send the recall to {handle.broker:.200}"
        )
    now_ms, max_days = intake.delays.now_ms(), settings.delivery.delay_max_days
    if handle.deliver_ms <= now_ms:
        raise RecallRefused(
            "recall failed, timestamp invalid: the time of the message has come, so it is delivered; consumers must "
            "handle it"
        )
    if handle.deliver_ms > now_ms + max_days * DAY_MS:
        raise RecallRefused(
            f"recall failed, timestamp invalid: no message is delivered later than in {max_days} days "
            "(delivery.delay_max_days); pass the handle of the answer to the send, unchanged"
        )
    request.recalled = handle.unique_key
    request.translate(bytearray(RECALL_BODY))
    params = ProduceRequest(topic=topic, count=1, queue=0, layout=LAYOUT_BODY, born_ms=now_ms)
    append_waiting(request, intake, params, 0, route_recall(topic, handle.unique_key, handle.deliver_ms))
