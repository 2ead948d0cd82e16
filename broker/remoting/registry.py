"""The table of requests: the handler of each code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

from ...protocol.remoting import codes
from .handlers import clients, offsets, produce, pull, routes
from .request import RemotingRequest

RemotingHandler: TypeAlias = Callable[[RemotingRequest], None]

ROWS: tuple[tuple[int, Callable[..., None]], ...] = (
    (codes.SEND_MESSAGE, produce.send_message),
    (codes.SEND_MESSAGE_V2, produce.send_message),
    (codes.SEND_BATCH_MESSAGE, produce.send_message),
    (codes.PULL_MESSAGE, pull.pull_message),
    (codes.LITE_PULL_MESSAGE, pull.pull_message),
    (codes.QUERY_CONSUMER_OFFSET, offsets.query_consumer_offset),
    (codes.UPDATE_CONSUMER_OFFSET, offsets.update_consumer_offset),
    (codes.SEARCH_OFFSET_BY_TIMESTAMP, offsets.search_offset_by_timestamp),
    (codes.GET_MAX_OFFSET, offsets.get_max_offset),
    (codes.GET_MIN_OFFSET, offsets.get_min_offset),
    (codes.HEART_BEAT, clients.heart_beat),
    (codes.UNREGISTER_CLIENT, clients.unregister_client),
    (codes.GET_CONSUMER_LIST_BY_GROUP, clients.get_consumer_list_by_group),
    (codes.GET_ROUTEINFO_BY_TOPIC, routes.get_routeinfo_by_topic),
    (codes.GET_BROKER_CLUSTER_INFO, routes.get_broker_cluster_info),
)


def with_parts(handler: Callable[..., None]) -> RemotingHandler:
    """Return ``handler`` as a function of the request alone: it gets the gateway, or parts of the broker, by name."""
    names = list(inspect.signature(handler).parameters)[1:]
    if not names:
        return handler

    def call(request: RemotingRequest) -> None:
        broker = request.broker
        handler(request, *[request.gateway if name == "gateway" else getattr(broker, name) for name in names])

    return call


HANDLERS: dict[int, RemotingHandler] = {code: with_parts(handler) for code, handler in ROWS}
"""Handlers by request code."""
