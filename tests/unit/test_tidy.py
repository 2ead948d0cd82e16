"""Style is a test: names of modules, packages that say what they are for, and tests that try the same each time."""

from __future__ import annotations

import ast
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "client", "protocol", "testing")
NOUNS = {"escaping", "grouping", "missing", "remoting", "routing"}
"""Last words of module names that end in -ing and are nouns of the field, or adjectives."""


def modules() -> list[Path]:
    """Return the Python files of the product and the scripts, without those of an environment."""
    return sorted(path for name in (*PACKAGES, "scripts") for path in (ROOT / name).rglob("*.py"))


def test_no_module_is_named_after_an_activity() -> None:
    names = {path.relative_to(ROOT): path.stem.rsplit("_", 1)[-1] for path in modules()}
    assert not [str(path) for path, word in names.items() if word.endswith("ing") and word not in NOUNS]


def test_every_package_has_a_docstring() -> None:
    packages = [path for path in modules() if path.name == "__init__.py"]
    assert packages
    missing = [
        str(p.relative_to(ROOT)) for p in packages if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))
    ]
    assert not missing


def test_the_test_command_tries_the_same_examples_each_time() -> None:
    """The examples depend neither on chance, nor on a database, nor on the modules that other tests have loaded."""
    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.database is None
    if not hypothesis.settings.default.derandomize:
        pytest.skip("this is scripts/fuzz")
    assert len(providers._get_local_constants()) == 0
