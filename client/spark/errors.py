"""Errors of the Spark sources and the sink, in addition to the client's. Each says what to do."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ...protocol.errors import ConfigurationError, FlintError
from ..arrow.errors import DataLoss, InvalidOption
from ..errors import InvalidArgument

__all__ = ["DataLoss", "IncompatibleSchema", "InvalidOption", "JavaNotFound", "SparkUnavailable", "WriteFailed"]


class IncompatibleSchema(InvalidArgument):
    """A schema asks for columns, or holds columns, that the source cannot fill or the sink cannot send."""


class WriteFailed(FlintError):
    """The broker did not acknowledge rows of a task; the message says which, and why.

    A row that failed with a timeout or a lost connection may still be stored: only the response is missing.
    """


class SparkUnavailable(ConfigurationError):
    """PySpark or one of its requirements is missing or too old; the message says what to install."""


class JavaNotFound(SparkUnavailable):
    """No Java of version 17 or newer was found; the message says which places were searched and what to install."""


# ---- Hides the stack of Spark's Python worker for errors that a user can fix: the user sees only the error's
# text.

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
