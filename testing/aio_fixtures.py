"""The fixtures of the asyncio clients, for pytest-asyncio or anyio. Like the plug-in, this imports nothing early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..client.aio import Admin, Consumer, Producer
    from .broker_handle import BrokerHandle


async def _producer(flintmq_broker: BrokerHandle) -> AsyncIterator[Producer]:
    """Return an asyncio ``Producer`` of the broker."""
    from ..client.aio import Producer

    async with Producer(flintmq_broker.address) as producer:
        yield producer


async def _consumer(flintmq_broker: BrokerHandle) -> AsyncIterator[Consumer]:
    """Return an asyncio ``Consumer`` of the broker."""
    from ..client.aio import Consumer

    async with Consumer(flintmq_broker.address) as consumer:
        yield consumer


async def _admin(flintmq_broker: BrokerHandle) -> AsyncIterator[Admin]:
    """Return an asyncio ``Admin`` of the broker."""
    from ..client.aio import Admin

    async with Admin(flintmq_broker.address) as admin:
        yield admin


def aio_fixtures(runner: str) -> ModuleType:
    """Return a plug-in with the fixtures. ``runner``: name of the plug-in that runs them; pytest-asyncio runs only
    fixtures with its own mark."""
    fixture: Any = pytest.fixture
    if runner == "asyncio":
        import pytest_asyncio

        fixture = pytest_asyncio.fixture
    made = ModuleType("flintmq_aio_fixtures")  # pytest looks for fixtures in modules and classes
    for name, function in (("producer", _producer), ("consumer", _consumer), ("admin", _admin)):
        setattr(made, f"flintmq_{name}_aio", fixture(name=f"flintmq_{name}_aio")(function))
    return made
