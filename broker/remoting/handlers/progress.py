"""Progress of groups as RocketMQ's administration asks for it: how far behind in time, and all groups at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ....protocol.errors import TopicNotExist
from ....protocol.names import check_client_group
from ....protocol.remoting.fastjson import ObjectMap, encode
from ....protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX
from ...handlers.offsets import sees_progress
from ...handlers.readable import check_readable
from ...store import WouldBlock
from ..bodies import message_queue
from .routes import reply_json

if TYPE_CHECKING:
    from ...delivery.groups.assignment import Queue
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest


def query_consume_time_span(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return the store times of a topic's first and last message, and of the last that a group has consumed, by queue.

    ``delayTime``: age of the next message to consume in ms; missing if there is none.
    """
    ext = request.ext
    topic, group = ext.text("topic"), check_client_group(ext.text("group"))
    check_readable(store.topics, topic)
    committed = store.consumer_offsets.committed(group, topic)
    now_ms = int(time.time() * 1000)

    def read(hot: bool) -> list[dict[str, Any]]:
        if hot:
            raise WouldBlock  # four records a queue
        rows = []
        for queue_id, low, high, last_ms in store.queue_reads.topic_stats(topic, hot=False):
            stored_ms = store.queue_reads.stored_ms
            first_ms = store.queue_reads.earliest_store_time(topic, queue_id, hot=False)
            consumed = committed.get(queue_id, 0)
            consumed_ms = first_ms
            if consumed > low:
                consumed_ms = stored_ms(topic, queue_id, consumed - 1, hot=False) or -1
            row: dict[str, Any] = {
                "messageQueue": message_queue(gateway.broker_name, topic, queue_id),
                "minTimeStamp": first_ms,
                "maxTimeStamp": last_ms,
                "consumeTimeStamp": consumed_ms,
            }
            next_ms = stored_ms(topic, queue_id, max(consumed, low), hot=False) if consumed < high else None
            rows.append(row | ({"delayTime": max(now_ms - next_ms, 0)} if next_ms is not None else {}))
        return rows

    request.after_dispatch(lambda: request.read(read, lambda rows: reply_json(request, {"consumeTimeSpanSet": rows})))


def get_broker_consume_stats(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Return the progress of all groups that the user may see; of ordered topics alone if ``isOrder`` says so."""
    only_ordered = request.ext.flag("isOrder")
    wanted: dict[str, dict[str, dict[int, int]]] = {}
    for group, topic, row, from_first in groups.all_progress():
        config = store.topics.get(topic)
        is_wanted = config is not None and (config.order or not only_ordered) and (row or from_first)
        if is_wanted and not topic.startswith(DEAD_LETTER_TOPIC_PREFIX) and sees_progress(request, group, topic):
            wanted.setdefault(group, {})[topic] = row

    def read(hot: bool) -> bytes:
        if hot:
            raise WouldBlock
        listed, total = [], 0
        for group, topics in sorted(wanted.items()):
            stats = []
            for topic, committed in sorted(topics.items()):
                table = _progress(store, gateway.broker_name, topic, committed)
                total += sum(row["brokerOffset"] - row["consumerOffset"] for _, row in table)
                stats.append({"consumeTps": 0.0, "offsetTable": table})
            listed.append({group: stats})
        return encode(
            {"brokerAddr": gateway.address, "consumeStatsList": listed, "totalDiff": total, "totalInflightDiff": 0}
        )

    request.after_dispatch(lambda: request.read(read, lambda body: request.reply(body=body)))


def _progress(store: MessageStore, broker_name: str, topic: str, committed: dict[int, int]) -> ObjectMap:
    """Return ends and progress of each queue of a topic that still exists. Blocks."""
    table = ObjectMap()
    try:
        ends = store.queue_reads.topic_stats(topic, hot=False)
    except TopicNotExist:  # deleted meanwhile
        return table
    for queue_id, low, high, _ in ends:
        row = offset_wrapper(store, (topic, queue_id), low, high, committed.get(queue_id, 0), hot=False)
        table.append((message_queue(broker_name, topic, queue_id), row))
    return table


def offset_wrapper(
    store: MessageStore, queue: Queue, low: int, high: int, committed: int, pulled: int = 0, *, hot: bool
) -> dict[str, int]:
    """Return RocketMQ's ``OffsetWrapper`` of a queue that has the offsets in ``[low, high)``. ``pulled``: the next
    offset to pull.

    RocketMQ's tools show the difference of the two ends as the lag. So that it counts what waits, progress is within
    the queue: a group reads on at ``low`` if what it has not read before that is deleted.
    """
    last_ms = store.queue_reads.stored_ms(*queue, committed - 1, hot=hot) if committed else None
    consumed = min(max(committed, low), high)
    return {
        "brokerOffset": high,
        "consumerOffset": consumed,
        "lastTimestamp": last_ms or 0,
        "pullOffset": max(consumed, pulled),
    }
