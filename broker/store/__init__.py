"""The store: Apache RocketMQ's files, written, recovered and read. No asyncio, no sockets.

It imports each name on first use, so that a user of one name need not import the whole store.
"""

from __future__ import annotations

from ...protocol.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__)  # the names are in __init__.pyi
