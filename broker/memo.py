"""A bounded cache for results that are computed from strings that clients send repeatedly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CHARS_MAX = 512
"""Results for longer texts are not cached: a thousand different texts of the maximum length would occupy hundreds of
MiB permanently."""


def remembered(count: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Return a decorator that caches a function's results for the last ``count`` texts of up to ``CHARS_MAX``
    characters. Exceptions are not cached."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = functools.lru_cache(maxsize=count)(function)

        @functools.wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= CHARS_MAX else function(text)

        return call

    return decorate
