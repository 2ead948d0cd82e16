"""Checks of listeners and their return values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgument, InvalidArgumentType
from ..callables import is_coroutine_function, is_generator_function, name_of

_ASYNC_ADVICE = (
    "use flintmq.client.aio.PushConsumer, which awaits it, or pass a plain function (def), which is called in a thread"
)


def check_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that can call any kind of function; raise if it is missing or unusable."""
    if listener is None:
        raise InvalidArgument("listener is missing; pass a function that takes a message, or a batch with batch=")
    if not callable(listener):
        raise InvalidArgumentType(f"listener must be callable, not {type(listener).__name__}")
    if is_generator_function(listener):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a generator function: calling it would run none of its code; pass a "
            "function without yield"
        )
    found: Callable[[Any], Any] = listener
    return found


def check_plain_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that calls it in threads; raise ``InvalidArgument`` if it is to be awaited."""
    found = check_listener(listener)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a coroutine function (async def), but this consumer would never await "
            f"its result: {_ASYNC_ADVICE}"
        )
    return found


def check_returned(returned: Any) -> None:
    """Raise if a listener returned an awaitable or a generator: this consumer does not run it, so nothing was
    handled."""
    if returned is None or not (
        inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    ):
        return
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    raise InvalidArgumentType(
        f"the listener returned {_article(type(returned).__name__)}, which this consumer does not run, so nothing was "
        f"handled: {_ASYNC_ADVICE}"
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
