"""SQL92 filters: expressions over the properties of messages, with which a consumer selects messages of a topic.

The broker needs only ``compile_filter(text).matches(properties)``. The grammar is RocketMQ's; ``protocol/README.md``
defines the behaviour in cases where RocketMQ's evaluator differs from SQL.
"""

from __future__ import annotations

from .compiler import Filter, compile_filter

__all__ = ["Filter", "compile_filter"]
