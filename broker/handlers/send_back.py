"""CONSUMER_SEND_MSG_BACK: store again the messages that a consumer could not handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import CONSUME, TOPIC
from ...protocol.commands import PHYSICAL_OFFSET_STRUCT, SendMessageBackAnswer, SendMessageBackRequest
from ...protocol.errors import DelayIllegal, InvalidParameter
from ...protocol.fields import decode_fields
from ...protocol.names import check_name
from ...protocol.storage.delivery import DELAY_LEVEL_MAX
from ..delivery.redelivery import FailedMessages, RetryPolicy
from .pop import receipts_in

if TYPE_CHECKING:
    from ..delivery.pop.service import PopService
    from ..delivery.redelivery import RetryService
    from ..requests.request import Request


async def consumer_send_msg_back(request: Request, retries: RetryService, pops: PopService) -> None:
    """Store the messages of the request again, all or none; respond once that is acknowledged.

    Of popped messages, those whose receipts are valid.
    """
    params = decode_fields(SendMessageBackRequest, request.frame.fields)
    check_name("group", params.group)
    if params.delay_level > DELAY_LEVEL_MAX:
        raise DelayIllegal(f"delay_level must be at most {DELAY_LEVEL_MAX}, got {params.delay_level}")
    policy = RetryPolicy(params.delay_level, params.retry_times_max, params.member)
    # Only popped messages come with their topic: the body has receipts instead of offsets.
    if params.topic:
        receipts = receipts_in(request, pops, params.group, params.topic, params.count)
        request.deferred.check_may_wait()
        valid, retried, dead = await pops.redeliver(receipts, params.reason_of_each(), policy)
        request.respond(SendMessageBackAnswer(retried=retried, dead=dead), bytes(valid))
        return
    body = bytes(request.frame.body)
    if len(body) != params.count * PHYSICAL_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {params.count * PHYSICAL_OFFSET_STRUCT.size} bytes of body for {params.count} physical "
            f"offsets, got {len(body)}"
        )
    offsets = [offset for (offset,) in PHYSICAL_OFFSET_STRUCT.iter_unpack(body)]
    messages = FailedMessages(params.group, offsets, policy, params.reason_of_each(), params.epoch)
    retried, dead = await retries.redeliver(request, messages, consumed_by(request))
    request.respond(SendMessageBackAnswer(retried=retried, dead=dead))


def consumed_by(request: Request) -> Callable[[str], bool] | None:
    """Return a predicate: may the user consume messages of this topic? None: all. For any thread."""
    if request.peer.access is None:
        return None
    permissions = request.peer.access.permissions
    return lambda topic: permissions.allows(CONSUME, TOPIC, topic)
