"""Shape is a test: files of more than 1,000 lines, functions of more than 100, and names without a use or with two.

Each test prints every place that breaks its rule, so that one run shows all of them. ``python -m
tests.unit.test_shape`` prints a report: the longest files and functions, and the functions with the most parameters.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from heapq import nlargest
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("broker", "client", "protocol", "conf", "testing")
ALL = (*PRODUCT, "scripts", "tests")
FILE_LINES_MAX = 1_000
FUNCTION_LINES_MAX = 100
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAIRED = {"aio", "sync"}
"""Rooms whose classes have the same name on purpose: one is the asyncio version of the other."""
ONE_MEANING = {"CorruptLog"}
"""Names that two packages define with the same meaning, because neither may import the other."""


@cache
def parsed(folders: tuple[str, ...]) -> dict[str, tuple[str, ast.Module]]:
    """Return text and syntax tree of each Python file in ``folders``, by its path within the project."""
    files = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            files[str(path.relative_to(ROOT))] = text, ast.parse(text)
    assert files
    return files


def functions(folders: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function and method in ``folders`` with the file and line where it begins."""
    for path, (_, tree) in parsed(folders).items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                yield f"{path}:{node.lineno}: {node.name}", node


def public_definitions(path: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield name and node of each public class, function, method and constant of one module."""
    for node in parsed(PRODUCT)[path][1].body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if not node.name.startswith("_"):
                yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    yield target.id, node


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Numba compiles the function: arrays of different types cannot travel in one parameter, and a
    loop that is divided into calls passes its state through memory."""
    return any(ast.unparse(each).split("(")[0] in {"inlined", "kernel"} for each in node.decorator_list)


def test_files_are_short() -> None:
    assert not [path for path, (text, _) in parsed(ALL).items() if text.count("\n") > FILE_LINES_MAX]


def test_functions_are_short() -> None:
    long = [place for place, node in functions(ALL) if length(node) > FUNCTION_LINES_MAX and not is_kernel(node)]
    assert not long, "\n".join(long)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of ``node``."""
    return (node.end_lineno or 0) - node.lineno + 1


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters that a caller of ``node`` may pass."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_docstring_only_points_elsewhere() -> None:
    pointers = [
        f"{place}: {text}"
        for place, node in functions(PRODUCT)
        if re.fullmatch(r"See [^\n]{1,80}", text := ast.get_docstring(node) or "")
    ]
    assert not pointers, "\n".join(pointers)


def test_the_formatter_decides_every_line() -> None:
    marks = re.compile(r"#\s*fmt:\s*(?:skip|off|on)")
    assert not [path for path, (text, _) in parsed(ALL).items() if marks.search(text)]


def test_every_ignored_type_error_has_a_reason() -> None:
    """``# type: ignore[code]  # reason``: without one, no reader knows when the mark may go."""
    bare = re.compile(r"#\s*type:\s*ignore(?:\[[^\]]*\])?\s*$")
    found = [
        f"{path}:{number}"
        for path, (text, _) in parsed(ALL).items()
        for number, line in enumerate(text.splitlines(), 1)
        if bare.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_public_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in parsed(PRODUCT):
        for name, node in public_definitions(path):
            if isinstance(node, ast.ClassDef):
                places[name].append(path)
    twice = {
        name: paths
        for name, paths in places.items()
        if len(paths) > 1 and name not in ONE_MEANING and not (len(paths) == 2 and is_pair(paths))
    }
    assert not twice, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in twice.items())


def is_pair(paths: list[str]) -> bool:
    """Return whether two modules are the blocking and the asyncio version of one thing."""
    words = [set(re.split(r"[/_.]", path)) for path in paths]
    return words[0] | words[1] >= PAIRED or sum("aio" in each for each in words) == 1


def test_every_public_name_is_used() -> None:
    """A name counts as used if the product, a script or a document mentions it beside its definition."""
    words: Counter[str] = Counter()
    for text, _ in parsed((*PRODUCT, "scripts")).values():
        words.update(re.findall(r"\w+", text))
    for document in [ROOT / "pyproject.toml", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]:
        words.update(re.findall(r"\w+", document.read_text(encoding="utf-8")))
    unused = [
        f"{path}: {name}"
        for path in parsed(PRODUCT)
        for name, node in public_definitions(path)
        if words[name] < 2 and not (isinstance(node, FUNCTIONS) and node.decorator_list)
    ]
    assert not unused, "\n".join(unused)


def report() -> None:
    """Print the ten longest files and functions, and the ten functions with the most parameters."""
    lines = ((text.count("\n"), path) for path, (text, _) in parsed(ALL).items())
    measured = [(length(node), parameters(node), place) for place, node in functions(PRODUCT) if not is_kernel(node)]
    for title, rows in (
        ("lines of a file", lines),
        ("lines of a function", ((lines, place) for lines, _, place in measured)),
        ("parameters of a function", ((count, place) for _, count, place in measured)),
    ):
        sys.stdout.write(f"{title}\n")
        for number, place in nlargest(10, rows):
            sys.stdout.write(f"{number:6,}  {place}\n")


if __name__ == "__main__":
    report()
