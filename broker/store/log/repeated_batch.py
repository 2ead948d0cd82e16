"""Batches of one producer that differ only in a few numbers: the kernel's arguments are prepared once."""

from __future__ import annotations

import numpy as np

from ...kernels import produce_plan
from .produce_batch import FRAME_RECORDS_BYTES_MAX


class RepeatedBatch:
    """The arguments of the produce kernel for batches like the last one of a CommitLog.

    ``numbers`` and ``texts``: those of the last batch, which are copied. ``record_overhead_bytes``: upper bound of a
    record's bytes besides its body and properties of its own. ``common_bytes_max``: size of the longest common
    properties that ``set_common`` will get; 0 if they stay as they are.
    """

    __slots__ = ("_common_at", "numbers", "record_overhead_bytes", "texts", "values")

    def __init__(
        self, numbers: np.ndarray, texts: np.ndarray, record_overhead_bytes: int, common_bytes_max: int
    ) -> None:
        self.numbers = numbers.copy()
        self.numbers[produce_plan.N_RECORDS_MAX] = FRAME_RECORDS_BYTES_MAX
        self._common_at = int(numbers[produce_plan.N_STORE_HOST_END])
        self.texts = np.zeros(self._common_at + common_bytes_max, np.uint8)
        self.texts[: self._common_at] = texts[: self._common_at]
        self.values = memoryview(self.numbers.data)
        """View of ``numbers`` that takes Python integers: cheaper than NumPy's assignment."""
        common_bytes = self.values[produce_plan.N_COMMON_END] - self.values[produce_plan.N_COMMON_AT]
        self.record_overhead_bytes = record_overhead_bytes + max(common_bytes, common_bytes_max)

    def set_common(self, common: bytes) -> None:
        """Replace the common properties by others of at most ``common_bytes_max`` bytes."""
        begin, end = self._common_at, self._common_at + len(common)
        self.texts.data[begin:end] = common
        self.values[produce_plan.N_COMMON_AT] = begin
        self.values[produce_plan.N_COMMON_END] = end
