"""The kernel that derives a fragment's units and keys: the same hash as the plain one, the same units as dispatch."""

from __future__ import annotations

import numpy as np
import pytest

from flintmq.broker.kernels.archive import xxh64
from flintmq.protocol.storage.archive import keys


@pytest.mark.parametrize("size", [*range(70), 1_000])
def test_a_kernel_hashes_as_the_plain_code_does(size: int) -> None:
    text = np.random.default_rng(size).integers(0, 256, size + 8, np.uint8)
    # A kernel's lengths are NumPy's integers while it runs interpreted.
    (length,) = np.array([size])
    assert xxh64(text, length) & 0xFFFFFFFFFFFFFFFF == keys.xxh64(text[:size].tobytes())
