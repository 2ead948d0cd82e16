"""Prometheus's text format, parsed by Prometheus's own library."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from flintmq.broker.latency import BOUNDS_S, Latencies
from flintmq.broker.metrics.catalog import Metric
from flintmq.broker.metrics.collector import Exposition, labels

GAUGE = Metric("flintmq_test_bytes", "gauge", "what a test says", ("topic", "kind"))
HISTOGRAM = Metric("flintmq_test_seconds", "histogram", "how long a test took", ("command",))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")), st.text("ab\\n\"'{},= \n"))
def test_any_label_value_comes_back_as_it_was(topic: str, kind: str) -> None:
    out = Exposition()
    out.add(GAUGE, [(labels(GAUGE.labels, (topic, kind)), 1)])
    (family,) = text_string_to_metric_families(out.text().decode())
    assert [sample.labels for sample in family.samples] == [{"topic": topic, "kind": kind}]


@pytest.mark.parametrize("value", [0, 1, -1, 2**53, 2**63, 0.1, 1e-9, 1e300, math.inf])
def test_any_figure_comes_back_as_it_was(value: float) -> None:
    out = Exposition()
    out.add_one(Metric("flintmq_test", "gauge", "a figure"), value)
    (family,) = text_string_to_metric_families(out.text().decode())
    assert [sample.value for sample in family.samples] == [float(value)]


def test_a_histogram_adds_its_buckets_up() -> None:
    latencies = Latencies()
    latencies.observe(BOUNDS_S[0], 2)
    latencies.observe(BOUNDS_S[3])
    latencies.observe(100.0)
    out = Exposition()
    out.add_latencies(HISTOGRAM, [(("PULL",), latencies.counts, latencies.seconds)])
    (family,) = text_string_to_metric_families(out.text().decode())
    assert family.type == "histogram"
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    assert [float(sample.labels["le"]) for sample in buckets] == [*BOUNDS_S, math.inf]
    assert [sample.value for sample in buckets] == [2, 2, 2] + [3] * (len(BOUNDS_S) - 3) + [4]
    assert all(sample.labels["command"] == "PULL" for sample in family.samples)
    rest = {sample.name: sample.value for sample in family.samples if not sample.name.endswith("_bucket")}
    assert rest == {"flintmq_test_seconds_count": 4, "flintmq_test_seconds_sum": latencies.seconds}
