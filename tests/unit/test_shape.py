"""Shape is a test: lengths of files and functions, numbers of parameters, docstrings, and names without a use.

Each test prints every place that breaks its rule, so that one run shows all of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("broker", "client", "protocol", "conf", "testing")
ALL = (*PRODUCT, "scripts", "tests")
FILE_LINES_MAX = 1_000
FUNCTION_LINES_MAX = 100
PARAMETERS_MAX = 8
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAIRED = {"aio", "sync"}
"""Rooms whose classes have the same name on purpose: one is the asyncio version of the other."""
ONE_MEANING = {"CorruptLog"}
"""Names that two packages define with the same meaning, because neither may import the other."""
WIDE = {
    "client/aio/consumer.py: pull",
    "client/core/consume/batch.py: __init__",
    "client/core/consume/pages.py: browse",
    "client/core/consume/requests.py: pull_found",
    "client/core/produce/accumulator.py: __init__",
    "client/message.py: __init__",
    "client/message.py: _rebuild",
    "client/core/topics.py: create_topic",
    "client/sync/consumer.py: pull",
}
"""Functions that still take more parameters. A function that has become narrow must leave the list."""
LONG_FUNCTIONS: set[str] = set()
"""Functions that are still to be divided. A function that has become short must leave the list."""


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


def public_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each public function of a module and each public method of a public class of the product."""
    for path in parsed(PRODUCT):
        for name, node in public_definitions(path):
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            for member in members:
                if isinstance(member, FUNCTIONS) and not member.name.startswith("_"):
                    owner = f"{name}." if isinstance(node, ast.ClassDef) else ""
                    yield f"{path}:{member.lineno}: {owner}{member.name}", member


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Numba compiles the function: arrays of different types cannot travel in one parameter, and a
    loop that is divided into calls passes its state through memory."""
    return any(ast.unparse(each).split("(")[0] in {"inlined", "kernel"} for each in node.decorator_list)


def test_files_are_short() -> None:
    assert not [path for path, (text, _) in parsed(ALL).items() if text.count("\n") > FILE_LINES_MAX]


def test_functions_are_short() -> None:
    long = {
        f"{place.split(':')[0]}: {node.name}"
        for place, node in functions(ALL)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX and not is_kernel(node)
    }
    assert long == LONG_FUNCTIONS


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters that a caller of ``node`` may pass."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_functions_take_few_parameters() -> None:
    wide = {
        f"{place.split(':')[0]}: {node.name}"
        for place, node in functions(PRODUCT)
        if parameters(node) > PARAMETERS_MAX and not is_kernel(node)
    }
    assert wide == WIDE


def test_public_functions_have_a_docstring() -> None:
    inherited = {"deleter", "override", "overload", "setter"}
    missing = [
        place
        for place, node in public_functions()
        if not ast.get_docstring(node)
        and not any(ast.unparse(each).rsplit(".", 1)[-1] in inherited for each in node.decorator_list)
    ]
    assert not missing, "\n".join(missing)


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
