"""``scripts/fuzz``: its findings and output; and the test command tries the same examples each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "scripts" / "lib" / "fuzz.py"

CONFTEST = """
import hypothesis
hypothesis.settings.register_profile("fuzz", database=None, print_blob=True)
hypothesis.settings.load_profile("fuzz")
"""
SOUND = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_sound(number):
    assert number == number
"""
BROKEN = """
from hypothesis import given, strategies as st

class TestNumbers:
    @given(st.integers(), st.booleans())
    def test_broken(self, number, unused):
        assert number < 1000

@given(st.data())
def test_drawn_inside(data):
    assert data.draw(st.integers()) < 1000
"""


def fuzz(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FUZZ), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sound.py").write_text(SOUND)
    (tmp_path / "test_other.py").write_text("def test_without_properties():\n    raise AssertionError\n")
    return tmp_path


@pytest.mark.long(seconds=20)
def test_a_failure_is_printed_once_with_its_seed_and_the_example_to_add(folder: Path) -> None:
    (folder / "test_broken.py").write_text(BROKEN)
    done = fuzz("0.4", folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("::TestNumbers::test_broken\n") == 1
    assert "@example(\n    number=1000,\n" in done.stdout
    assert "self=" not in done.stdout
    assert "--hypothesis-seed=" in done.stdout
    drawn = done.stdout.split("::test_drawn_inside\n")[1]
    assert "@reproduce_failure(" in drawn
    assert "@example" not in drawn.split("found  ")[0]
    assert "over 2 files, 2 tests failed" in done.stdout


@pytest.mark.long(seconds=20)
def test_without_failures_it_ends_when_its_time_is_up(folder: Path) -> None:
    done = fuzz("0.2", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "over 1 files, 0 tests failed" in done.stdout


def test_tests_that_cannot_be_run_are_no_success(folder: Path) -> None:
    (folder / "test_sound.py").write_text("import hypothesis\nimport no_such_module\n")
    done = fuzz("0.5", folder)
    assert done.returncode == 2
    assert "no_such_module" in done.stderr


@pytest.mark.parametrize("arguments", [["much"], ["1", "no-such-folder"]])
def test_arguments_that_mean_nothing_are_refused(arguments: list[str]) -> None:
    done = fuzz(*arguments)
    assert done.returncode == 2
    assert "./scripts/fuzz [MINUTES] [FILE…]" in done.stderr


def test_the_test_command_tries_the_same_examples_each_time() -> None:
    """The examples depend neither on chance, nor on a database, nor on the modules that other tests have loaded."""
    from hypothesis.internal.conjecture import providers

    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.database is None
    if not hypothesis.settings.default.derandomize:
        pytest.skip("this is scripts/fuzz")
    assert len(providers._get_local_constants()) == 0
