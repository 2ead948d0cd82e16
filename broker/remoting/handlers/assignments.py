"""QUERY_ASSIGNMENT: the share of a client that lets the broker divide the queues; and whether it pulls or pops them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....protocol.auth.permissions import ADMIN, CONSUME, GROUP, TOPIC, Need
from ....protocol.errors import InvalidParameter, NoPermission
from ....protocol.names import check_client_group
from ....protocol.remoting import fastjson
from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ...delivery.groups.consumer_clients import BROADCASTING, CLUSTERING, MESSAGE_MODELS
from ...delivery.pop.waits import ALL_QUEUES
from ...handlers.readable import check_readable
from ..audit import audit_change
from ..json_fields import json_body
from ..rules import check, sees
from .locks import queue_row

if TYPE_CHECKING:
    from ...delivery.groups.assignment import Queue
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

AVERAGE, CIRCLE = "AVG", "AVG_BY_CIRCLE"
MODES = PULL, POP = "PULL", "POP"


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
    check_readable(store.topics, topic)
    config = store.topics.get(topic)
    queues = [(topic, queue_id) for queue_id in range(config.read_queues if config is not None else 0)]
    group, mode = groups.clients.sharing(name), PULL
    if body.word("messageModel", MESSAGE_MODELS, CLUSTERING) != BROADCASTING:
        # Java compares text by its UTF-16 code units, and the clients that divide by themselves must agree.
        ids = sorted(group.clients if group is not None else (), key=lambda each: each.encode("utf-16-be"))
        share = store.groups.pop_share(name, topic)
        if share is None:
            queues = share_of(client_id, ids, queues, strategy)
        else:
            mode, queues = POP, shared_share_of(client_id, ids, queues, strategy, share)
    rows = [{"messageQueue": queue_row(gateway, queue), "mode": mode} for queue in queues]
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


def shared_share_of(client_id: str, clients: list[str], queues: list[Queue], strategy: str, share: int) -> list[Queue]:
    """Return the queues that a client pops from: all, as ``ALL_QUEUES``, or its own and those of the ``share`` next
    clients, as RocketMQ's ``allocate4Pop``."""
    if client_id not in clients or not queues:
        return []
    if share <= 0 or share >= len(clients) - 1:
        return [(queues[0][0], ALL_QUEUES)]
    at = clients.index(client_id)
    # With more clients than queues, several pop from the same one.
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    shared = [clients[(at + each) % len(clients)] for each in range(share + 1)]
    return [queue for each in shared for queue in share_of(each, clients, queues, strategy)]


def set_message_request_mode(request: RemotingRequest, groups: GroupCoordinator, store: MessageStore) -> None:
    """Let push consumers of a group pop the messages of a topic, or pull them again. It applies to those that let the
    broker divide the queues, when they ask next."""
    body = json_body(request)
    topic, name = body.text("topic"), check_client_group(body.text("consumerGroup"))
    mode, share = body.word("mode", MODES, ""), body.integer("popShareQueueNum", 0, low=-(2**31), high=2**31 - 1)
    check(request, Need((ADMIN,), GROUP, name), Need((CONSUME,), TOPIC, topic))
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise NoPermission(f"topic {topic} is a retry topic: it is always pulled")
    if not mode:
        raise InvalidParameter(f"mode must be {PULL} or {POP}")
    check_readable(store.topics, topic)
    groups.ensure_group(name)
    before, after = store.groups.pop_share(name, topic), share if mode == POP else None
    store.groups.set_pop_share(name, topic, after)
    audit_change(request, f"group {name}, topic {topic}", _shown(before), _shown(after))
    request.after_saved(request.reply)


def _shown(share: int | None) -> dict[str, object]:
    return {"mode": PULL} if share is None else {"mode": POP, "popShareQueueNum": share}


def get_message_request_mode(request: RemotingRequest, store: MessageStore) -> None:
    """Return the topics that push consumers pop, by topic and group."""
    rows: dict[str, dict[str, dict[str, object]]] = {}
    for group, topic, share in store.groups.pop_shares():
        if sees(request, GROUP, group) and sees(request, TOPIC, topic):
            row = {"consumerGroup": group, "mode": POP, "popShareQueueNum": share, "topic": topic}
            rows.setdefault(topic, {})[group] = row
    request.reply(body=fastjson.encode({"messageRequestModeMap": rows}))
