"""``scripts/mutants``: every place that it can draw is a change that compiles, and an interrupted run is continued."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lib.mutants import PARTS, Place, Results, applied, drawn, files_of, key_of, places_of  # noqa: E402


@pytest.mark.parametrize("part", PARTS)
def test_each_place_of_a_part_compiles_and_is_another_program(part: str) -> None:
    places = places_of(part, ROOT)
    assert len(places) > 200
    trees = {name: ast.dump(ast.parse((ROOT / name).read_text())) for name in {place.file for place in places}}
    for place in places[:: max(1, len(places) // 100)]:
        changed = applied(place, (ROOT / place.file).read_text())
        assert ast.dump(ast.parse(changed)) != trees[place.file], place.name


@pytest.mark.parametrize("part", PARTS)
def test_each_pattern_of_a_part_names_files(part: str) -> None:
    for pattern in (*PARTS[part].sources, *PARTS[part].tests):
        assert files_of([pattern], ROOT), pattern


def test_the_seed_chooses_the_places() -> None:
    assert drawn(35, 10, "recovery", ROOT) == drawn(35, 10, "recovery", ROOT) != drawn(36, 10, "recovery", ROOT)


def test_outcomes_are_found_by_the_next_run(tmp_path: Path) -> None:
    source = "if a < b:\n    pass\n"
    place = Place("recovery", "x.py", 1, 5, "<", "<=")
    assert applied(place, source) == "if a <= b:\n    pass\n"
    key = key_of(place, source)
    Results(tmp_path / "results").add(key, place, "caught", "test_x", 1.5)
    again = Results(tmp_path / "results")
    assert again.find(key) == ("caught", "test_x")
    assert again.find(key_of(place, source.replace("pass", "raise"))) is None
