"""``.ci/run``: a few tests that failed beside others run again, alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNSTABLE = """\
import pathlib

import pytest

@pytest.mark.parametrize("name", ["a b", "ü[1]::x", "c/d"][:{count}])
def test_unstable(name):
    seen = pathlib.Path(__file__).with_name("seen-" + name.replace("/", "-"))
    if not seen.exists():
        seen.touch()
        raise AssertionError("fails beside others")

def test_stable():
    runs = pathlib.Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a folder with ``.ci/run``, a test command that runs pytest itself, and the hooks of the tests."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "conftest.py").write_text("from processes import *\n")
    shutil.copy(ROOT / "tests" / "processes.py", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m pytest -c pytest.ini -p xdist "$@"\n'
    )
    (tmp_path / "scripts" / "test").chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    long: slow\n    slow: slow\n")
    return tmp_path


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run ``.ci/run`` on one test file; arguments leave out the other Pythons."""
    return command(checkout, ".ci/run", "test_it.py")


def command(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the plug-ins that happen to be installed, which take seconds to load."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(arguments, cwd=checkout, capture_output=True, text=True, timeout=240, env=environment)


def test_at_most_three_tests_that_pass_alone_are_accepted_and_named(checkout: Path) -> None:
    (checkout / "test_it.py").write_text(UNSTABLE.format(count=3))
    done = run(checkout)
    assert done.returncode == 0, done.stdout
    head, *names = done.stdout.splitlines()[-4:]
    assert head == "unstable: failed beside others, passed alone"
    assert "test_it.py::test_unstable[a b]" in names
    assert len(set(names)) == 3
    assert (checkout / "runs").read_text() == "x"
    done = run(checkout)
    assert done.returncode == 0
    assert "unstable" not in done.stdout


@pytest.mark.parametrize("processes", [[], ["--numprocesses", "2"]], ids=["one-process", "two-processes"])
def test_the_long_tests_that_are_left_out_are_counted(checkout: Path, processes: list[str]) -> None:
    long = "@pytest.mark.long\n@pytest.mark.parametrize('number', [1, 2])\ndef test_long(number):\n    ...\n"
    (checkout / "test_it.py").write_text(f"import pytest\n{long}\ndef test_short():\n    ...\n")
    done = command(checkout, "scripts/test", *processes, "-m", "not long")
    assert "2 long tests were left out: ./scripts/test-long runs them\n" in done.stdout
    done = command(checkout, "scripts/test", "-m", "long")
    assert "left out" not in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "def test_it():\n    assert False\n",
        UNSTABLE.format(count=3) + "\ndef test_fourth():\n    test_unstable('fourth')\n",
        "import module_that_is_not_there\n",
    ],
    ids=["fails-again", "more-than-three", "cannot-be-loaded"],
)
def test_other_failures_fail_the_run(checkout: Path, text: str) -> None:
    (checkout / "test_it.py").write_text(text)
    done = run(checkout)
    assert done.returncode != 0
    assert "passed alone" not in done.stdout
