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

from ...protocol.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__)  # the names are in __init__.pyi
