"""How an error that a user can mend reaches that user: its text alone, without the stack of Spark's Python worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...protocol.errors import FlintError

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """What Spark calls in a worker: of a ``FlintError`` only type and text are shown, of any other error all."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FlintError:
            _hide_stack()
            raise

    return call


def plainly_each(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same for what is called to be iterated."""

    @functools.wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
        except FlintError:
            _hide_stack()
            raise

    return iterate


def _hide_stack() -> None:
    # PySpark's switch, read when it reports an error; the worker ends with that, so nothing else is hidden by it.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
