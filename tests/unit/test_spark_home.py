"""A SPARK_HOME of links: created where it helps, repaired, and left alone where changing it could do harm."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")

from flintmq.client.spark.sessions import ARCHIVE, home_without_archive  # noqa: E402 - PySpark may be missing

PACKAGE = Path(pyspark.__file__).resolve().parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}


def test_it_has_everything_but_the_archive(environment: dict[str, str], tmp_path: Path) -> None:
    home = home_without_archive(environment)
    assert home is not None
    assert home.parent == tmp_path / "flintmq"
    assert (PACKAGE / ARCHIVE).exists()
    assert not (home / ARCHIVE).exists()
    for name in ("jars", "bin"):
        assert (home / name).resolve() == PACKAGE / name
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert home_without_archive(environment) == home


def test_links_that_lead_elsewhere_are_repaired(environment: dict[str, str], tmp_path: Path) -> None:
    home = home_without_archive(environment)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path)
    (home / "bin").unlink()
    assert home_without_archive(environment) == home
    assert (home / "jars").resolve() == PACKAGE / "jars"
    assert (home / "bin").resolve() == PACKAGE / "bin"
    assert {path.name for path in home.iterdir()} <= {path.name for path in PACKAGE.iterdir()}


@pytest.mark.parametrize("variable", ["SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_the_users_own_setting_is_left_alone(environment: dict[str, str], variable: str) -> None:
    assert home_without_archive({**environment, variable: "/elsewhere"}) is None


def test_the_interpreter_itself_may_be_named(environment: dict[str, str]) -> None:
    assert home_without_archive({**environment, "PYSPARK_PYTHON": sys.executable}) is not None


def test_no_home_is_made_if_workers_would_not_find_pyspark(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("site.getsitepackages", list)
    assert home_without_archive(environment) is None
    assert home_without_archive({**environment, "PYTHONPATH": str(PACKAGE.parent)}) is not None


def test_sparks_own_home_is_used_if_no_folder_takes_links(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setattr("flintmq.client.spark.sessions.cache_parents", lambda _: [in_the_way])
    assert home_without_archive(environment) is None


def test_a_folder_that_went_is_made_again(environment: dict[str, str]) -> None:
    home = home_without_archive(environment)
    assert home is not None
    shutil.rmtree(home)
    assert home_without_archive(environment) == home
    assert (home / "jars").is_dir()
