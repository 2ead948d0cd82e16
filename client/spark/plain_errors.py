"""Hides the stack of Spark's Python worker for errors that a user can fix: the user sees only the error's text."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...protocol.errors import FlintError

P = ParamSpec("P")
T = TypeVar("T")


def hide_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that Spark calls in a worker: hide the stack of a ``FlintError``, and of no other error."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FlintError:
            _hide_stack()
            raise

    return call


def hide_traceback_each(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a generator function in the same way as ``hide_traceback``."""

    @functools.wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
        except FlintError:
            _hide_stack()
            raise

    return iterate


def _hide_stack() -> None:
    # PySpark reads this switch when it reports an error. The worker ends after that, so the switch hides nothing else.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
