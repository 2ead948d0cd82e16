"""Latency buckets, and the quantiles computed from them."""

from __future__ import annotations

import pytest

from flintmq.broker.latency import BOUNDS_S, Latencies, quantile


def test_the_bounds_grow() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    assert BOUNDS_S[0] == 1e-5
    assert BOUNDS_S[-1] == 10.0


@pytest.mark.parametrize("number", range(len(BOUNDS_S)))
def test_a_bound_belongs_to_the_bucket_that_it_ends(number: int) -> None:
    latencies = Latencies()
    latencies.observe(BOUNDS_S[number])
    latencies.observe(BOUNDS_S[number] * 1.0001)
    assert latencies.counts[number] == 1
    assert latencies.counts[number + 1] == 1


def test_several_are_counted_at_once() -> None:
    latencies = Latencies()
    latencies.observe(0.25, 4)
    latencies.observe(0.0)
    latencies.observe(1000.0)
    assert sum(latencies.counts) == 6
    assert latencies.counts[-1] == 1
    assert latencies.seconds == pytest.approx(1001.0)


def test_a_quantile_is_in_the_bucket_that_holds_it() -> None:
    latencies = Latencies()
    for _ in range(98):
        latencies.observe(0.00025)
    latencies.observe(0.0025, 2)
    assert 0.0002 < quantile(latencies.counts, 0.5) <= 0.0003
    assert 0.002 < quantile(latencies.counts, 0.99) <= 0.003
    assert quantile(latencies.counts, 1.0) == 0.003


def test_quantiles_of_nothing_and_of_the_endless_are_numbers() -> None:
    latencies = Latencies()
    assert quantile(latencies.counts, 0.99) == 0.0
    latencies.observe(1e9)
    assert quantile(latencies.counts, 0.99) == BOUNDS_S[-1]
