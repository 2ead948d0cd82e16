"""The bench runs and produces figures. Their values depend on the machine, so the tests do not check them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

RUN = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "run"
CASES = {
    "produce": {"bulk", "bulk_cpu", "many", "made"},
    "connections": {"async", "sync", "async_sdk", "sync_sdk"},
    "aio-sends": {"async", "sync"},
    "aio-consumer": {"iter", "body", "bodies"},
    "pull": {"body", "bodies", "raw", "iter"},
    "arrow": {"all", "all_cpu", "two", "two_cpu"},
    "push-latency": {"async_p50", "async_p99", "async_max", "sync_p50", "sync_p99", "sync_max"},
    "group-consume": {"batch", "message"},
    "work-queue": {"handled_shared", "handled_apart", "handled_plain", "handled_single"},
    "tracing": {"single_off", "single_own", "many_own", "bulk_own", "listener_own", "batches_sdk", "bare"},
    "delayed": {"async", "sync", "async_beside", "sync_beside"},
    "rebalance": {"join", "join_moves", "leave", "leave_moves", "kill", "kill_moves"},
    "archive": {"bulk", "behind", "direct", "direct_ratio", "cold", "key", "gets", "day_gets"},
    "ways": {"own_64_turns", "own_64_general", "cold_turns", "gateway_64_repeated"},
    "tail": {"send_p99.99_flintmq", "query_p50_flintmq", "group_p99_flintmq", "stalls", "stall_max"},
}
SPARK_CASES = {
    "spark-batch": {"noop", "noop_cpu", "parquet", "parquet_cpu", "archive", "archive_cpu"},
    "spark-stream": {"stream", "stream_cpu"},
    "spark-latency": {"p50", "p99"},
    "spark-decode": {"decode"},
}
OF_KAFKA = {
    "spark-batch": {"noop_kafka", "noop_ratio", "parquet_kafka", "parquet_ratio"},
    "spark-stream": {"stream_kafka", "stream_ratio"},
    "spark-latency": {"p50_kafka", "p99_kafka", "p50_ratio"},
    "spark-decode": set(),
}
WITHOUT_PYSPARK = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "pyspark" else found(name, *package)
from bench.__main__ import main
sys.exit(main())
"""
TIMEOUT_S = 240.0
SPARK_TIMEOUT_S = 900.0


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    timeout = SPARK_TIMEOUT_S if "spark" in arguments else TIMEOUT_S
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=timeout, env=os.environ)


@pytest.mark.long(seconds=120)
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_every_requested_case_gives_its_figures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    json_file, table_file = tmp_path / "figures.json", tmp_path / "table.md"
    names = [argument for name in CASES for argument in ("--case", name)]
    files = ["--dir", str(stores), "--json", str(json_file), "--markdown", str(table_file)]

    done = run_bench("--quick", "--alone", "--runs", "1", *names, *files)

    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(json_file.read_text())
    assert figures["quick"] is True
    assert {case["name"]: case["failure"] for case in figures["cases"]} == dict.fromkeys(CASES, "")
    for case in figures["cases"]:
        assert CASES[case["name"]] <= {measure["name"] for measure in case["measures"]}
        for measure in case["measures"]:
            assert len(measure["runs"]) == 1
            assert measure["median"] >= 0
            assert f"| {measure['title']} |" in table_file.read_text()
    assert done.stdout == table_file.read_text()
    assert list(stores.iterdir()) == []


@pytest.mark.long(seconds=45)
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_the_growth_case_gives_tables_and_a_plot_and_says_what_it_left_out(tmp_path: Path) -> None:
    stores, json_file, plot_file = tmp_path / "stores", tmp_path / "figures.json", tmp_path / "growth.svg"
    files = ["--dir", str(stores), "--json", str(json_file), "--plot", str(plot_file)]

    done = run_bench("--quick", "--runs", "1", "--case", "growth", *files)

    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads(json_file.read_text())["cases"]
    assert case["skipped"] == "100,000,000 messages: only with --full"
    names = {measure["name"] for measure in case["measures"]}
    assert {"messages_10000000_start_killed", "topics_10000_create", "connections_5000_sync_cpu"} <= names
    for title in ("messages stored", "topics", "connections, one send at a time each"):
        assert f"\n| {title} | " in done.stdout
    root = ElementTree.parse(plot_file).getroot()
    assert len(root.findall(".//{*}circle")) > 60
    assert list(stores.iterdir()) == []


def test_an_unknown_case_is_refused_and_the_known_cases_are_listed() -> None:
    done = run_bench("--case", "no-such-case")

    assert done.returncode == 2
    assert "no-such-case" in done.stderr
    assert "end-to-end" in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(SPARK_TIMEOUT_S + 10)
@pytest.mark.skipif("FLINTMQ_BENCH_SPARK" not in os.environ, reason="takes minutes; set FLINTMQ_BENCH_SPARK to run it")
def test_the_spark_cases_give_figures_for_both_brokers(tmp_path: Path) -> None:
    json_file = tmp_path / "figures.json"

    done = run_bench("spark", "--quick", "--runs", "1", "--dir", str(tmp_path / "stores"), "--json", str(json_file))

    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(json_file.read_text())
    assert {case["name"]: case["failure"] for case in figures["cases"]} == dict.fromkeys(SPARK_CASES, "")
    for case in figures["cases"]:
        name, measures = case["name"], {measure["name"] for measure in case["measures"]}
        assert SPARK_CASES[name] <= measures
        assert OF_KAFKA[name] <= measures or case["skipped"].startswith("Kafka's figures: ")
    assert list((tmp_path / "stores").iterdir()) == []


@pytest.mark.spark
@pytest.mark.long(seconds=15)
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_the_decode_case_decodes_every_row(tmp_path: Path) -> None:
    json_file = tmp_path / "figures.json"

    done = run_bench("--quick", "--runs", "1", "--case", "spark-decode", "--json", str(json_file))

    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads(json_file.read_text())["cases"]
    assert SPARK_CASES["spark-decode"] == {measure["name"] for measure in case["measures"]}


def test_without_pyspark_its_cases_are_skipped_with_a_remedy(tmp_path: Path) -> None:
    json_file = tmp_path / "figures.json"

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYSPARK, "spark", "--quick", "--json", str(json_file)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(RUN.parents[1])},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(json_file.read_text())["cases"]
    assert {case["name"] for case in cases} == SPARK_CASES.keys()
    for case in cases:
        assert "./scripts/bench/run spark" in case["skipped"]
        assert case["skipped"] in done.stdout
        assert case["measures"] == []
