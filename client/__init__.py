"""The client. ``Producer`` sends messages, ``Consumer`` reads and finds them, ``Admin`` manages topics.

    with Producer("127.0.0.1:10911") as producer:
        receipt = producer.send(Message("orders", b"…", keys=["o-1"], tags="eu"))
    with Consumer("127.0.0.1:10911") as consumer:
        for message in consumer.iter("orders", from_="earliest", until="latest"):
            print(message.keys, message.body)

``flintmq.client.aio`` has the same three for asyncio. The client requires only msgpack; it uses lz4 and zstandard if
they are installed. See ``client/README.md``.
"""

from __future__ import annotations

from ..protocol.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__)  # the names are in __init__.pyi
