"""What a Python worker of Spark needs to be quick: done once in each, when its first task has read or written."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settling() -> Iterator[None]:
    """The work of a task. What the first one in a process imported is kept out of garbage collections afterwards.

    PySpark's workers collect after every task. With pandas, PyArrow and Numba in memory that takes 40 to 50 ms, which
    is most of a small micro-batch; nothing of it is ever garbage.
    """
    try:
        yield
    finally:
        _settle()


@functools.cache
def _settle() -> None:
    gc.collect()
    gc.freeze()
