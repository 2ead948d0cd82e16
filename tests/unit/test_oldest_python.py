"""The code needs nothing that the oldest patch release of a supported Python lacks.

``scripts/test-long python-oldest`` runs these and other tests with that release. What a linter knows is the minor
version alone.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.scripts.lib import other_pythons

ROOT = Path(__file__).parents[2]
LATER_KEYWORDS = {
    "extract": {"filter"},  # of tarfile, and the next two: 3.11.4
    "extractall": {"filter"},
    "unpack_archive": {"filter"},
    "getaddresses": {"strict"},  # of email.utils, and the next: 3.11.10
    "parseaddr": {"strict"},
}
"""Parameters that came with a patch release, by the function or method, from the notes "Changed in version 3.11.N" and
"3.12.N" of the standard library's documentation. Later names are found by looking them up."""

OF_OTHER_SYSTEMS = {"fcntl.F_FULLFSYNC", "fcntl.F_GETPATH"}
"""Names that only macOS has."""


def sources() -> list[Path]:
    """Return each Python file of the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below ``node`` but those that are tried, or depend on Python's version or the system."""
    parents = [node]
    while parents:
        for child in ast.iter_child_nodes(parents.pop()):
            if isinstance(child, ast.Try):
                continue
            if isinstance(child, ast.If | ast.IfExp) and "sys." in ast.unparse(child.test):
                continue
            yield child
            parents.append(child)


def missing_names(text: str) -> set[str]:
    """Return the names of the standard library in a source text that this Python does not have."""
    modules: dict[str, str] = {}
    wanted: set[tuple[str, str]] = set()
    nodes = list(unconditional(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                modules[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            wanted |= {(node.module, alias.name) for alias in node.names if alias.name != "*"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            wanted.add((modules[node.value.id], node.attr))
    return {
        f"{module}.{name}"
        for module, name in wanted
        if module.partition(".")[0] in sys.stdlib_module_names and not is_there(module, name)
    }


def is_there(module: str, name: str) -> bool:
    """Return whether a module has a name, or a submodule of that name."""
    there = importlib.import_module(module)
    return hasattr(there, name) or (
        hasattr(there, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None
    )


def later_keywords(text: str) -> set[str]:
    """Return the calls in a source text that pass a parameter of ``LATER_KEYWORDS``."""
    if not any(name in text for name in LATER_KEYWORDS):
        return set()
    return {
        f"{name}({keyword.arg}=)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for name in [getattr(node.func, "attr", getattr(node.func, "id", ""))]
        for keyword in node.keywords
        if keyword.arg in LATER_KEYWORDS.get(name, ())
    }


def test_every_name_of_the_standard_library_is_in_this_python() -> None:
    found = {path.relative_to(ROOT).as_posix(): missing_names(path.read_text(encoding="utf-8")) for path in sources()}
    assert {path: names - OF_OTHER_SYSTEMS for path, names in found.items() if names - OF_OTHER_SYSTEMS} == {}


def test_every_test_that_runs_with_it_exists() -> None:
    chosen = [*other_pythons.TESTS, *(f"tests/unit/test_{name}.py" for name in other_pythons.NOT_OF_PYTHON)]
    assert [path for path in chosen if not (ROOT / path).exists()] == []
    for name in [name for names in other_pythons.OF_EXTRAS.values() for name in names]:
        assert list(ROOT.glob(f"tests/*/test_{name}*"))


def test_no_call_passes_a_parameter_that_came_with_a_patch_release() -> None:
    found = {path.relative_to(ROOT).as_posix(): later_keywords(path.read_text(encoding="utf-8")) for path in sources()}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import tarfile\ntarfile.filter_that_came_later", {"tarfile.filter_that_came_later"}),
        ("from os import path, walk_later", {"os.walk_later"}),
        ("import os.path as p\ndef f():\n    return p.later", {"os.path.later"}),
        ("import sys, os\nif sys.version_info > (3, 99):\n    os.later", set()),
        ("try:\n    from os import later\nexcept ImportError:\n    pass", set()),
        ("import concurrent.futures\nconcurrent.futures", set()),
    ],
)
def test_a_missing_name_is_found(text: str, found: set[str]) -> None:
    assert missing_names(text) == found


def test_a_later_parameter_is_found() -> None:
    assert later_keywords("archive.extractall(folder, filter='data')") == {"extractall(filter=)"}
    assert later_keywords("archive.extractall(folder, members=[])") == set()
