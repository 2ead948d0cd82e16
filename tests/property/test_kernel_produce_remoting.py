"""The produce kernel on what RocketMQ's clients send: batches, and bodies alone, against the twin."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import produce as plan
from tests.property.test_kernel_produce_property import check, many_seeds, sentinels
from tests.twins import remoting_frames as frames
from tests.twins.arrays import examples, fenced
from tests.twins.produce import Batch


@given(frames.batches(), st.binary(max_size=20), st.integers(0, 50), sentinels)
@examples(200)
def test_a_sound_batch_becomes_the_twins_records(batch: Batch, before: bytes, position: int, sentinel: int) -> None:
    assert check(batch, before, position, sentinel)


@given(frames.batches(frames.any_property_texts), sentinels)
@examples(300)
def test_properties_of_any_kind_are_kept_dropped_or_refused_as_the_twin_says(batch: Batch, sentinel: int) -> None:
    check(batch, sentinel=sentinel)


@given(frames.batches(), many_seeds, sentinels)
@examples(60)
def test_a_tampered_batch_is_accepted_only_if_it_is_still_valid(batch: Batch, seeds: list[int], sentinel: int) -> None:
    for seed in seeds:
        check(frames.tampered(batch, seed), sentinel=sentinel)


@given(frames.bodies(), st.binary(max_size=20), sentinels)
@examples(60)
def test_a_body_alone_becomes_a_record_with_the_common_properties(batch: Batch, before: bytes, sentinel: int) -> None:
    assert check(batch, before, sentinel=sentinel)


@given(frames.batches(), many_seeds)
@examples(60)
def test_whole_messages_of_a_batch_are_counted(batch: Batch, seeds: list[int]) -> None:
    for body in (batch.body, *(frames.tampered(batch, seed).body for seed in seeds)):
        array = fenced(body)
        count, at = plan.count_batch(array.array, 0, len(body))
        assert array.intact
        assert 0 <= at <= len(body)
        if body == batch.body:
            assert (count, at) == (batch.count, len(body))
        elif at == len(body):
            assert count * plan.BATCH_MESSAGE_BYTES_MIN <= len(body)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_cut_batch_is_refused(cut: int) -> None:
    body = frames.pack_message(b"body", b"KEYS\x01k\x02", 7)
    batch = Batch(body, 1, 3)
    assert check(batch)
    assert not check(dataclasses.replace(batch, body=body[:-cut]))
