"""The figures of ``status``, ``top``, ``check`` and ``bench``, and the live screen at any size."""

from __future__ import annotations

import io
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flintmq.client.cli.commands.bench import LatencyHistogram
from flintmq.client.cli.commands.status import CRITICAL, OK, UNKNOWN, WARNING, CheckFinding
from flintmq.client.cli.top_screen import Screen, View
from flintmq.client.operator.condition import Condition, Lag
from flintmq.client.operator.rates import CounterSample, Rates, Sample, between, broker_counters
from flintmq.protocol.display import show_bytes

INFO: dict[str, Any] = {
    "name": "flintmq",
    "pid": 7,
    "flush": "sync",
    "uptime_seconds": 3600.0,
    "min_physical_offset": 1000,
    "write_offset": 5000,
    "flushed_offset": 4500,
    "reput_offset": 4000,
    "flush_p50_us": 300,
    "flush_p99_us": 2000,
    "disk_free_bytes": 10**10,
    "disk_total_bytes": 10**11,
    "disk_runway_seconds": 7200,
    "produced_messages": 1000,
    "produced_bytes": 100_000,
    "pulled_messages": 10,
    "pulled_bytes": 1000,
    "errors_SYSTEM_BUSY": 3,
}


class TestCondition:
    def test_figures_are_derived(self) -> None:
        condition = Condition(INFO)
        assert condition.log_bytes == 4000
        assert condition.flush_behind_bytes == 500
        assert condition.reput_behind_bytes == 1000
        assert condition.index_behind_bytes == 1000
        assert condition.flush_p99_seconds == 0.002
        assert condition.disk_free_share == 0.1
        assert condition.disk_runway_seconds == 7200
        assert condition.errors == {"SYSTEM_BUSY": 3}

    def test_a_figure_that_an_older_broker_does_not_report_is_unknown(self) -> None:
        condition = Condition({"write_offset": 5})
        assert condition.log_bytes is None
        assert condition.flush_p99_seconds is None
        assert condition.disk_free_share is None
        assert condition.disk_runway_seconds is None
        assert condition.write_refusal == ""

    def test_without_flushes_and_writes_there_is_no_figure(self) -> None:
        condition = Condition({"flush_p99_us": 0, "disk_runway_seconds": -1})
        assert condition.flush_p99_seconds is None
        assert condition.disk_runway_seconds is None


class TestLatencies:
    @given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=500))
    def test_percentiles_use_the_nearest_rank(self, values: list[float]) -> None:
        latencies = LatencyHistogram(values)
        assert latencies.percentile(50) == statistics.median_low(values)
        assert latencies.percentile(100) == latencies.greatest == max(values)
        assert sum(value <= (latencies.percentile(90) or 0) for value in values) >= 0.9 * len(values)

    @given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=500))
    def test_every_latency_is_in_the_first_bucket_that_it_fits(self, values: list[float]) -> None:
        buckets = LatencyHistogram(values).buckets()
        assert sum(bucket.latencies for bucket in buckets) == len(values)
        assert buckets[0].latencies
        assert buckets[-1].latencies
        below = 0.0
        for bucket in buckets:
            assert bucket.below > below
            if below:
                assert bucket.latencies == sum(below <= value < bucket.below for value in values)
            below = bucket.below

    def test_no_latencies_have_no_figures(self) -> None:
        assert LatencyHistogram().summary() == {"p50": None, "p90": None, "p99": None, "p99_9": None, "max": None}
        assert LatencyHistogram().buckets() == []


def _sample(at: float, groups: dict[tuple[str, str], tuple[int, int]] | None = None, **figures: Any) -> Sample:
    lags = {key: (committed, Lag(lag)) for key, (committed, lag) in (groups or {}).items()}
    ends = figures.pop("ends", {})
    condition = Condition(INFO | figures)
    return Sample(condition, broker_counters(condition, at), CounterSample(at, ends), ends, lags)


class TestRates:
    def test_rates_are_differences_divided_by_time(self) -> None:
        before = _sample(10.0, {("g", "orders"): (5, 15)}, ends={"orders": 20, "old": 5})
        after = _sample(
            12.0,
            {("g", "orders"): (25, 5), ("new", "orders"): (0, 30)},
            ends={"orders": 30, "old": 5, "new": 9},
            produced_messages=1500,
            errors_SYSTEM_BUSY=7,
        )
        rates = between(before, after)
        assert rates.per_second["produced_messages"] == 250
        assert rates.per_second["pulled_messages"] == 0
        assert rates.per_second["errors"] == 2
        assert [(row.topic, row.produced_per_second) for row in rates.topics] == [("orders", 5), ("new", 0), ("old", 0)]
        assert [(row.group, row.committed_per_second, row.lag) for row in rates.groups] == [
            ("new", 0, 30),
            ("g", 10, 5),
        ]

    def test_a_restarted_broker_counts_from_zero(self) -> None:
        rates = between(_sample(0.0), _sample(2.0, pid=8, produced_messages=40))
        assert rates.per_second["produced_messages"] == 20

    def test_so_does_one_whose_process_has_the_same_id_as_in_a_container(self) -> None:
        rates = between(_sample(0.0, produced_messages=500), _sample(2.0, produced_messages=40))
        assert rates.per_second["produced_messages"] == 20


@pytest.mark.parametrize(
    ("value", "low", "state"),
    [
        (5, False, OK),
        (11, False, WARNING),
        (21, False, CRITICAL),
        (None, False, UNKNOWN),
        (30, True, OK),
        (19, True, CRITICAL),
    ],
)
def test_a_figure_beyond_its_limits_is_bad(value: float | None, low: bool, state: int) -> None:
    assert CheckFinding("lag", value, show_bytes, 10 if not low else 25, 20, low).state == state


def test_a_figure_without_limits_is_never_bad() -> None:
    assert CheckFinding("lag", None, show_bytes, None, None).state == OK


def _screen(columns: int, lines: int, topics: int = 30, **figures: Any) -> list[str]:
    names = {f"a-topic-with-a-long-name-{number:03}\x1b[2J": 10_000_000 * number for number in range(topics)}
    groups = {(f"group-{number}", name): (0, end) for number, (name, end) in enumerate(names.items())}
    rates: Rates = between(_sample(0.0), _sample(1.0, groups, ends=names, **figures))
    screen = Screen("127.0.0.1:10911", 1.0)
    screen.rates = rates
    stream = io.StringIO()
    console = Console(file=stream, width=columns, height=lines, force_terminal=False, markup=False, highlight=False)
    console.print(screen)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("lines", [8, 24, 50])
def test_the_live_screen_fits_its_terminal(columns: int, lines: int) -> None:
    shown = _screen(columns, lines)
    assert max(map(len, shown)) <= columns
    assert len(shown) <= lines
    assert "\x1b" not in "".join(shown)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_live_screen_does_not_truncate_figures(columns: int) -> None:
    text = "\n".join(_screen(columns, 40))
    for wanted in ("p99 2.00 ms", "queues 1.00 kB", "10.0 GB (10%)", "290,000,000", "2 h"):
        assert wanted in text


def _view_screen(view: View, lines: int = 24, topics: int = 60) -> str:
    rates = between(_sample(0.0), _sample(1.0, ends={f"topic-{number:03}": 60 - number for number in range(topics)}))
    screen = Screen("127.0.0.1:10911", 1.0)
    screen.rates, screen.view = rates, view
    stream = io.StringIO()
    Console(file=stream, width=80, height=lines, force_terminal=False).print(screen)
    return stream.getvalue()


def test_the_live_screen_says_how_much_does_not_fit() -> None:
    text = _view_screen(View())
    shown = text.count("topic-0")
    assert 10 < shown < 24
    assert f"… topics: {60 - shown} more below (↑ ↓)" in text
    assert "more" not in _view_screen(View(), topics=5)
    assert len(_view_screen(View()).splitlines()) <= 24


def test_keys_scroll_and_sort_the_live_screen() -> None:
    view = View()
    first = _view_screen(view)
    assert "topic-000" in first
    for key in ("\x1b[B", "j"):
        view.press(key)
    assert "… topics: 2 more above, " in _view_screen(view)
    view.press("\x1b[6~")
    assert "topic-002" not in _view_screen(view)
    view.press("G")
    last = _view_screen(view)
    assert "topic-059" in last
    assert "more below" not in last
    view.press("\x1b[A")
    assert "1 more below" in _view_screen(view)
    view.press("g")
    assert _view_screen(view).splitlines()[1:] == first.splitlines()[1:]
    view.press("s")
    view.press("s")
    assert "s: by name" in _view_screen(view)
    view.press("\t")
    view.press("j")
    assert view.first == {"topics": 0, "groups": 1}
    for key in ("x", "", "\x1b"):
        view.press(key)
    assert view.first == {"topics": 0, "groups": 1}


def test_the_order_of_the_live_screen_can_be_chosen() -> None:
    rates = between(_sample(0.0, ends={"a": 0, "b": 100, "c": 9}), _sample(1.0, ends={"a": 5, "b": 100, "c": 10}))
    view = View()
    orders = []
    for _ in range(3):
        orders.append("".join(row.topic for row in view.topics(rates)))
        view.press("s")
    assert orders == ["acb", "bca", "abc"]


def test_the_live_screen_says_why_messages_are_refused() -> None:
    assert "refuses messages: the disk is full" in "\n".join(_screen(80, 24, write_refusal="the disk is full"))


def test_the_live_screen_is_complete_for_an_empty_or_older_broker() -> None:
    assert "no topics yet" in "\n".join(_screen(80, 24, topics=0))
    screen = Screen("127.0.0.1:10911", 1.0)
    condition = Condition({"name": "old", "pid": 1})
    empty = Sample(condition, broker_counters(condition, 0.0), CounterSample(0.0, {}), {}, {})
    screen.rates = between(empty, empty)
    stream = io.StringIO()
    Console(file=stream, width=80, height=24).print(screen)
    assert "queues –" in stream.getvalue()
