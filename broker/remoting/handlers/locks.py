"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that one client of a group consumes in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ....protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ....protocol.names import check_client_group
from ....protocol.remoting import fastjson
from ..json_fields import json_body
from ..rules import check

if TYPE_CHECKING:
    from ...delivery.groups.assignment import Queue
    from ...delivery.groups.consumer_clients import ConsumerClients
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

QUEUES_MAX = 8_192
"""Maximum number of queues in a request."""


def lock_batch_mq(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Lock queues for a live client of a group; return those that it holds now.

    Only existing queues can be locked. A client that the broker does not know gets no lock; it asks again, and sends
    heartbeats meanwhile.
    """
    group, client_id, wanted = _decode(request, groups)
    queues = []
    if _is_live(groups.clients, group, client_id):
        queues = [queue for queue in wanted if _exists(store, queue)]
    held = groups.clients.locks.lock(group, client_id, queues)
    request.reply(body=fastjson.encode({"lockOKMQSet": queue_rows(gateway, held)}))


def unlock_batch_mq(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Release those of the queues that the client holds."""
    group, client_id, queues = _decode(request, groups)
    groups.clients.locks.unlock(group, client_id, queues)
    request.reply()


def _decode(request: RemotingRequest, groups: GroupCoordinator) -> tuple[str, str, list[Queue]]:
    """Return group, client and queues of a request whose user may consume for the group, and has the client."""
    body = json_body(request)
    group, client_id = check_client_group(body.text("consumerGroup")), body.text("clientId")
    check(request, Need((CONSUME,), GROUP, group))
    groups.clients.owners.check(client_id, request.peer.user_name)
    rows = body.objects("mqSet", QUEUES_MAX)
    queues = [(row.text("topic"), row.integer("queueId", low=0, high=2**31 - 1)) for row in rows]
    check(request, *(Need((CONSUME,), TOPIC, topic) for topic in dict.fromkeys(topic for topic, _ in queues)))
    return group, client_id, list(dict.fromkeys(queues))


def _is_live(clients: ConsumerClients, group: str, client_id: str) -> bool:
    found = clients.sharing(group)
    return found is not None and client_id in found.clients


def _exists(store: MessageStore, queue: Queue) -> bool:
    config = store.topics.get(queue[0])
    return config is not None and queue[1] < config.read_queues


def queue_rows(gateway: RemotingGateway, queues: Iterable[Queue]) -> list[dict[str, object]]:
    """Return queues as RocketMQ's ``MessageQueue``."""
    return [queue_row(gateway, queue) for queue in queues]


def queue_row(gateway: RemotingGateway, queue: Queue) -> dict[str, object]:
    """Return a queue as RocketMQ's ``MessageQueue``."""
    return {"brokerName": gateway.broker_name, "queueId": queue[1], "topic": queue[0]}
