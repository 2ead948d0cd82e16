"""The asyncio client: ``Producer``, ``Consumer``, ``PushConsumer`` and ``Admin``, with the names, arguments and results
of the synchronous ones.

    async with Producer("127.0.0.1:10911") as producer:
        receipt = await producer.send(Message("orders", b"…", keys=["o-1"]))
    async with Consumer("127.0.0.1:10911") as consumer:
        async for message in consumer.iter("orders", from_="earliest", until="latest"):
            print(message.keys, message.body)

``Message``, results and errors are those of ``flintmq.client``. It runs on the caller's event loop, and requires no
more than the synchronous client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .admin import Admin
from .consumer import Consumer
from .producer import Producer, SendFuture

if TYPE_CHECKING:
    from ..groups.push.aio_consumer import PushConsumer
    from ..groups.transactions.aio_producer import Transaction, TransactionProducer

__all__ = ["Admin", "Consumer", "Producer", "PushConsumer", "SendFuture", "Transaction", "TransactionProducer"]

_HOMES = {
    "PushConsumer": "..groups.push.aio_consumer",
    "Transaction": "..groups.transactions.aio_producer",
    "TransactionProducer": "..groups.transactions.aio_producer",
}


def __getattr__(name: str) -> Any:
    """Import the clients that talk to the broker from a thread on first use, because they bring in the synchronous
    client's connection."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
