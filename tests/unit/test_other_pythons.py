"""Other Pythons as parts of ``scripts/test-long``: which are found, and what is said if one cannot have a package."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import ANY

import pytest

from flintmq.scripts.lib import other_pythons
from flintmq.scripts.lib.interpreters import NoInterpreter, interpreters

RELEASE = ".".join(map(str, sys.version_info[:3]))


def program(path: Path, text: str) -> Path:
    """Write a shell program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_one_of_each_minor_version_is_found_and_the_oldest_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'usr'}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert interpreters() == {}
    program(tmp_path / "bin" / "python3.98", "echo 'python3.98: command not found' >&2; exit 127")  # a shim of pyenv
    program(tmp_path / "bin" / "python3.97", "echo pypy 3 97 0")
    program(tmp_path / "bin" / "python3", "echo cpython 3 10 1")
    newer = program(tmp_path / "bin" / "python3.99", "echo cpython 3 99 4")
    program(tmp_path / "usr" / "python3.99", "echo cpython 3 99 1")  # an older release, but not of the oldest version
    first = program(tmp_path / "bin" / "python3.11", "echo cpython 3 11 7")
    program(tmp_path / "pyenv" / "versions" / "any" / "bin" / "python3", "echo cpython 3 11 4")
    assert list(interpreters().items()) == [("3.11.4", ANY), ("3.11.7", str(first)), ("3.99.4", str(newer))]
    debian = program(tmp_path / "usr" / "python3", "echo cpython 3 11 2")
    assert list(interpreters().items()) == [("3.11.2", str(debian)), ("3.11.7", str(first)), ("3.99.4", str(newer))]


@pytest.mark.parametrize(
    ("tested", "left"),
    [
        ("3.11.7", ["3.11.2", "3.12.1"]),
        ("3.11.10", ["3.11.2", "3.12.1"]),
        ("3.11.2", ["3.12.1"]),
        ("3.11.1", ["3.12.1"]),
        ("3.12.1", ["3.11.2", "3.11.7"]),
        ("3.13.0", ["3.11.2", "3.11.7", "3.12.1"]),
    ],
)
def test_the_oldest_release_is_tested_beside_that_of_the_environment(tested: str, left: list[str]) -> None:
    found = dict.fromkeys(["3.11.2", "3.11.7", "3.12.1"], "path")
    assert list(other_pythons.others(found, tested)) == left


def test_a_wanted_python_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    old = program(tmp_path / "python3", "echo cpython 3 10 1")
    for wanted in (str(old), "python-that-is-not-there"):
        refusal = f"{wanted} is not a Python that FlintMQ supports: CPython 3.11 or newer"
        with pytest.raises(NoInterpreter, match=refusal):
            interpreters([sys.executable, wanted])
    with pytest.raises(NoInterpreter, match="with venv, module_that_is_not_there"):
        interpreters([sys.executable], needs="venv, module_that_is_not_there")


def test_a_package_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(other_pythons.CannotTest, match="hatchling"):
        other_pythons.set_up(sys.executable, tmp_path / "environment")


def test_an_extra_without_wheels_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def install(_python: str, _folder: Path, extras: list[str]) -> None:
        asked.append(extras)
        if "compression" in extras:
            raise other_pythons.NoWheel("no wheel of lz4>=4.4.5 fits it")

    monkeypatch.setattr(other_pythons, "install", install)
    assert other_pythons.set_up("python", Path()) == {"compression": "no wheel of lz4>=4.4.5 fits it"}
    every, *single = asked
    assert sorted(every) == sorted(extra for (extra,) in single)
    assert {"arrow", "broker", "console", "otel", "test"} <= set(every)
    assert not {"celery", "spark"} & set(every)


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        ("ERROR: Could not find a version\nERROR: No matching distribution found for lz4>=4.4.5\n", "lz4>=4.4.5"),
        ("ERROR: Cannot install lz4>=4.4.5 because these package versions have conflicting", "lz4>=4.4.5"),
        ("Because lz4==4.4.5 has no wheels with a matching Python ABI tag", "lz4==4.4.5"),
    ],
)
def test_messages_of_pip_and_uv_name_the_package(tmp_path: Path, printed: str, missing: str) -> None:
    python = program(tmp_path / "python", f"printf '%b' {printed!r}; exit 1")
    with pytest.raises(other_pythons.NoWheel, match=f"^no wheel of {missing} fits it$"):
        other_pythons.install(str(python), tmp_path, ["compression"])


def test_the_listed_versions_must_be_tested() -> None:
    assert other_pythons.is_listed("3.11.2")
    assert not other_pythons.is_listed("3.1.0")


def test_every_chosen_test_exists() -> None:
    root = other_pythons.ROOT
    chosen = [*other_pythons.TESTS, *(f"tests/unit/test_{name}.py" for name in other_pythons.NOT_OF_PYTHON)]
    assert [path for path in chosen if not (root / path).exists()] == []
    for name in [name for names in other_pythons.OF_EXTRAS.values() for name in names]:
        assert list(root.glob(f"tests/*/test_{name}*"))
