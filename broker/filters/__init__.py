"""SQL92 filters: what a consumer wants of a topic, by the properties of its messages.

``compile_filter(text).matches(properties)`` is all that the broker needs of it. The grammar is RocketMQ's; where its
evaluator and SQL part, ``protocol/README.md`` says which way is taken.
"""

from __future__ import annotations

from .compiling import Filter, compile_filter

__all__ = ["Filter", "compile_filter"]
