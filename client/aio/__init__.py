"""The asyncio client: ``Producer``, ``Consumer`` and ``Admin`` with the names, arguments and results of the sync ones.

    async with Producer("127.0.0.1:10911") as producer:
        receipt = await producer.send(Message("orders", b"…", keys=["o-1"]))
    async with Consumer("127.0.0.1:10911") as consumer:
        async for message in consumer.iter("orders", from_="earliest", until="latest"):
            print(message.keys, message.body)

``Message``, results and errors are those of ``flintmq.client``. Runs on whatever loop the caller runs, and needs
nothing beyond what the sync client needs.
"""

from .admin import Admin
from .consumer import Consumer
from .producer import Producer, SendFuture

__all__ = ["Admin", "Consumer", "Producer", "SendFuture"]
