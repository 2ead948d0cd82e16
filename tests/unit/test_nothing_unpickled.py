"""No outside data is executed: no module of the packages unpickles or evaluates anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "client", "protocol", "conf", "testing")
LOADERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle"}
"""Modules that turn bytes into code or objects of any class. Numba has a cache of its own: see ``arrays/jit.py``."""
RUNNERS = {"eval", "exec", "compile", "__import__", "execfile"}


def found_in(source: str) -> Iterator[str]:
    """Yield the forbidden calls of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue
        for name in names:
            if name.partition(".")[0] in LOADERS:
                yield f"line {node.lineno}: imports {name}"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in RUNNERS:
                yield f"line {node.lineno}: calls {node.func.id}"
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"line {node.lineno}: allow_pickle"
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"line {node.lineno}: a shell"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_unpickles_or_evaluates_anything(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    found = [f"{path.relative_to(ROOT)}, {what}" for path in modules for what in found_in(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import yaml",
        "eval('1')",
        "exec(x)",
        "import numpy\nnumpy.load(f, allow_pickle=True)",
        "subprocess.run(x, shell=True)",
        "__import__(name)",
        "def f():\n    import shelve",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert list(found_in(source))
