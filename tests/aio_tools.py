"""Event loops and small steps for tests of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import uvloop

from flintmq.client.aio import Consumer
from flintmq.client.core.consume.batch import StoredMessage

if TYPE_CHECKING:
    pass

RunInLoop: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


async def read(consumer: Consumer, topic: str) -> list[StoredMessage]:
    return [message async for message in consumer.iter(topic, until="latest")]


async def turns(count: int) -> None:
    """Let the loop make ``count`` turns."""
    for _ in range(count):
        await asyncio.sleep(0)
