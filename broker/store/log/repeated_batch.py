"""Batches of one producer that differ only in a few numbers: the kernel's arguments are prepared once."""

from __future__ import annotations

import numpy as np

from ...kernels import produce_plan
from .produce_batch import FRAME_RECORDS_BYTES_MAX


class RepeatedBatch:
    """The arguments of the produce kernel for batches like the last one of a CommitLog.

    ``numbers`` and ``texts``: those of the last batch, which are copied. ``record_overhead_bytes``: upper bound of a
    record's bytes besides its body and properties of its own.
    """

    __slots__ = ("numbers", "record_overhead_bytes", "texts", "values")

    def __init__(self, numbers: np.ndarray, texts: np.ndarray, record_overhead_bytes: int) -> None:
        self.numbers = numbers.copy()
        self.numbers[produce_plan.N_RECORDS_MAX] = FRAME_RECORDS_BYTES_MAX
        self.texts = texts[: numbers[produce_plan.N_STORE_HOST_END]].copy()
        self.values = memoryview(self.numbers.data)
        """View of ``numbers`` that takes Python integers: cheaper than NumPy's assignment."""
        common_bytes = self.values[produce_plan.N_COMMON_END] - self.values[produce_plan.N_COMMON_AT]
        self.record_overhead_bytes = record_overhead_bytes + common_bytes
