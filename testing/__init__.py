"""Brokers for tests: a pytest plug-in, and the brokers that it starts. See ``docs/testing.md``.

pytest imports this package in every run of everyone who has FlintMQ installed, so it imports nothing by itself.

==================  =========================================================================================
``plugin``          the options and fixtures of the plug-in
``aio_fixtures``    the fixtures of the asyncio clients, registered if a plug-in for asyncio is there
``session_broker``  the broker of a test session: of its own, shared by the workers of pytest-xdist, or given
``keeper``          the process that keeps the shared broker until its last user has ended
``started_broker``  ``StartedBroker``: any broker as a process of its own, which the scripts use too; ``LocalBroker``:
                    one with small files and, by default, a temporary store
``broker_handle``   ``BrokerHandle``: the actions of tests on any broker
==================  =========================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker_handle import BrokerHandle as BrokerHandle
    from .broker_handle import BrokerNotOwned as BrokerNotOwned
    from .broker_handle import LagRemains as LagRemains
    from .started_broker import SMALL_FILES as SMALL_FILES
    from .started_broker import BrokerFailed as BrokerFailed
    from .started_broker import LocalBroker as LocalBroker
    from .started_broker import StartedBroker as StartedBroker

_HOMES = {
    "BrokerHandle": "broker_handle",
    "BrokerNotOwned": "broker_handle",
    "LagRemains": "broker_handle",
    "BrokerFailed": "started_broker",
    "StartedBroker": "started_broker",
    "SMALL_FILES": "started_broker",
    "LocalBroker": "started_broker",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    return value
