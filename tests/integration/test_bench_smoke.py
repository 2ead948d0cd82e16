"""The bench runs and produces figures. What they are is the machine's matter, never a test's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "run"
CASES = {
    "produce": {"bulk", "bulk_cpu", "many", "made"},
    "connections": {"async", "sync", "async_sdk", "sync_sdk"},
    "aio-sends": {"async", "sync"},
    "aio-consumer": {"iter", "body", "bodies"},
    "pull": {"body", "bodies", "raw", "iter"},
}
TIMEOUT_S = 240.0


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_every_case_that_is_asked_for_gives_its_figures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    json_file, table_file = tmp_path / "figures.json", tmp_path / "table.md"
    names = [argument for name in CASES for argument in ("--case", name)]

    done = run_bench(
        "--quick", "--runs", "1", *names, "--dir", str(stores), "--json", str(json_file), "--markdown", str(table_file)
    )

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


def test_an_unknown_case_is_refused_and_the_known_ones_are_named() -> None:
    done = run_bench("--case", "no-such-case")

    assert done.returncode == 2
    assert "no-such-case" in done.stderr
    assert "end-to-end" in done.stderr
