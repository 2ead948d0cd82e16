"""Live clients of all producer groups, and the subscription of a consumer group to one topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import GROUP
from ....protocol.names import check_client_group
from ....protocol.remoting.fastjson import encode
from ..rules import sees
from .consumer_groups import connection_row, subscription_row

if TYPE_CHECKING:
    from ...delivery.groups.producer_groups import ProducerGroups
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest


def get_all_producer_info(request: RemotingRequest, producer_groups: ProducerGroups) -> None:
    """Return the live producers that the user may see, by producer group."""
    now_ms = int(time.time() * 1000)
    table: dict[str, list[dict[str, Any]]] = {}
    for group, client_id, remote in producer_groups.members():
        if sees(request, GROUP, group):
            row = connection_row(client_id, remote)
            # The tool prints the address without its first character, as Java writes a socket's.
            own = {"lastUpdateTimestamp": now_ms, "remoteIP": f"/{row.pop('clientAddr')}"}
            table.setdefault(group, []).append(row | own)
    request.reply(body=encode({"data": table}))


def query_subscription_by_consumer(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return what the live clients of a group want of a topic; nothing, if they do not subscribe to it."""
    group, topic = check_client_group(request.ext.text("group")), request.ext.text("topic")
    clients = gateway.consumers.groups.get(group)
    found = clients.subscriptions.get(topic) if clients is not None else None
    subscription = subscription_row(found) if found is not None else None
    request.reply(body=encode({"group": group, "subscriptionData": subscription, "topic": topic}))
