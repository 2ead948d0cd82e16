"""What can be a listener, and what one may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core.callables import is_coroutine_function, is_generator_function, name_of
from ..errors import InvalidArgument, InvalidArgumentType

_ASYNC_ADVICE = (
    "use flintmq.client.aio.PushConsumer, which awaits it, or give a plain function (def), which is called in a thread"
)


def check_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that can call it, whatever kind of function it is."""
    if listener is None:
        raise InvalidArgument("listener is missing; give a function that takes a message, or a batch with batch=")
    if not callable(listener):
        raise InvalidArgumentType(f"listener must be callable, not {type(listener).__name__}")
    if is_generator_function(listener):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a generator function: a call would run nothing of it; give a function "
            "without yield"
        )
    found: Callable[[Any], Any] = listener
    return found


def check_plain_listener(listener: Any) -> Callable[[Any], Any]:
    """Return the listener of a consumer that calls it in threads; raise ``InvalidArgument`` if it is to be awaited."""
    found = check_listener(listener)
    if is_coroutine_function(found):
        raise InvalidArgument(
            f"listener {name_of(listener)} is a coroutine function (async def), and this consumer would never await "
            f"what it returns: {_ASYNC_ADVICE}"
        )
    return found


def check_returned(returned: Any) -> None:
    """Raise if a listener returned what nobody runs: then it has not handled its message."""
    if returned is None or not (
        inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    ):
        return
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    raise InvalidArgumentType(
        f"the listener returned {_article(type(returned).__name__)}, which nobody runs here, so nothing was handled: "
        f"{_ASYNC_ADVICE}"
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
