"""CONSUMER_SEND_MSG_BACK: a consumer could not handle a message, so the broker stores it again for its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....protocol.errors import GroupNotExist, InvalidParameter
from ....protocol.names import check_client_group
from ....protocol.storage.delivery import DEAD_LETTER_LEVEL, DELAY_LEVEL_MAX
from ...handlers.send_back import SendBack, SendBackParts, store_again

if TYPE_CHECKING:
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...delivery.writer import RecordWriter
    from ...requests.counters import Counters
    from ...store import MessageStore
    from ..request import RemotingRequest

_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1


def consumer_send_msg_back(
    request: RemotingRequest, store: MessageStore, groups: GroupCoordinator, writer: RecordWriter, counters: Counters
) -> None:
    """Store a message again for a group: for a later delivery, or as a dead letter after too many of them.

    A negative delay level makes it a dead letter at once, and one above the last level counts as the last. The id of
    the first message is found in its properties, not taken from the request.
    """
    ext = request.ext
    group = check_client_group(ext.text("group"))
    physical_offset = ext.integer("offset", low=-(2**63))
    delay_level = ext.integer("delayLevel", 0, low=_I32_MIN, high=_I32_MAX)
    times_max = ext.integer("maxReconsumeTimes", -1, low=_I32_MIN, high=_I32_MAX)
    if physical_offset < 0:
        raise InvalidParameter(f"offset is a position in the CommitLog and must not be negative, got {physical_offset}")
    if not store.groups.has(group):
        raise GroupNotExist(
            f"subscription group not exist, {group}: its clients send heartbeats first, which create it"
        )
    if not store.groups.has_retries(group):
        request.reply()
        return
    level = DEAD_LETTER_LEVEL if delay_level < 0 else min(delay_level, DELAY_LEVEL_MAX)
    parts = SendBackParts(store, groups, writer, counters)
    store_again(request, parts, SendBack(group, (physical_offset,), level, times_max, ("",)))
