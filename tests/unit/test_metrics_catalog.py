"""The catalog of metrics, and the files that mention them: README, dashboard, alerts, compose file, unit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.app.daemon import EXIT_CONFIGURATION, EXIT_REFUSED
from flintmq.broker.metrics.catalog import METRICS

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
DASHBOARD: dict[str, Any] = json.loads((CONF / "grafana-dashboard.json").read_text(encoding="utf-8"))

SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = {metric.name + suffix: metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}
TARGET_LABELS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of buckets."""


def used(expression: str) -> list[str]:
    """Return the names of the series in a PromQL expression."""
    return re.findall(r"\b(?:flintmq|process)_[a-z_]+", re.sub(r'"[^"]*"', "", expression))


# ---- the catalog itself ----


def test_names_follow_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        assert "le" not in metric.labels, "buckets add it themselves"
        assert not metric.name.endswith(("_ms", "_us", "_kb", "_mb", "_percent")), metric.name


# ---- the dashboard ----


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_a_panel_uses_series_and_labels_that_exist(title: str, expression: str) -> None:
    names = used(expression)
    assert names, title
    assert set(names) <= SERIES.keys()
    known = TARGET_LABELS.union(*(SERIES[name].labels for name in names))
    matched = re.findall(r"(\w+)(?:=~?|!=|!~)\"", expression)
    grouped = [label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")]
    assert {*matched, *grouped} <= known
    for name in names:
        counts_up = SERIES[name].kind != "gauge"
        changes = re.search(rf"(?:rate|increase)\({name}\b", expression) is not None
        assert counts_up == changes, f"{name}: of what only grows the rate, of a gauge the value"


def test_every_metric_has_its_place_on_the_dashboard() -> None:
    shown = {SERIES[name].name for _, expression in expressions() for name in used(expression)}
    assert shown == {metric.name for metric in METRICS} - {"process_virtual_memory_bytes"}


def test_grafana_can_lay_out_the_dashboard() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_panel_asks_the_data_source_that_is_chosen() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    for variable in variables.values():
        if variable["type"] == "query":
            assert set(used(variable["definition"])) <= SERIES.keys()


# ---- the other files ----


def test_every_alert_is_about_series_that_exist() -> None:
    text = (CONF / "alerts.yml").read_text(encoding="utf-8")
    rules = re.findall(r"- alert: (\w+)\n\s+expr: (.+)\n", text)
    assert len(rules) == text.count("- alert:") >= 5
    for name, expression in rules:
        assert set(used(expression)) <= SERIES.keys(), name
        assert used(expression) or expression.startswith("up{"), name
    assert set(used(text)) <= SERIES.keys() | {"flintmq_broker"}


def test_the_unit_does_not_restart_a_hopeless_broker() -> None:
    unit = (CONF / "flintmq-broker.service").read_text(encoding="utf-8")
    assert "\nRestart=on-failure\n" in unit
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert {int(code) for code in codes.split()} == {EXIT_REFUSED, EXIT_CONFIGURATION}
    assert "\nType=notify\n" in unit
