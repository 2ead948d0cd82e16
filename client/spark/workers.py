"""What a Python worker of Spark needs to be quick: done once in each, when it first reads or writes."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Keep what is imported by now out of garbage collections.

    PySpark's workers collect after every task. With pandas, PyArrow and Numba in memory that takes 40 to 50 ms, which
    is most of a small micro-batch; nothing of it is ever garbage.
    """
    gc.collect()
    gc.freeze()
