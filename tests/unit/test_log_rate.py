"""Rate limit of log lines of one kind."""

from __future__ import annotations

from flintmq.client.endpoint import LogRate


def test_a_burst_passes_and_the_next_line_counts_omitted_ones() -> None:
    now = 0.0
    rate = LogRate(3, 30.0, lambda: now)
    assert [rate.admit() for _ in range(5)] == ["", "", "", None, None]
    now = 9.9
    assert rate.admit() is None
    now = 10.0
    assert rate.admit() == " (3 lines like this were left out)"
    now = 20.0
    assert [rate.admit(), rate.admit()] == ["", None]


def test_a_long_silence_allows_no_more_than_one_burst() -> None:
    now = 0.0
    rate = LogRate(2, 1.0, lambda: now)
    now = 1e6
    assert [rate.admit() for _ in range(3)] == ["", "", None]
