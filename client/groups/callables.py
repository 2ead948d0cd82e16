"""Kinds of functions that applications pass in: does a call run the function, or only create something to be run?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeGuard


def is_coroutine_function(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Return whether a call only makes a coroutine; also works for methods, partials and callable objects."""
    return _is(inspect.iscoroutinefunction, function)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Return whether a call only makes a generator or an asynchronous generator."""
    return _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for error messages."""
    function = _unwrapped(function)
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    function = _unwrapped(function)
    return kind(function) or kind(type(function).__call__)


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
