"""What a call of a function that a program hands over would do: run it, or only make something that is to be run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeGuard


def is_coroutine_function(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Return whether a call only makes a coroutine: also of a method, a partial and an object with such a call."""
    return _is(inspect.iscoroutinefunction, function)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Return whether a call only makes a generator, or an asynchronous one."""
    return _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a function in an error."""
    function = _unwrapped(function)
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    function = _unwrapped(function)
    return kind(function) or kind(type(function).__call__)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
