"""QUERY_ASSIGNMENT: the share of a client that lets the broker divide the queues; and modes that are not offered."""

from __future__ import annotations

from ....protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ....protocol.errors import InvalidParameter, NoPermission
from ....protocol.names import check_client_group
from ....protocol.remoting import fastjson
from ...delivery.groups.assignment import Queue
from ...delivery.groups.consumer_clients import BROADCASTING
from ...delivery.groups.coordinator import GroupCoordinator
from ...handlers.pull import check_readable
from ...store import MessageStore
from ..gateway import RemotingGateway
from ..json_fields import json_body
from ..request import RemotingRequest
from ..rules import check
from .locks import queue_row

AVERAGE, CIRCLE = "AVG", "AVG_BY_CIRCLE"


def query_assignment(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Return the queues of a topic that a client of a group consumes: its share, or all of them for broadcasting.

    A client that waits, or that is not known, gets none.
    """
    body = json_body(request)
    topic, name = body.text("topic"), check_client_group(body.text("consumerGroup"))
    client_id, strategy = body.text("clientId"), body.text("strategyName", AVERAGE)
    if strategy not in (AVERAGE, CIRCLE):
        raise InvalidParameter(f"the broker divides queues by {AVERAGE} or {CIRCLE}, not by {strategy[:80]!r}")
    check(request, Need((CONSUME,), GROUP, name), Need((CONSUME,), TOPIC, topic))
    check_readable(request.broker, topic)
    config = store.topics.get(topic)
    queues = [(topic, queue_id) for queue_id in range(config.read_queues if config is not None else 0)]
    group = groups.clients.sharing(name)
    if body.text("messageModel", "") != BROADCASTING:
        # Java compares text by its UTF-16 code units, and the clients that divide by themselves must agree.
        ids = sorted(group.clients if group is not None else (), key=lambda each: each.encode("utf-16-be"))
        queues = share_of(client_id, ids, queues, strategy)
    rows = [{"messageQueue": queue_row(gateway, queue), "mode": "PULL"} for queue in queues]
    request.reply(body=fastjson.encode({"messageQueueAssignments": rows}))


def share_of(client_id: str, clients: list[str], queues: list[Queue], strategy: str) -> list[Queue]:
    """Return the queues of one client: consecutive ones, of which the first clients get one more, or in turns."""
    if client_id not in clients:
        return []
    at, count = clients.index(client_id), len(clients)
    if strategy == CIRCLE:
        return queues[at::count]
    each, more = divmod(len(queues), count)
    first = at * each + min(at, more)
    return queues[first : first + each + (at < more)]


def refuse_request_mode(request: RemotingRequest) -> None:
    """Refuse SET_MESSAGE_REQUEST_MODE and GET_MESSAGE_REQUEST_MODE: push consumers pull, and never pop."""
    raise NoPermission("the broker does not let push consumers pop messages; they pull them")
