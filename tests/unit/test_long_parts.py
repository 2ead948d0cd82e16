"""``scripts/test-long``: its parts, the order that a commit gives them, and the budget."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flintmq.scripts.lib import long_parts, mutants
from flintmq.scripts.lib.long_parts import Part

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Use four parts of eight minutes that only note that they ran, from a commit that begins with the third."""
    noted: list[str] = []
    monkeypatch.setattr(long_parts, "time", SimpleNamespace(monotonic=lambda: len(noted) * 480.0))
    names = ("first", "second", "python-3.11.2", "fourth")
    monkeypatch.setattr(long_parts, "parts", lambda: [Part(name, 8, python=name[:6]) for name in names])
    monkeypatch.setattr(long_parts, "commit", lambda: "f2")

    def run(part: Part) -> int:
        noted.append(part.name)
        return int(part.name == "fourth")

    monkeypatch.setattr(Part, "run", run)
    return noted


@pytest.mark.parametrize(
    ("arguments", "expected", "failed"),
    [
        ((), ["python-3.11.2", "fourth", "first", "second"], 1),
        (("second", "first"), ["first", "second"], 0),
        (("--budget", "17"), ["python-3.11.2", "fourth"], 1),
        (("--budget", "7"), [], 0),
        (("--budget", "9", "first"), ["first", "python-3.11.2"], 0),
    ],
)
def test_named_parts_run_first_and_others_while_they_fit(
    ran: list[str], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: list[str], failed: int
) -> None:
    assert long_parts.main(arguments) == failed
    assert ran == expected
    lines = capsys.readouterr().out.splitlines()
    assert ("test-long: FAILED (exit 1) in 480 s: fourth" in lines) == failed
    if "--budget" in arguments:
        left_out = {"first", "second", "python-3.11.2", "fourth"} - set(expected)
        assert {line.rpartition(" ")[2] for line in lines if "left out, 8.0 minutes" in line} == left_out


def test_an_unknown_part_is_refused(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        long_parts.main(["third"])
    assert "there is no part 'third': --list prints all" in capsys.readouterr().err
    assert ran == []


def test_a_part_whose_programs_are_missing_is_left_out(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(long_parts, "parts", lambda: [Part("suite", 8, programs=("sh", "no-such-program"))])
    assert long_parts.main([]) == 0
    assert ran == []
    assert "test-long: left out, needs no-such-program: suite" in capsys.readouterr().out


def test_each_commit_begins_with_another_part() -> None:
    found = [Part(str(number), 1) for number in range(5)]
    assert [long_parts.rotated(found, f"{number:x}")[0].name for number in range(6)] == ["0", "1", "2", "3", "4", "0"]
    assert [part.name for part in long_parts.rotated(found, "")] == ["0", "1", "2", "3", "4"]


def test_every_file_with_long_tests_is_a_part() -> None:
    found = list(long_parts.files_with_long_tests())
    names = [part.name for part in found]
    assert len(set(names)) == len(names)
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "mark.long(" in path.read_text("utf-8")}
    marked -= {Path(__file__), Path(__file__).with_name("test_ci_run.py")}
    assert marked == {ROOT / part.command[-1] for part in found}


def test_every_test_file_that_a_part_names_exists() -> None:
    named = [word for part in long_parts.parts() for word in part.command if word.startswith("tests/")]
    assert [name for name in named if not (ROOT / name).is_file()] == []
    patterns = [pattern for part in mutants.PARTS.values() for pattern in (*part.sources, *part.tests)]
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []
