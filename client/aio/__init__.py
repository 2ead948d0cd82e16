"""The asyncio client: ``Producer``, ``Consumer``, ``PushConsumer`` and ``Admin``, with the names, arguments and results
of the sync ones.

    async with Producer("127.0.0.1:10911") as producer:
        receipt = await producer.send(Message("orders", b"…", keys=["o-1"]))
    async with Consumer("127.0.0.1:10911") as consumer:
        async for message in consumer.iter("orders", from_="earliest", until="latest"):
            print(message.keys, message.body)

``Message``, results and errors are those of ``flintmq.client``. Runs on whatever loop the caller runs, and needs
nothing beyond what the sync client needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .admin import Admin
from .consumer import Consumer
from .producer import Producer, SendFuture

if TYPE_CHECKING:
    from ..push.tasks import PushConsumer

__all__ = ["Admin", "Consumer", "Producer", "PushConsumer", "SendFuture"]


def __getattr__(name: str) -> Any:
    """Group consumers are imported when they are first used: they bring the sync client's connection along."""
    if name != "PushConsumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("..push.tasks", __name__).PushConsumer
