"""Remembering what was worked out of texts that clients send over and over, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CHARS_MAX = 512
"""Of longer texts nothing is remembered: a thousand of the longest, each different, took hundreds of MiB for good."""


def remembered(count: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """A decorator: what the function returned for the last ``count`` texts of up to ``CHARS_MAX`` characters is not
    worked out again. What it raises is."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = functools.lru_cache(maxsize=count)(function)

        @functools.wraps(function)
        def call(text: str) -> T:
            return cached(text) if len(text) <= CHARS_MAX else function(text)

        return call

    return decorate
