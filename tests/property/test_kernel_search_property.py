"""The search for the next sound record against its plain twin."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import search as kernel
from tests.property.test_kernel_dispatch_property import damages, sentinels, stretches, tails
from tests.twins import search as twin
from tests.twins.arrays import examples, fenced, room
from tests.twins.log import Queues


def check_search(log: bytes, at: int, end: int, file_base: int, store_ms_min: int, sentinel: int) -> None:
    array, parts = fenced(log, sentinel=sentinel), room(kernel.PARTS, np.int64, sentinel)
    found = kernel.find_record(array.array, at, end, file_base, store_ms_min, parts.array)
    assert array.intact
    assert parts.intact
    assert found == twin.find_record(log, at, end, file_base, store_ms_min)


@given(stretches(), tails, sentinels, st.data())
@examples(60)
def test_the_next_sound_record_equals_the_twins(
    stretch: tuple[bytes, int, int, Queues], tail: bytes, sentinel: int, data: st.DataObject
) -> None:
    log, at, file_base, _ = stretch
    log += tail
    begin = data.draw(st.integers(at, len(log)))
    end = data.draw(st.integers(begin, len(log)))
    store_ms_min = data.draw(st.sampled_from([0, 0, 1, 1_700_000_000_000, 2**62]))
    check_search(log, begin, end, file_base, store_ms_min, sentinel)


@given(stretches(), st.integers(0, 2**32 - 1), sentinels)
@examples(40)
def test_damaged_records_are_skipped_like_the_twin(
    stretch: tuple[bytes, int, int, Queues], seed: int, sentinel: int
) -> None:
    log, at, file_base, _ = stretch
    chance = random.Random(seed)
    for _, damaged in zip(range(5), damages(log, seed), strict=False):
        begin = min(at + chance.randrange(3), len(damaged))
        check_search(damaged, begin, len(damaged), file_base, 0, sentinel)
